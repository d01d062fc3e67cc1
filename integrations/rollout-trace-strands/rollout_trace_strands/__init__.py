"""Records the agents, graphs and swarms of Strands: ``Agent(hooks=[RolloutHookProvider(engine="vllm")])``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.integration import lazy_package
from rollout_trace_strands._about import ABOUT, __version__

if TYPE_CHECKING:
    from rollout_trace_strands.provider import RolloutHookProvider
else:
    __getattr__, __dir__ = lazy_package(__name__, {"provider": ("RolloutHookProvider",)}, ABOUT)

__all__ = ["RolloutHookProvider", "__version__"]
