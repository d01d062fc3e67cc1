"""Records every run in this process: what ``rt.instrument(hooks=True)`` starts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_trace_openai_agents import entry, models
from rollout_trace_openai_agents.settings import settings_of


def start() -> Callable[[], None]:
    """Records every run of ``Runner`` without settings of its own. Returns a function that stops this."""
    settings = settings_of(None, False, False)
    entry.everywhere.append(settings)

    def end() -> None:
        entry.everywhere.remove(settings)
        models.forget(settings)

    return end
