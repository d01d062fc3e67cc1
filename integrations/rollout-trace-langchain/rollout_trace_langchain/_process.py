"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_langchain import handler


def start() -> Callable[[], None]:
    """Adds the handler to all LangChain runs, even outside trajectories. Returns a function that stops this."""
    token = object()
    handler.everywhere.append(token)
    return lambda: handler.everywhere.remove(token)
