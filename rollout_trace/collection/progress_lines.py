"""The progress as lines, where there is no terminal: in files, in the logs of CI and of clusters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.collection.progress_text import line

if TYPE_CHECKING:
    from rollout_trace.collection.snapshot import Progress
    from rollout_trace.collection.summary import CollectSummary

EVERY = 10.0
"""Seconds between two lines."""
UNCHANGED = 60.0
"""Seconds between two lines that say the same."""
NAME = "collect"
"""What the lines begin with."""


class NewFailures:
    """The first failure of each kind, for a person to see at once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def text(self, progress: Progress) -> str | None:
        """The latest failure, if there is one of a new kind."""
        new = progress.failures.keys() - self._seen
        self._seen |= new
        return progress.latest_failure if new else None


class Lines:
    """Writes a line to stderr at the beginning, one in 10 seconds, one at each tenth, and one at the end."""

    def __init__(self) -> None:
        self._at = 0.0
        self._tenth = 0
        self._said = ""
        self._failures = NewFailures()

    def begin(self, progress: Progress) -> None:
        """Writes what is to be done."""
        self._tenth = _tenth(progress)
        self.note(f"{progress.planned:,} rollouts, to {progress.output}")

    def update(self, progress: Progress) -> None:
        """Writes a line where it is time for one."""
        failure = self._failures.text(progress)
        if failure is not None:
            self.note(failure)
        waited, tenth = progress.elapsed - self._at, _tenth(progress)
        said = f"{progress.done} {progress.running} {progress.state} {progress.failures}"
        if tenth > self._tenth or waited >= (EVERY if said != self._said else UNCHANGED):
            self._at, self._tenth, self._said = progress.elapsed, tenth, said
            self.note(line(progress))

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        """Writes a last line, and the summary."""
        failure = self._failures.text(progress)
        if failure is not None:
            self.note(failure)
        self.note(f"ended: {line(progress)}")
        _write("\n".join(summary_lines(summary)))

    def note(self, text: str) -> None:
        """Writes one line."""
        _write(f"{NAME}: {guard.printable(text)}")


def summary_lines(summary: CollectSummary, width: int = 100) -> list[str]:
    """The lines of a summary, for a terminal of so many columns."""
    return [guard.printable(text) for text in summary.render(width).splitlines()]


def _write(text: str) -> None:
    # Looked up each time: it may have been replaced.
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def _tenth(progress: Progress) -> int:
    return 10 * progress.done // progress.planned if progress.planned else 0
