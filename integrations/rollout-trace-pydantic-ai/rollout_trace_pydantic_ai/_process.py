"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_pydantic_ai import unhooked
from rollout_trace_pydantic_ai.capability import RolloutCapability


def start() -> Callable[[], None]:
    """Gives a capability to every run of every agent that has none of its own. Returns what ends this."""
    capability = RolloutCapability()
    unhooked.everywhere.append(capability)
    return lambda: unhooked.everywhere.remove(capability)
