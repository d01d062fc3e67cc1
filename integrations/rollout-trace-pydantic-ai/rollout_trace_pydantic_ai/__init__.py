"""Records the agents of Pydantic AI: ``record(agent, engine="vllm")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.integration import lazy_package
from rollout_trace_pydantic_ai._about import ABOUT, __version__

if TYPE_CHECKING:
    from rollout_trace_pydantic_ai.agents import record
    from rollout_trace_pydantic_ai.capability import RolloutCapability
else:
    __getattr__, __dir__ = lazy_package(__name__, {"agents": ("record",), "capability": ("RolloutCapability",)}, ABOUT)

__all__ = ["RolloutCapability", "__version__", "record"]
