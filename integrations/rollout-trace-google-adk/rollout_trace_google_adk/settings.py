"""What a recorded runner or agent is recorded with, kept on the object itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rollout_trace.integration import Engine, EngineName

_MARK = "_rollout_trace"


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of ``record`` and ``RolloutPlugin``."""

    engine: EngineName | Engine | None
    keep_bytes: bool


def set_on(thing: Any, settings: Settings) -> None:
    """Keeps settings on a runner, or on an agent or node; copies of these have them too."""
    if isinstance(thing, BaseModel):
        # Past pydantic's `__setattr__`, which takes no attribute that the class does not declare.
        private = {**(thing.__pydantic_private__ or {}), _MARK: settings}
        object.__setattr__(thing, "__pydantic_private__", private)
    else:
        setattr(thing, _MARK, settings)


def settings_of(thing: Any) -> Settings | None:
    """The settings that ``set_on`` has kept on an object; None without."""
    if isinstance(thing, BaseModel):
        return (thing.__pydantic_private__ or {}).get(_MARK)
    found: Settings | None = getattr(thing, _MARK, None)
    return found
