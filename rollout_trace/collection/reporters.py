"""Several reporters of the progress of ``collect`` as one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rollout_trace import guard

if TYPE_CHECKING:
    from rollout_trace.collection.progress import Reporter
    from rollout_trace.collection.snapshot import Progress
    from rollout_trace.collection.summary import CollectSummary


class Reporters:
    """What fails in one of them is logged, and stops neither the others nor the run."""

    def __init__(self, *every: Reporter) -> None:
        self._every = every

    def begin(self, progress: Progress) -> None:
        """The run begins."""
        guard.run_all("progress", *(partial(one.begin, progress) for one in self._every))

    def update(self, progress: Progress) -> None:
        """Something may have changed."""
        guard.run_all("progress", *(partial(one.update, progress) for one in self._every))

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        """The run has ended."""
        guard.run_all("progress", *(partial(one.end, progress, summary) for one in self._every))

    def note(self, text: str) -> None:
        """One line for a person."""
        guard.run_all("progress", *(partial(one.note, text) for one in self._every))
