"""Records the agents, graphs and swarms of Strands: ``Agent(hooks=[RolloutHookProvider(engine="vllm")])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.integration.installed import framework_missing

if TYPE_CHECKING:
    from rollout_trace_strands.provider import RolloutHookProvider as RolloutHookProvider

__all__ = ["RolloutHookProvider"]


def __getattr__(name: str) -> Any:
    # The framework takes a second to import, and may not be there.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from rollout_trace_strands.provider import RolloutHookProvider
    except ImportError as error:
        raise framework_missing("rollout-trace-strands", "strands-agents", error) from error
    return RolloutHookProvider
