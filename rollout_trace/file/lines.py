"""The lines of a file, plain or compressed: read in order, also behind damaged places, at a place, or from the end."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from typing import BinaryIO, NamedTuple

import orjson

from rollout_trace.file.addresses import open_binary
from rollout_trace.file.compression import Damaged as Damaged
from rollout_trace.file.compression import is_compressed, members_of

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK = 1 << 18
_BLANK = re.compile(rb"\s*")
LONGEST_LINE = 1 << 30
"""Bytes of a line, decompressed. A longer one is not read: a few KB of compressed zeros can stand for any number."""
_LONGEST_FOREIGN = 1 << 20
"""The same of a line that begins with anything but an object: it is no trajectory, whatever else it holds."""


class SplitLine(bytes):
    """A line whose bytes come from two or more compressed members."""

    last_member_offset = 0
    """Where the last of these members begins, in the line."""

    def last_member(self) -> bytes:
        """The bytes of the last of them. Those before may be damaged without their newline."""
        return bytes(self[self.last_member_offset :])


def lines(path: str, start: Place | None = None) -> Iterator[tuple[int, bytes | Damaged]]:
    """Yields number (from 1) and bytes of each line that is not blank; ``Damaged`` in place of undecodable lines.

    ``start``: where to begin; None: at the begin.
    """
    with open_binary(path) as file:
        yield from NumberedLines(file, path, start=start)


IN_STORE = -1
FAR = 4 << 20
"""Bytes that may have to be unpacked before a line of a compressed file; a line behind that is kept unpacked."""


class Place(NamedTuple):
    """The place at which a line begins in a file."""

    member: int = 0
    """Offset in the file of a compressed member; 0 where the file is plain; ``IN_STORE``: the line is kept unpacked."""
    begin: int = 0
    """Offset in what is unpacked from there on; where the file is plain, in the file."""
    number: int = 1
    """Of the line, from 1."""


class NumberedLines:
    """The lines of an open file, or of a part of one, numbered from 1.

    Args:
        file: at its begin.
        path: of the file, for its suffix.
        is_start: whether a byte order mark may be there.
        start: where to begin: ``rest`` of an earlier reading of the file.
    """

    def __init__(self, file: BinaryIO, path: str, *, is_start: bool = True, start: Place | None = None) -> None:
        start = start or Place()
        self._file = file
        self._members = members_of(file, path)
        is_plain = self._members is None
        if self._members is not None:
            self._members.start = start.member
        else:
            file.seek(start.begin)
        self._is_start = is_start and start.number == 1
        self._to_skip = 0 if is_plain else start.begin
        """Bytes still to be unpacked before the first line."""
        self._reached = start.begin if is_plain else 0
        """Position behind what was read so far: in the unpacked bytes, of a plain file in the file."""
        self._starts = deque([(start.member, 0)])
        """Offset in the file, and position, of the members that ``place`` and ``rest`` may be in."""
        self._begin = start.begin
        self._end = start.begin
        """Positions: where the current line begins, and behind the last line that had its newline."""
        self._number = self._next = start.number
        """Of the current line, and of the line behind ``_end``."""
        self.newlines = 0
        """Behind the lines that were yielded, and in the blanks between them."""
        self.ends_whole = True
        """Whether what was read so far ends with a newline."""

    @property
    def is_packed(self) -> bool:
        """Tells whether the file is compressed."""
        return self._members is not None

    @property
    def place(self) -> Place:
        """The place of the line that was yielded last."""
        return self._place(self._begin, self._number)

    @property
    def rest(self) -> Place:
        """Offset at which reading continues when the file has grown: after the last line that ends with a newline.

        What was yielded with this number or a higher one lacked its end, or was damaged, and is yielded anew then.
        """
        return self._place(self._end, self._next)

    def _place(self, position: int, number: int) -> Place:
        member, start = next(one for one in reversed(self._starts) if one[1] <= position)
        return Place(member, position - start, number)

    def __iter__(self) -> Iterator[tuple[int, bytes | Damaged]]:
        for number, line in self._split():
            if number == 1 and self._is_start and isinstance(line, bytes) and line.startswith(_BYTE_ORDER_MARK):
                whole, line = len(line), line.removeprefix(_BYTE_ORDER_MARK).strip()
                self._begin += whole - len(line)
            if line:
                yield number, line

    def _counted(self) -> Iterator[bytes | Damaged | None]:
        """Yields the contents in parts of any size; None after each compressed member."""
        for part in iter(partial(self._file.read, _BLOCK), b"") if self._members is None else self._members.parts():
            if isinstance(part, bytes) and part:
                if self._members is not None and self._members.start != self._starts[-1][0]:
                    while len(self._starts) > 1 and self._starts[1][1] <= self._end:
                        self._starts.popleft()
                    self._starts.append((self._members.start, self._reached))
                self._reached += len(part)
                if self._to_skip:
                    skipped = min(self._to_skip, len(part))
                    self._to_skip, part = self._to_skip - skipped, part[skipped:]
                self.ends_whole = part.endswith(b"\n")
            yield part

    def _split(self) -> Iterator[tuple[int, bytes | Damaged]]:
        """Splits parts into numbered lines. An incomplete line before a damaged place counts as part of the damage."""
        number, last_member = self._number, 0
        pending = _Pending()
        for part in self._counted():
            if part is None:
                last_member = pending.length
                continue
            if isinstance(part, Damaged):
                self._number = number
                yield number, part
                number, pending, last_member = number + 1, _Pending(), 0
                continue
            at, base = 0, self._reached - len(part)
            while at < len(part):
                if not pending.length:
                    # Blank lines are skipped together: one at a time, a file of nothing else would take very long.
                    blank = _BLANK.match(part, at)
                    start, at = at, at if blank is None else blank.end()
                    blanks = part.count(b"\n", start, at)
                    number, self.newlines = number + blanks, self.newlines + blanks
                    self._begin = base + at
                end = part.find(b"\n", at)
                if end < 0:
                    # Not where a blank ends the part: a line would seem to begin before the blanks that follow.
                    if at < len(part):
                        pending.add(part[at:])
                    break
                self.newlines += 1
                self._number, self._next, self._end = number, number + 1, base + end + 1
                if pending.length:
                    pending.add(part[at:end])
                    yield number, pending.line(last_member)
                    pending = _Pending()
                else:
                    yield number, part[at:end].rstrip()
                number, last_member, at = number + 1, 0, end + 1
        if pending.length:
            self._number = number
            yield number, pending.line(last_member)


class LineStore:
    """Lines that are kept unpacked in a file, because they are far from the place where unpacking begins.

    Args:
        opened: opens the file to append to it, once there is a line.
    """

    def __init__(self, opened: Callable[[], BinaryIO]) -> None:
        self._opened = opened
        self._file: BinaryIO | None = None

    def keep(self, line: bytes, number: int) -> Place:
        """Keeps a line; returns its place, for ``line_at``."""
        if self._file is None:
            self._file = self._opened()
        begin = self._file.tell()
        self._file.write(line)
        self._file.flush()
        return Place(IN_STORE, begin, number)

    def opened(self) -> BinaryIO:
        """The file, once more, to read from it."""
        assert self._file is not None
        return os.fdopen(os.dup(self._file.fileno()), "rb")

    def close(self) -> None:
        """Closes the file. A second call does nothing."""
        if self._file is not None:
            self._file.close()


_ID = re.compile(rb'"id":("(?:[^"\\]|\\.)*")')
HEAD_BYTES = 4096
"""Bytes of a line in which its id is looked for: it is one of the first fields."""


def id_of(line: bytes) -> str | None:
    """The id of the trajectory whose line begins so; None where it cannot be found."""
    match = _ID.search(line[:HEAD_BYTES])
    try:
        return None if match is None else str(orjson.loads(match[1]))
    except orjson.JSONDecodeError:
        return None


def line_at(path: str, place: Place, length: int, store: Callable[[], BinaryIO] | None = None) -> bytes:
    """The bytes of one line; of a compressed file, the member that it begins in is unpacked up to its end.

    Args:
        store: opens the file of a ``LineStore``, where lines may be kept in one.

    Raises:
        OSError: the file cannot be read.
        EOFError: it has no such line any more.
    """
    kept = store() if store is not None and place.member == IN_STORE else None
    with kept or open_binary(path) as file:
        members = members_of(file, path) if kept is None else None
        if members is None:
            file.seek(place.begin)
            found = [file.read(length)]
        else:
            members.start = place.member
            found = _window(members.parts(), place.begin, place.begin + length)
    line = b"".join(found)
    if len(line) != length:
        raise EOFError(f"{path}, line {place.number}: the file was changed, and the line is no longer where it was")
    return line


def _window(parts: Iterator[bytes | Damaged | None], begin: int, end: int) -> list[bytes]:
    """The bytes from ``begin`` to ``end`` of what the parts hold together."""
    found, reached = [], 0
    for part in parts:
        if isinstance(part, bytes):
            found.append(part[max(0, begin - reached) : end - reached])
            reached += len(part)
        if reached >= end or isinstance(part, Damaged):
            break
    return found


class _Pending:
    """A line that is not complete yet. Kept in one piece: a list of pieces would have to be copied into one."""

    __slots__ = ("_buffer", "_problem", "length")

    def __init__(self) -> None:
        self._buffer: BytesIO | None = None
        self._problem: tuple[str, str] | None = None
        self.length = 0
        """Bytes so far."""

    def add(self, piece: bytes) -> None:
        """Appends bytes. Of a line that is too long none are kept."""
        if self._buffer is None:
            self._buffer = BytesIO()
        self.length += len(piece)
        if self._problem is not None:
            return
        self._buffer.write(piece)
        begin = self._buffer.getbuffer()[:4].tobytes() if self.length > _LONGEST_FOREIGN else b"{"
        if not begin.startswith((b"{", _BYTE_ORDER_MARK + b"{")):
            self._problem = "expected a line of JSON that begins with {, got a long one that does not", "not-json"
        elif self.length > LONGEST_LINE:
            self._problem = f"expected a line of at most {LONGEST_LINE} bytes, got a longer one", "line-too-long"
        if self._problem is not None:
            self._buffer = BytesIO()

    def line(self, last_member: int) -> bytes | Damaged:
        """Returns what was added, as a line; ``last_member``: offset of its last compressed member."""
        if self._problem is not None:
            return Damaged(*self._problem)
        line = b"" if self._buffer is None else self._buffer.getvalue().rstrip()
        if 0 < last_member < len(line):
            line = SplitLine(line)
            line.last_member_offset = last_member
        return line


# The end of a file


def is_packed(file: BinaryIO) -> bool:
    """True for a file with gzip or zstd, by its first bytes. Its place is kept."""
    before = file.tell()
    file.seek(0)
    magic = file.read(4)
    file.seek(before)
    return is_compressed(magic)


def begin_of_last(file: BinaryIO, count: int, end: int) -> int:
    """The offset at which the last lines of a plain file before ``end`` begin; 0 where there are fewer.

    Args:
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
    """Finds the offset at which the last whole line ends, from an offset at which one begins.

    Of a compressed file it is the end of the last whole member: our writers put a line in each.

    Args:
        path: for the message where zstandard is missing.
    """
    members = members_of(file, path)
    if members is None:
        return end_of_lines(file, begin)
    members.start = begin
    for part in members.parts():
        if isinstance(part, Damaged):
            # Damaged, not unfinished: given to the reader, which reports it and goes on behind it.
            return members.start if part.is_cut else file.seek(0, os.SEEK_END)
    return members.start


def end_of_lines(file: BinaryIO, begin: int) -> int:
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


class FilePart(io.RawIOBase):
    """The bytes [begin, end) of a file, as a file of its own; ``end`` None: to its end.

    Args:
        file: open; closed with the part.
    """

    def __init__(self, file: BinaryIO, begin: int, end: int | None) -> None:
        self._file = file
        self._begin = begin
        self._end = file.seek(0, os.SEEK_END) if end is None else end
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
