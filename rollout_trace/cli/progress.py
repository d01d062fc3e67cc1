"""A bar on stderr of the bytes that were read: on a terminal, and not before a second has passed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, BinaryIO

from rollout_trace.file.addresses import is_address, size_of

_AFTER = 1.0
"""Seconds of work before the bar is shown."""
_EVERY = 0.1
"""Seconds between its changes."""


class Progress:
    """The bar. Without files, or where stderr is no terminal, or without the package rich, it shows nothing.

    Args:
        paths: files that are going to be read.
        label: what is being done.
    """

    def __init__(self, paths: Iterable[str], label: str = "reading") -> None:
        given = list(paths)
        self._label = label
        self._is_shown = bool(given) and sys.stderr.isatty()
        self._total = _total(given) if self._is_shown else None
        self._done = 0
        self._next = time.monotonic() + _AFTER
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def counted(self, file: BinaryIO, path: str) -> BinaryIO:
        """The open file, whose reading moves the bar."""
        return _Counted(file, self) if self._is_shown else file  # type: ignore[return-value]

    def add(self, count: int) -> None:
        """Counts bytes that were read, or read again (a negative number)."""
        self._done += count
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _EVERY
        if self._bar is None and not self._start():
            self._is_shown = False
            return
        self._bar.update(self._task, completed=self._done)

    def _start(self) -> bool:
        try:
            from rich import progress
            from rich.console import Console
        except ImportError:
            return False
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._label, total=self._total)
        return True


class _Counted:
    """A file whose reads are counted."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._progress.add(len(data))
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        before = self._file.tell()
        place = self._file.seek(offset, whence)
        self._progress.add(place - before)
        return place

    def tell(self) -> int:
        return self._file.tell()

    def __enter__(self) -> _Counted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _total(paths: list[str]) -> int | None:
    """Bytes of the files; None where it is not known."""
    try:
        return sum(size_of(path) if is_address(path) else os.stat(path).st_size for path in paths)
    except (OSError, ImportError, ValueError, TypeError):
        return None
