"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_inspect.api import record_evals


def start() -> Callable[[], None]:
    """Records every evaluation. Returns a function that stops this."""
    block = record_evals()
    block.__enter__()

    def end() -> None:
        block.__exit__(None, None, None)

    return end
