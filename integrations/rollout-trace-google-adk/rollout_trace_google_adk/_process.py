"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_google_adk import hooks
from rollout_trace_google_adk.settings import Settings


def start() -> Callable[[], None]:
    """Records every run of a ``Runner`` without recording settings of its own. Returns a function that stops this."""
    hooks.install()
    settings = Settings(None, False)
    hooks.everywhere.append(settings)
    return lambda: hooks.everywhere.remove(settings)
