"""Recording settings of runners and agents, stored on the objects themselves."""

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
    """Stores settings on a runner, an agent or a node; copies of these have them too."""
    if isinstance(thing, BaseModel):
        # Past pydantic's `__setattr__`, which takes no attribute that the class does not declare.
        private = {**(thing.__pydantic_private__ or {}), _MARK: settings}
        object.__setattr__(thing, "__pydantic_private__", private)
    else:
        setattr(thing, _MARK, settings)


def settings_of(thing: Any) -> Settings | None:
    """Returns the settings that ``set_on`` stored on an object; None without any."""
    if isinstance(thing, BaseModel):
        return (thing.__pydantic_private__ or {}).get(_MARK)
    found: Settings | None = getattr(thing, _MARK, None)
    return found
