"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_langchain import handler


def start() -> Callable[[], None]:
    """Gives the handler to everything that LangChain runs, also outside of trajectories. Returns what ends this."""
    token = object()
    handler.everywhere.append(token)
    return lambda: handler.everywhere.remove(token)
