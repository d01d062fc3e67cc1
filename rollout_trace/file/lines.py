"""Reads the numbered lines of a file, plain or compressed, and goes on after damaged places."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from typing import BinaryIO, NamedTuple

from rollout_trace.file.addresses import open_binary
from rollout_trace.file.compression import Damaged as Damaged
from rollout_trace.file.compression import members_of

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PLAIN_CHUNK = 1 << 18
_BLANK = re.compile(rb"\s*")
LONGEST_LINE = 1 << 30
"""Bytes of a line, decompressed. A longer one is not read: a few KB of compressed zeros can stand for any number."""
_LONGEST_FOREIGN = 1 << 20
"""The same of a line that begins with anything but an object: it is no trajectory, whatever else it holds."""


class SplitLine(bytes):
    """A line whose bytes come from two or more compressed members."""

    seam = 0
    """Offset in the line where the last of these members begins."""


def lines(path: str, start: Place | None = None) -> Iterator[tuple[int, bytes | Damaged]]:
    """Yields number (from 1) and bytes of each line that is not blank; ``Damaged`` in place of undecodable lines.

    ``start``: where to begin; None: at the begin.
    """
    with open_binary(path) as file:
        yield from NumberedLines(file, path, start=start)


class Place(NamedTuple):
    """The place at which a line begins in a file."""

    member: int = 0
    """Offset in the file of a compressed member; 0 where the file is plain."""
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
        """The place at which reading goes on when the file has grown: behind the last line that ended with a newline.

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

    def _parts(self) -> Iterator[bytes | Damaged | None]:
        """The contents in parts of any size; None after each compressed member."""
        if self._members is None:
            return iter(partial(self._file.read, _PLAIN_CHUNK), b"")
        return self._members.parts()

    def _counted(self) -> Iterator[bytes | Damaged | None]:
        for part in self._parts():
            if isinstance(part, bytes) and part:
                if self._members is not None and self._members.start != self._starts[-1][0]:
                    self._member_began(self._members.start)
                self._reached += len(part)
                if self._to_skip:
                    skipped = min(self._to_skip, len(part))
                    self._to_skip, part = self._to_skip - skipped, part[skipped:]
                self.ends_whole = part.endswith(b"\n")
            yield part

    def _member_began(self, start: int) -> None:
        while len(self._starts) > 1 and self._starts[1][1] <= self._end:
            self._starts.popleft()
        self._starts.append((start, self._reached))

    def _split(self) -> Iterator[tuple[int, bytes | Damaged]]:
        """Splits parts into numbered lines. An incomplete line before a damaged place counts as part of the damage."""
        number, seam = self._number, 0
        pending = _Pending()
        for part in self._counted():
            if part is None:
                seam = pending.length
                continue
            if isinstance(part, Damaged):
                self._number = number
                yield number, part
                number, pending, seam = number + 1, _Pending(), 0
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
                    yield number, pending.line(seam)
                    pending = _Pending()
                else:
                    yield number, part[at:end].rstrip()
                number, seam, at = number + 1, 0, end + 1
        if pending.length:
            self._number = number
            yield number, pending.line(seam)


def line_at(path: str, place: Place, length: int) -> bytes:
    """The bytes of one line; of a compressed file, the member that it begins in is unpacked up to its end.

    Args:
        path: of the file.
        place: of the line.
        length: of the line, in bytes.

    Raises:
        OSError: the file cannot be read.
        EOFError: it has no such line any more.
    """
    with open_binary(path) as file:
        members = members_of(file, path)
        if members is None:
            file.seek(place.begin)
            found = [file.read(length)]
        else:
            members.start = place.member
            found = _window(members.parts(), place.begin, place.begin + length)
    line = b"".join(found)
    if len(line) != length:
        raise EOFError(f"{path}, line {place.number}: the file was changed, the line is not where it was")
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
    """A line of which more is to come. Kept in one piece: a list of pieces would have to be copied into one."""

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

    def line(self, seam: int) -> bytes | Damaged:
        """Returns what was added, as a line; ``seam``: offset of its last compressed member."""
        if self._problem is not None:
            return Damaged(*self._problem)
        line = b"" if self._buffer is None else self._buffer.getvalue().rstrip()
        if 0 < seam < len(line):
            line = SplitLine(line)
            line.seam = seam
        return line
