"""Records the agents of the OpenAI Agents SDK: ``record(agent, engine="vllm")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.integration import lazy_package
from rollout_trace_openai_agents._about import ABOUT, __version__

if TYPE_CHECKING:
    from rollout_trace_openai_agents.entry import RolloutRunHooks, RolloutTracingProcessor, record
else:
    __getattr__, __dir__ = lazy_package(
        __name__, {"entry": ("RolloutRunHooks", "RolloutTracingProcessor", "record")}, ABOUT
    )

__all__ = ["RolloutRunHooks", "RolloutTracingProcessor", "__version__", "record"]
