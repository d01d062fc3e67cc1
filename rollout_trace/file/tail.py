"""Finds the last lines of a file, the whole ones of a file that grows, and what a killed writer left of a line."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

import orjson

from rollout_trace.file import locking
from rollout_trace.file.compression import is_compressed, members_of
from rollout_trace.file.decode import decode
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.lines import Damaged, SplitLine, lines

_BLOCK = 1 << 18


def is_packed(file: BinaryIO) -> bool:
    """True for a file with gzip or zstd, by its first bytes. Its place is kept."""
    before = file.tell()
    file.seek(0)
    magic = file.read(4)
    file.seek(before)
    return is_compressed(magic)


def begin_of_last(file: BinaryIO, count: int, end: int) -> int:
    """The offset at which the last lines before ``end`` begin; 0 where there are fewer. Read from the end.

    Args:
        file: not compressed.
        count: number of lines; blank ones count.
    """
    if not count or not end:
        return end
    file.seek(end - 1)
    # The newline that ends the last line separates nothing.
    wanted, at = count + (file.read(1) == b"\n"), end
    while at > 0:
        begin = max(0, at - _BLOCK)
        file.seek(begin)
        block = file.read(at - begin)
        number = block.count(b"\n")
        if number >= wanted:
            place = len(block)
            for _ in range(wanted):
                place = block.rfind(b"\n", 0, place)
            return begin + place + 1
        wanted, at = wanted - number, begin
    return 0


def newlines_before(file: BinaryIO, end: int) -> int:
    """Number of newlines before an offset of a plain file."""
    file.seek(0)
    number = 0
    while end > 0 and (block := file.read(min(_BLOCK, end))):
        number += block.count(b"\n")
        end -= len(block)
    return number


def end_of_whole(file: BinaryIO, begin: int, path: str) -> int:
    """The offset at which the last whole line ends, from an offset at which one begins. Of a compressed file, the last
    whole member: our writers put a line in each.

    Args:
        file: open.
        begin: the offset.
        path: for the message where zstandard is missing.
    """
    members = members_of(file, path)
    if members is None:
        return _end_of_lines(file, begin)
    members.start = begin
    for part in members.parts():
        if isinstance(part, Damaged):
            # Damaged, not unfinished: given to the reader, which reports it and goes on behind it.
            return members.start if part.is_cut else file.seek(0, os.SEEK_END)
    return members.start


def _end_of_lines(file: BinaryIO, begin: int) -> int:
    """The offset behind the last newline of a file from an offset on; that offset where there is none."""
    at = file.seek(0, os.SEEK_END)
    while at > begin:
        start = max(begin, at - _BLOCK)
        file.seek(start)
        place = file.read(at - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        at = start
    return begin


class Part(io.RawIOBase):
    """The bytes [begin, end) of a file, as a file of its own.

    Args:
        file: open; closed with the part.
    """

    def __init__(self, file: BinaryIO, begin: int, end: int) -> None:
        self._file = file
        self._begin = begin
        self._end = end
        file.seek(begin)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._file.tell())
        return self._file.read(left if size is None or size < 0 else min(size, left))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: self._begin, os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._end}[whence]
        return self._file.seek(base + offset) - self._begin

    def tell(self) -> int:
        return self._file.tell() - self._begin

    def close(self) -> None:
        self._file.close()
        super().close()


# Outputs of killed processes


_ID = re.compile(rb'"id":("(?:[^"\\]|\\.)*")')
_HEAD = 4096
"""Bytes of a line in which its id is looked for: it is one of the first fields."""
_NO_ID = 64
"""A partial line of fewer bytes may lack its id: nothing of the trajectory is in it."""


def ids_in(path: str | os.PathLike[str], wanted: Collection[str]) -> set[str]:
    """Selects the trajectories that have a whole line in a file; none where there is no file.

    Only their lines are decoded: of the others, the first bytes are looked at.

    Raises:
        OSError: the file cannot be read.
        ImportError: it is compressed with zstd and the package zstandard is not installed.
    """
    found: set[str] = set()
    if not os.path.exists(path):
        return found
    for _, line in lines(os.fspath(path)):
        if isinstance(line, Damaged):
            continue
        # A line in two compressed members may be the rest of a killed writer's, and then a whole one.
        for part in (line, bytes(line[line.seam :])) if isinstance(line, SplitLine) else (line,):
            name = id_of(part)
            if name is not None and name in wanted and name not in found and _is_whole(part):
                found.add(name)
    return found


def id_of(line: bytes) -> str | None:
    """The id of the trajectory whose line begins so; None where it cannot be found."""
    match = _ID.search(line[:_HEAD])
    try:
        return None if match is None else str(orjson.loads(match[1]))
    except orjson.JSONDecodeError:
        return None


def _is_whole(line: bytes) -> bool:
    try:
        decode(line)
    except (BadLine, RecursionError):
        return False
    return True


def cut_partial_line(path: Path, is_known: Callable[[str], bool]) -> int:
    """Removes a partial line from the end of a file, if its trajectory is known, or too little came to have an id.

    A writer that was killed left it; nobody else may be writing. Nothing is done where a lock says otherwise.

    Returns:
        Bytes that were removed.

    Raises:
        OSError: the file cannot be read or changed.
    """
    try:
        file = open(path, "r+b")  # noqa: SIM115 - it is closed by the `with` below
    except FileNotFoundError:
        return 0
    with file:
        if locking.lock_open(file.fileno()) is not True:
            return 0
        size = file.seek(0, os.SEEK_END)
        start, beginning = _partial_end(file, path)
        if start == size:
            return 0
        name = id_of(beginning)
        if (len(beginning) > _NO_ID) if name is None else not is_known(name):
            return 0
        file.truncate(start)
        return size - start


def _partial_end(file: BinaryIO, path: Path) -> tuple[int, bytes]:
    """Finds the partial line and its first bytes as text; the end of the file where there is none."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    members = members_of(file, os.fspath(path))
    if members is None:
        start = file.seek(_end_of_lines(file, 0))
        tail = file.read()
        # Another program may have written the last line without its newline.
        return (end, b"") if not tail or _is_whole(tail) else (start, tail[:_HEAD])
    beginning = b""
    for part in members.parts():
        if isinstance(part, Damaged):
            # In the middle: where members begin behind it is not certain.
            return (members.start, beginning) if part.is_cut else (end, b"")
        beginning = b"" if part is None else beginning + part[: _HEAD - len(beginning)]
    return end, b""
