"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_pydantic_ai import models, unhooked
from rollout_trace_pydantic_ai.capability import RolloutCapability


def start() -> Callable[[], None]:
    """Adds a capability to every run of agents without their own. Returns a function that stops this."""
    capability = RolloutCapability()
    unhooked.everywhere.append(capability)

    def end() -> None:
        unhooked.everywhere.remove(capability)
        models.forget(models.Settings(None, False))

    return end
