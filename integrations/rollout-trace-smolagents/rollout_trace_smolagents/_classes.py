"""Settings and recording classes of agents, models and executors.

Each object gets a recording subclass of its own class. Nothing of smolagents is patched: other objects are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout_trace.integration import ClassSwap

if TYPE_CHECKING:
    from rollout_trace.integration import Engine, EngineName


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an agent, its models and its executor are recorded."""

    engine: EngineName | Engine | None = None
    """Engine of the models' servers, see ``rollout_trace.wrap_openai``."""
    scores: bool = False
    """Whether local models return the scores of the tokens they generate."""


classes: ClassSwap[Settings] = ClassSwap("_rollout_trace_smolagents", is_pickled=True)
"""The recording classes. Pickled with the objects, so that a model sent to another process records there too."""
