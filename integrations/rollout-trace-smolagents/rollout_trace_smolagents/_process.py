"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_smolagents._recording import record_all


def start() -> Callable[[], None]:
    """Records every agent that begins a run. Returns a function that stops this."""
    return record_all()
