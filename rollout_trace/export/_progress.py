"""How far an export is, on a terminal."""

from __future__ import annotations

import sys
import time

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
