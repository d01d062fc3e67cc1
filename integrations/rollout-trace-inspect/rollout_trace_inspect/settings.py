"""Recording settings of a model, of the evaluations in a block, or of the process."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from rollout_trace.integration import Engine, EngineName

SWITCH = "ROLLOUT_TRACE_INSPECT"
"""Environment variable: ``1`` records every evaluation of the process; unset, empty or ``0``: none."""
ENGINE = "ROLLOUT_TRACE_INSPECT_ENGINE"
"""Environment variable: the engine behind the model that is evaluated."""
FILE = "ROLLOUT_TRACE_INSPECT_FILE"
"""Environment variable: the file for all trajectories; unset: one beside each log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How samples, or the calls of a model, are recorded."""

    engine: EngineName | Engine | None = None
    """The server behind the model, see ``rollout_trace.wrap_openai``."""
    path: str | None = None
    """The file, folder or address for the trajectories; None: beside the log, or the user's own recording."""
    keep_bytes: bool = False
    """Whether request and response bodies are kept on the steps."""

    def for_other_models(self) -> Settings:
        """Settings for a sample's other models, whose server is different and unknown."""
        return replace(self, engine=None)


models: WeakKeyDictionary[Any, Settings] = WeakKeyDictionary()
"""Settings of models that ``record`` was called with, by their ``ModelAPI``, which copies of a model share."""
blocks: list[Settings] = []
"""Settings of the ``record_evals`` blocks that are open, the innermost last."""


def from_environment() -> Settings | None:
    """Settings for every evaluation of the process; None if the environment asks for none.

    Raises:
        ValueError: it names an unknown engine.
    """
    if not _is_switched_on():
        return None
    # Not above: the entry point imports this module in every process that evaluates.
    from rollout_trace.integration import check_engine

    return Settings(engine=check_engine(os.environ.get(ENGINE) or None), path=os.environ.get(FILE) or None)


def _is_switched_on() -> bool:
    return os.environ.get(SWITCH, "").strip().lower() not in ("", "0", "false", "no", "off")


def is_on() -> bool:
    """Whether any sample could be one to record."""
    return bool(models or blocks) or _is_switched_on()


def settings_for(api: Any) -> Settings | None:
    """Returns the settings of a sample whose evaluated model has this ``ModelAPI``; None if it is not recorded."""
    own = models.get(api)
    if own is not None:
        return own
    return blocks[-1] if blocks else from_environment()
