"""The account of what an export, or a conversion of messages, had to leave out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from rollout_trace.errors import ExportError

Strict: TypeAlias = bool | Literal["metadata"]
"""What raises instead of being left out: nothing; tokens, texts and rewards; those and what stands beside them."""


class ExportReport:
    """What an export left out. Give one to an exporter as ``report=`` to read it afterwards.

    Args:
        progress: called with the number of trajectories read so far, after each of them. True: a line on stderr, where
            that is a terminal.
    """

    def __init__(self, *, progress: bool | Callable[[int], object] = False) -> None:
        self.dropped: dict[str, int] = {}
        """How many of what."""
        self.metadata: set[str] = set()
        """Which of these are neither tokens and texts nor rewards: policy versions, rewards by name, ..."""
        self.noted: dict[str, int] = {}
        """How many of what is in the rows, and is not what a trainer takes it for: tokens that a grammar decided."""
        self._strict: Strict = False
        self._exporter = "export"
        self._line = Line() if progress is True else None
        self._progress = progress if callable(progress) else None
        self._read = 0

    def drop(self, what: str, count: int = 1, *, where: str | None = None, metadata: bool = False) -> None:
        """Counts something that the consumer cannot be given.

        ``metadata``: it is neither tokens and texts nor a reward.

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
        """Counts something that is given, and that who trains on it must know."""
        if count:
            self.noted[what] = self.noted.get(what, 0) + count

    def read_one(self) -> None:
        """Counts a trajectory for who watches the progress."""
        self._read += 1
        if self._progress is not None:
            self._progress(self._read)
        if self._line is not None:
            self._line.show(self._read)

    def begin(self, exporter: str, strict: Strict) -> None:
        """What is dropped from here on is this exporter's."""
        if strict not in (False, True, "metadata"):
            raise ValueError(f"strict={strict!r}: expected True, False or 'metadata'.")
        self._strict, self._exporter, self._read = strict, exporter, 0
        if self._line is not None:
            self._line.name = f"export.{exporter}"

    def end(self) -> None:
        """Ends the line on the terminal."""
        if self._line is not None:
            self._line.end()

    def take(self, other: ExportReport, *, where: str | None = None) -> None:
        """Counts what another report has counted.

        Raises:
            ExportError: the export is strict, and there is something.
        """
        for what, count in other.dropped.items():
            self.drop(what, count, where=where, metadata=what in other.metadata)

    def __str__(self) -> str:
        left = listed(self.dropped) or "nothing was left out"
        return f"{left}; {listed(self.noted)}" if self.noted else left


def listed(counts: dict[str, int]) -> str:
    """Counts as a part of a sentence."""
    return ", ".join(f"{what}: {count}" for what, count in counts.items())


_EVERY = 0.2
"""Seconds between two updates."""


class Line:
    """A line on stderr that is written over, where stderr is a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self.name = "export"
        self._shown = 0.0
        self._width = 0

    def show(self, count: int) -> None:
        """Says how many trajectories were read."""
        now = time.monotonic()
        if now - self._shown >= _EVERY and sys.stderr.isatty():
            self._shown = now
            text = f"{self.name}: {count:,} trajectories"
            self._width = len(text)
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Takes the line away."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
