"""Recording subclasses of an object's own class, swapped in on agents, models and executors themselves.

Nothing of smolagents is patched: other agents, models and executors keep their classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout_trace.integration import ClassSwap

if TYPE_CHECKING:
    from rollout_trace.integration import EngineName


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an agent and what belongs to it are recorded."""

    engine: EngineName | None = None
    """Of the models' servers, see ``rollout_trace.wrap_openai``."""
    scores: bool = False
    """Local models are asked for the scores of what they generate."""


classes: ClassSwap[Settings] = ClassSwap("_rollout_trace_smolagents", is_pickled=True)
"""The recording classes; smolagents sends pickled models to other processes, where they record too."""
