"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_strands import unhooked
from rollout_trace_strands.provider import RolloutHookProvider


def start() -> Callable[[], None]:
    """Attaches a provider to each agent, graph and swarm that runs without one. Returns a function that stops this."""
    provider = RolloutHookProvider()
    unhooked.everywhere.append(provider.attach)

    def end() -> None:
        unhooked.everywhere.remove(provider.attach)
        provider.detach()

    return end
