"""Where the lines of files are, so that any of them can be read at any time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from rollout_trace.errors import FormatError
from rollout_trace.file.find import FoundHead, found_in, is_plain, place_of, stripped
from rollout_trace.file.lines import lines

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


class IndexedLine(NamedTuple):
    """A line with a trajectory."""

    path: str
    number: int
    """From 1."""
    file: BinaryIO
    offset: int
    """In ``file``, in bytes."""
    length: int
    head: FoundHead

    @property
    def place(self) -> str:
        """File and line, for a message."""
        return place_of(self.path, self.number)

    def load(self) -> Trajectory:
        """The trajectory, with its notes.

        Raises:
            FormatError: the line does not match the format.
        """
        self.file.seek(self.offset)
        found = found_in(self.path, (None, self.number, stripped(self.file.read(self.length))))
        if found is None:
            raise FormatError(f"{self.place}: the line has changed while it was read.")
        return found.load()


class LineIndex:
    """The lines of files, in their order. Compressed files, and those at addresses, are unpacked to temporary ones.

    Args:
        paths: of the files.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.problems: list[FormatError] = []
        """An error for each line that is no trajectory."""
        self.lines: list[IndexedLine] = []
        self._files = ExitStack()
        with ExitStack() as stack:
            stack.push(self._files)
            for path in paths:
                self._add(path)
            stack.pop_all()

    def __enter__(self) -> LineIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def _add(self, path: str) -> None:
        if is_plain(path):
            file = self._files.enter_context(open(path, "rb"))  # noqa: SIM115 - closed with the others
            offset = 0
            for number, raw in enumerate(file, 1):
                self._keep(path, number, file, offset, raw)
                offset += len(raw)
            return
        unpacked = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        for number, line in lines(path):
            if isinstance(line, bytes):
                offset = unpacked.tell()
                unpacked.write(line)
                self._keep(path, number, unpacked, offset, line)
            else:
                self.problems.append(FormatError(f"{place_of(path, number)}: {line}"))

    def _keep(self, path: str, number: int, file: BinaryIO, offset: int, line: bytes) -> None:
        bare = stripped(line)
        found = found_in(path, (None, number, bare), self.problems.append) if bare else None
        if found is not None:
            self.lines.append(IndexedLine(path, number, file, offset, len(line), found.head))
