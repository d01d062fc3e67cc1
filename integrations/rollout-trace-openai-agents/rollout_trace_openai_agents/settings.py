"""Settings of recorded runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout_trace.integration import check_engine

if TYPE_CHECKING:
    from rollout_trace.integration import Engine, EngineName


@dataclass(frozen=True)
class Settings:
    """The arguments of ``record``, of ``RolloutRunHooks`` or of ``RolloutTracingProcessor``."""

    engine: EngineName | Engine | None
    keep_bytes: bool
    train_guardrails: bool
    is_asked: bool = True
    """Whether the user asked for this object; False for the models that were found in a recorded run."""


def settings_of(engine: str | Engine | None, keep_bytes: bool, train_guardrails: bool) -> Settings:
    """Checks the arguments.

    Raises:
        ValueError: the engine is unknown.
    """
    return Settings(check_engine(engine), keep_bytes, train_guardrails)
