"""Who shows the progress of a run of ``collect``: a bar, lines, a function of the user's, or nobody."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.collection.progress import Progress, Reporter
from rollout_trace.collection.progress_lines import Lines
from rollout_trace.data.user_values import brief

if TYPE_CHECKING:
    from rollout_trace.collection.summary import CollectSummary


class Reporters(Reporter):
    """Several as one. What fails in one of them is logged, and stops neither the others nor the run."""

    def __init__(self, *every: Reporter) -> None:
        self._every = every

    def begin(self, progress: Progress) -> None:
        self._tell("begin", progress)

    def update(self, progress: Progress) -> None:
        self._tell("update", progress)

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        self._tell("end", progress, summary)

    def note(self, text: str) -> None:
        self._tell("note", text)

    def _tell(self, what: str, *arguments: Any) -> None:
        guard.run_all("progress", *(partial(getattr(one, what), *arguments) for one in self._every))


class Callback(Reporter):
    """Calls a function of the user's with each progress. Once it has raised it is not called again."""

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self._function: Callable[[Progress], object] | None = function

    def begin(self, progress: Progress) -> None:
        self.update(progress)

    def update(self, progress: Progress) -> None:
        if self._function is None:
            return
        try:
            self._function(progress)
        except Exception as error:
            self._function = None
            guard.warn(f"the function given as progress= raised {guard.describe(error)}; it is not called again")

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        self.update(progress)


def reporter_for(progress: bool | Callable[[Progress], object] | None) -> Reporter:
    """Who shows the progress.

    Args:
        progress: None or True: a bar where stderr is a terminal and rich is installed, else lines; False: nobody; a
            function is called with each ``Progress``.

    Raises:
        TypeError: it is none of these, or a coroutine function.
    """
    if progress is False:
        return Reporter()
    if progress is None or progress is True:
        if not _has_bar():
            return Lines()
        from rollout_trace.collection.progress_bar import Bar

        return Bar()
    if not callable(progress) or iscoroutinefunction(progress):
        raise TypeError(f"progress is {brief(progress)}; give None, True, False, or a function that is not async.")
    return Callback(progress)


def _has_bar() -> bool:
    """Whether a bar can be shown: stderr is a terminal that moves its cursor, no CI's log, and rich is installed."""
    stderr = sys.stderr
    try:
        is_terminal = stderr is not None and stderr.isatty()
    except ValueError:  # It is closed.
        return False
    if not is_terminal or os.environ.get("TERM", "").lower() in ("dumb", "unknown") or os.environ.get("CI"):
        return False
    return find_spec("rich") is not None
