"""Counts of what an export, or a conversion of messages, left out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from rollout_trace.errors import ExportError

Strict: TypeAlias = bool | Literal["metadata"]
"""Selects what raises ``ExportError`` instead of being left out.

``False``: nothing; ``True``: tokens, texts and rewards; ``"metadata"``: metadata as well.
"""


def check_strict(strict: Strict) -> None:
    """Raises ValueError if ``strict`` has an unknown value."""
    if strict not in (False, True, "metadata"):
        raise ValueError(f"strict={strict!r}: expected True, False or 'metadata'.")


class ExportReport:
    """Counts of what an export left out. Pass one to an exporter as ``report=`` and read it afterwards.

    Args:
        progress: called after each trajectory with the number read so far. True: show that number on stderr, if it is a
            terminal.
    """

    def __init__(self, *, progress: bool | Callable[[int], object] = False) -> None:
        self.dropped: dict[str, int] = {}
        """Counts of what was left out, by description."""
        self.metadata: set[str] = set()
        """The descriptions in ``dropped`` that are not tokens, texts or rewards: policy versions, named rewards, ..."""
        self.noted: dict[str, int] = {}
        """Counts of what was exported but needs attention in training (tokens of a grammar), by description."""
        self._strict: Strict = False
        self._exporter = "export"
        self._line = _ProgressLine() if progress is True else None
        self._progress = progress if callable(progress) else None
        self._read = 0

    def drop(self, what: str, count: int = 1, *, where: str | None = None, metadata: bool = False) -> None:
        """Counts something that the target format cannot hold.

        Args:
            what: description, the key in ``dropped``.
            count: how many; zero is ignored.
            where: the place, for the error message.
            metadata: True for anything but a token, a text or a reward.

        Raises:
            ExportError: the export is strict.
        """
        if not count:
            return
        if self._strict == "metadata" or (self._strict and not metadata):
            place = "" if where is None else f" ({where})"
            raise ExportError(
                f"export.{self._exporter}: {what}{place}: {count}. Without strict={self._strict!r} it would be left "
                "out."
            )
        self.dropped[what] = self.dropped.get(what, 0) + count
        if metadata:
            self.metadata.add(what)

    def note(self, what: str, count: int) -> None:
        """Counts something that is exported but needs attention in training. Zero is ignored."""
        if count:
            self.noted[what] = self.noted.get(what, 0) + count

    def read_one(self) -> None:
        """Counts one trajectory read and updates the progress."""
        self._read += 1
        if self._progress is not None:
            self._progress(self._read)
        if self._line is not None:
            self._line.show(self._read)

    def begin(self, exporter: str, strict: Strict) -> None:
        """Starts an export: sets the exporter's name and strictness for the following ``drop`` calls.

        Raises:
            ValueError: ``strict`` has an unknown value.
        """
        check_strict(strict)
        self._strict, self._exporter, self._read = strict, exporter, 0
        if self._line is not None:
            self._line.name = f"export.{exporter}"

    def end(self) -> None:
        """Clears the progress line."""
        if self._line is not None:
            self._line.end()

    def take(self, other: ExportReport, *, where: str | None = None) -> None:
        """Adds the ``dropped`` counts of another report.

        Raises:
            ExportError: the export is strict, and the other report has counts that ``strict`` does not allow.
        """
        for what, count in other.dropped.items():
            self.drop(what, count, where=where, metadata=what in other.metadata)

    def __str__(self) -> str:
        left = format_counts(self.dropped) or "nothing was left out"
        return f"{left}; {format_counts(self.noted)}" if self.noted else left


def format_counts(counts: dict[str, int]) -> str:
    """The counts as text: ``"images: 2, names: 1"``."""
    return ", ".join(f"{what}: {count}" for what, count in counts.items())


_UPDATE_INTERVAL = 0.2
"""Seconds between two updates of the progress line, at least."""


class _ProgressLine:
    """A progress line on stderr, rewritten in place. Writes nothing where stderr is not a terminal."""

    def __init__(self) -> None:
        self.name = "export"
        self._shown = 0.0
        self._width = 0

    def show(self, count: int) -> None:
        """Shows the number of trajectories read, at most once per ``_UPDATE_INTERVAL``."""
        now = time.monotonic()
        if now - self._shown >= _UPDATE_INTERVAL and sys.stderr.isatty():
            self._shown = now
            text = f"{self.name}: {count:,} trajectories"
            self._width = len(text)
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Erases the line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
