"""Reads the trajectories of a command's arguments: files, folders, patterns, addresses, and ``-`` for stdin."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rollout_trace.cli.common import Test, files_of
from rollout_trace.file.addresses import is_address, open_binary, size_of
from rollout_trace.file.compression import GZIP_MAGIC, ZSTD_MAGIC
from rollout_trace.file.reader import ReadLine, ReadMedia, TrajectoryReader

if TYPE_CHECKING:
    from rollout_trace.errors import FormatError

STDIN = "-"
STDIN_NAME = "stdin"
"""The path of what stdin gives, in messages and results."""
_AFTER = 1.0
"""Seconds of work before a progress bar is shown."""
_EVERY = 0.1
"""Seconds between its changes."""


class Progress:
    """A bar on stderr of the bytes read. Without files, a terminal, or the package rich, it shows nothing.

    Args:
        paths: files that are going to be read.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        given = list(paths)
        self._is_shown = bool(given) and sys.stderr.isatty()
        self._total = _total(given) if self._is_shown else None
        self._done = 0
        self._next = time.monotonic() + _AFTER
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def open(self, path: str) -> BinaryIO:
        """Opens a file, whose reading moves the bar."""
        file = open_binary(path)
        return _Counted(file, self) if self._is_shown else file  # type: ignore[return-value]

    def add(self, count: int) -> None:
        """Counts bytes that were read, or read again (a negative number)."""
        self._done += count
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _EVERY
        if self._bar is None:
            self._start()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def _start(self) -> None:
        try:
            from rich import progress
            from rich.console import Console
        except ImportError:
            self._is_shown = False
            return
        columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
        self._bar = progress.Progress(
            "{task.description}",
            *columns,
            progress.TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._bar.start()
        self._bar.add_task("reading", total=self._total)


class _Counted(io.RawIOBase):
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

    def close(self) -> None:
        self._file.close()
        super().close()


def _total(paths: list[str]) -> int | None:
    """Bytes of the files; None where it is not known."""
    try:
        return sum(size_of(path) if is_address(path) else os.stat(path).st_size for path in paths)
    except (OSError, ImportError, ValueError, TypeError):
        return None


class Trajectories(Iterator[ReadLine]):
    """The trajectories that arguments name, read lazily, notes applied; ``problems`` has an error for each bad line.

    Args:
        paths: files, folders, patterns, addresses, and ``-`` (stdin).
        where: which trajectories are given; None: all.
        progress: show a bar of the bytes read on stderr after a second, if nothing else goes to the terminal meanwhile.
        media: ``keep``: leave references to media in their places; ``restore``: read the media too.

    Raises OSError where there is nothing to read, click.UsageError where stdin is named twice, or is a terminal.
    """

    def __init__(
        self, paths: Iterable[str], where: Test | None = None, *, progress: bool = False, media: ReadMedia = "keep"
    ) -> None:
        self.paths = paths_of(paths)
        self.read = 0
        """Trajectories read so far, whether ``where`` holds or not."""
        self._where = where
        self._progress = Progress(self.paths if progress else ())
        self._media = media
        self._readers: list[TrajectoryReader] = []
        self._damaged: list[FormatError] = []
        self._found = self._read_all()

    @property
    def problems(self) -> list[FormatError]:
        """An error for each line, or note, that could not be read so far."""
        return [*(error for reader in self._readers for error in reader.skipped), *self._damaged]

    def damaged(self, error: FormatError) -> None:
        """Adds an error of a trajectory that was read, to ``problems``."""
        self._damaged.append(error)

    def __iter__(self) -> Trajectories:
        return self

    def __next__(self) -> ReadLine:
        return next(self._found)

    def close(self) -> None:
        """Closes the files, and removes the progress bar."""
        self._found.close()

    def _read_all(self) -> Generator[ReadLine, None, None]:
        with self._progress:
            for is_stdin, paths in _runs(self.paths):
                # Nothing lies beside stdin: references to media stay what they are.
                reader = TrajectoryReader(paths, "skip", "keep" if is_stdin else self._media)
                self._readers.append(reader)
                # By where it stands, not by its name: a file can be called `stdin`.
                for line in reader.read_noted_lines(open_stdin if is_stdin else self._progress.open):
                    self.read += 1
                    if self._where is None or self._where(line.trajectory):
                        yield line


def paths_of(paths: Iterable[str]) -> list[str]:
    """The files that arguments name, and ``-`` where stdin is one of them. Raises as ``Trajectories``."""
    given = list(paths)
    if given.count(STDIN) > 1:
        raise click.UsageError("- is given twice, but stdin can be read only once.")
    if STDIN in given and sys.stdin.isatty():
        raise click.UsageError("stdin is a terminal. Pipe a file of trajectories into this command.")
    # Together: what a shell makes of `*.jsonl` has the files of notes, too, which are left out of lists.
    found = [(is_stdin, [STDIN] if is_stdin else files_of(run)) for is_stdin, run in _runs(given)] or [
        (False, files_of([]))
    ]
    return [file for _, run in found for file in run]


@contextmanager
def stdin_as_file(paths: Iterable[str]) -> Iterator[tuple[list[str], Callable[[str], str]]]:
    """The files that arguments name, for what reads files twice: stdin is copied into a temporary one.

    Yields them, and a function that puts ``stdin`` for its path in a message. Raises as ``Trajectories``.
    """
    files = paths_of(paths)
    if STDIN not in files:
        yield files, str
        return
    # The folder is private: the file's own permissions can be those of any file, which `merge` hands on.
    with tempfile.TemporaryDirectory(prefix="rollout-trace-") as folder:
        place = Path(folder, STDIN_NAME)
        with place.open("wb") as file:
            copyfileobj(sys.stdin.buffer, file)
        named = [str(place) if one == STDIN else one for one in files]
        yield named, lambda message: message.replace(str(place), STDIN_NAME)


def _runs(paths: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """The files in their order, in runs between which stdin stands."""
    for is_stdin, run in groupby(paths, lambda path: path == STDIN):
        yield is_stdin, [STDIN_NAME] if is_stdin else list(run)


def open_stdin(path: str = STDIN) -> BinaryIO:
    """Stdin, as a file that the reader can read: plain text as it comes, compressed bytes from a temporary file."""
    stdin = sys.stdin.buffer
    begin = _first(stdin, 4)
    if not (begin.startswith(GZIP_MAGIC) or begin == ZSTD_MAGIC):
        return _Plain(begin, stdin)  # type: ignore[return-value]
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        file.write(begin)
        copyfileobj(stdin, file)
        file.seek(0)
        stack.pop_all()
        return file


def _first(stdin: BinaryIO, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := stdin.read(size - len(found))):
        found += more
    return found


class _Plain(io.RawIOBase):
    """Stdin, of which the first bytes were read already. They can be read twice."""

    def __init__(self, begin: bytes, rest: BinaryIO) -> None:
        self._begin = begin
        self._rest = rest
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._at < len(self._begin):
            found = self._begin[self._at :] if size < 0 else self._begin[self._at : self._at + size]
            self._at += len(found)
            return found
        # What is there: a program that writes now and then is read as it writes.
        return self._rest.read() if size < 0 else self._rest.read1(size)  # type: ignore[attr-defined]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset
        return offset
