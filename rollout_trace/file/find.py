"""Finds trajectories of files without decoding the other ones: by head, id, task, position or place."""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias, TypeVar, cast

from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import is_address, open_binary
from rollout_trace.file.compression import is_compressed
from rollout_trace.file.decode import decode, is_whole
from rollout_trace.file.line_format import BadLine, LineFormat, at_any_depth
from rollout_trace.file.lines import (
    FAR,
    Damaged,
    LineStore,
    NumberedLines,
    Place,
    SplitLine,
    begin_of_last,
    id_of,
    line_at,
    lines,
    newlines_before,
)
from rollout_trace.file.notes import load_notes
from rollout_trace.file.records import SCHEMA, Record

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


class TaskHead(Record):
    """The id of a task."""

    id: str | None = None


class TrajectoryHead(Record):
    """The fields by which a trajectory is looked up."""

    schema: str
    id: str
    rollout_index: int | None = None
    task: TaskHead | None = None


Head = TypeVar("Head", bound=TrajectoryHead)
HEAD = LineFormat(SCHEMA, TrajectoryHead)


def heads(
    path: str, damaged: Callable[[FormatError], object], form: LineFormat[Head], start: Place | None = None
) -> Iterator[tuple[bytes, Head]]:
    """The lines of the trajectories of a file with their heads. The rest of a line is not checked.

    Args:
        damaged: called with the error of each line that is no trajectory.
        form: the fields of a head.
        start: where to begin; None: at the begin.
    """
    for number, line in lines(path, start):
        try:
            yield _decode(line, form)
        except BadLine as error:
            damaged(error.at(place_of(path, number)))
            if isinstance(line, SplitLine):
                # The bytes before its last member may be damaged without their newline.
                try:
                    yield _decode(line.last_member(), form)
                except BadLine:
                    continue


def _decode(line: bytes | Damaged, form: LineFormat[Head]) -> tuple[bytes, Head]:
    if isinstance(line, Damaged):
        raise BadLine("", str(line), line.code)
    return line, at_any_depth(form.decode, line)


_SAFE = re.compile(rb"[A-Za-z0-9_.:/ #@+=,-]+")
"""Characters that nearly every writer of JSON leaves as they are; where nothing is found, all lines are decoded."""
_POSITION = re.compile(r"[+-]?[0-9]{1,6}")
_BLOCK = 1 << 20
_HEAD = re.compile(rb'\{"schema":"%s",(?:"media":\{"mark":"[a-z0-9-]*"\},)?"id":"([^"\\\n]*)"' % SCHEMA.encode())
"""How this library writes the beginning of a line."""
_LONGEST_HEAD = 1024
_SHORT = 4096
"""Bytes of a line, on average, from which on it is quicker to look at the beginnings of lines than at all bytes."""


class FoundHead(TrajectoryHead):
    """The fields by which a trajectory is found, and those that a list of several shows."""

    name: str = "agent"
    episode_id: str | None = None
    parent_id: str | None = None
    parent_step_id: str | None = None
    group_id: str | None = None
    status: str = "completed"
    started_at: datetime | None = None


class Found(NamedTuple):
    """A line with a trajectory."""

    path: str
    offset: int | None
    """Of the line in its file, in bytes. None: the file is compressed, or at an address."""
    number: int | None
    """Of the line, from 1; None where ``offset`` is known."""
    line: bytes
    head: FoundHead

    @property
    def place(self) -> str:
        """File and line, for a message."""
        number = self.number if self.offset is None else _line_number(self.path, self.offset)
        return place_of(self.path, number)

    def load(self) -> Trajectory:
        """The trajectory, with its notes. References to media stay references.

        Raises:
            FormatError: the line does not match the format.
        """
        try:
            trajectory = at_any_depth(decode, self.line)
        except BadLine as error:
            raise error.at(self.place) from error
        notes = load_notes(self.path, lambda error: None)
        if notes is not None:
            notes.apply(trajectory)
        return trajectory


Hit: TypeAlias = "tuple[int | None, int | None, bytes]"
"""Offset, number and bytes of a line."""
_FORMAT = LineFormat(SCHEMA, FoundHead)


def position_of(wanted: str) -> int | None:
    """Returns the position that a text names (``3``, ``-1``); None if it is not a position."""
    return int(wanted) if _POSITION.fullmatch(wanted) else None


def at_position(
    paths: Sequence[str], position: int, damaged: Callable[[FormatError], object] = lambda error: None
) -> Found | None:
    """The trajectory at a position among those of all files: 1 is the first, -1 the last. None: there are fewer.

    Args:
        position: not 0.
        damaged: called with the error of each line that is no trajectory; it has no position.
    """
    if position > 0:
        for path in paths:
            for hit in _all_lines(path):
                found = found_in(path, hit, damaged)
                if found is not None:
                    position -= 1
                    if not position:
                        return found
        return None
    for path in reversed(paths):
        for found in _backwards(path, damaged):
            position += 1
            if not position:
                return found
    return None


def number_of_lines(paths: Sequence[str], most: int) -> int | None:
    """Number of lines that are not blank; None where the files have more than ``most`` bytes, or are at an address."""
    if any(map(is_address, paths)) or sum(map(os.path.getsize, paths)) > most:
        return None
    return sum(not line.isspace() for path in paths for _, _, line in _all_lines(path))


def with_id(paths: Sequence[str], wanted: str) -> list[Found]:
    """The trajectory of this id; else those whose ids begin so; else those of the task of this id.

    The first line is taken where several have one id.
    """
    quick = _with_beginning(paths, wanted)
    if quick:
        return quick
    begin: dict[str, Found] = {}
    of_task: dict[str, Found] = {}
    for is_thorough in (False, True):
        needle = b"" if is_thorough else _needle(wanted)
        if is_thorough and not _needle(wanted):
            break
        for path in paths:
            for hit in _lines_with(path, needle):
                found = found_in(path, hit)
                if found is None:
                    continue
                head = found.head
                if head.id == wanted:
                    return [found]
                if head.id.startswith(wanted):
                    begin.setdefault(head.id, found)
                elif head.task is not None and head.task.id == wanted:
                    of_task.setdefault(head.id, found)
        if begin or of_task:
            break
    return list((begin or of_task).values())


def _with_beginning(paths: Sequence[str], wanted: str) -> list[Found]:
    """Finds what ``with_id`` returns for an id, or its beginning. Of each line only the beginning is looked at.

    Empty where there is none, and where a line does not begin as this library writes it.
    """
    text = wanted.encode("utf-8", "replace")
    begin: dict[str, Found] = {}
    for path in paths:
        if not is_plain(path):
            return []
        for offset, own in _ids_of(path):
            if own is None:
                return []
            if not own.startswith(text):
                continue
            with open(path, "rb") as file:
                file.seek(offset)
                found = found_in(path, (offset, None, stripped(file.readline())))
            if found is None:
                continue
            if found.head.id == wanted:
                return [found]
            begin.setdefault(found.head.id, found)
    return list(begin.values())


def _ids_of(path: str) -> Iterator[tuple[int, bytes | None]]:
    """Offset of each line, and the id that it begins with. None, and the end: it begins otherwise, or lines are so
    short that a search of the whole file is quicker."""
    block, base, count, is_inside = bytearray(_BLOCK), 0, 0, False
    with open(path, "rb", buffering=0) as file, open(path, "rb", buffering=0) as again:
        while size := file.readinto(block):
            at = block.find(b"\n", 0, size) + 1 if is_inside else 0
            is_inside = is_inside and not at
            while at < size and not is_inside:
                head = _HEAD.match(block, at, size)
                if head is None and size - at < _LONGEST_HEAD:
                    # The block ends inside it.
                    again.seek(base + at)
                    head = _HEAD.match(again.read(_LONGEST_HEAD))
                count += 1
                if head is None or count * _SHORT > base + _BLOCK:
                    yield base + at, None
                    return
                yield base + at, head[1]
                end = block.find(b"\n", at, size)
                at, is_inside = end + 1, end < 0
            base += size


def of_episode(paths: Sequence[str], episode_id: str) -> list[Found]:
    """The trajectories of an episode, in the order of their lines."""
    return [one for one in _naming(paths, episode_id) if one.head.episode_id == episode_id]


def of_id(paths: Sequence[str], id: str) -> list[Found]:
    """All trajectories of an id, in the order of their lines: a file may have several."""
    return [one for one in _naming(paths, id) if one.head.id == id]


def _naming(paths: Sequence[str], text: str) -> Iterator[Found]:
    found = (found_in(path, hit) for path in paths for hit in _lines_with(path, _needle(text)))
    return (one for one in found if one is not None)


def found_in(path: str, hit: Hit, damaged: Callable[[FormatError], object] = lambda error: None) -> Found | None:
    """The trajectory of a line; None where it has none, and ``damaged`` is called with why."""
    offset, number, line = hit
    try:
        head = at_any_depth(_FORMAT.decode, line)
    except BadLine as error:
        damaged(error.at(place_of(path, number if offset is None else _line_number(path, offset))))
        return None
    return Found(path, offset, number, line, head)


def stripped(line: bytes) -> bytes:
    """A line without the blanks around it, and without a byte order mark before it."""
    return line.strip().removeprefix(b"\xef\xbb\xbf").lstrip()


def place_of(path: str, number: int | None) -> str:
    """File and line, for a message."""
    return f"{path}, line {number}"


def _needle(text: str) -> bytes:
    """The longest part of a text that stands in a line as it is; lines without it need not be decoded."""
    return max(_SAFE.findall(text.encode("utf-8", "replace")), key=len, default=b"")


def is_plain(path: str) -> bool:
    """Tells whether the lines of a file can be searched in place: it is a local one, not compressed and not empty."""
    if is_address(path) or not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, "rb") as file:
        magic = file.read(4)
    return not (is_compressed(magic) or path.endswith((".gz", ".zst")))


def _all_lines(path: str) -> Iterator[Hit]:
    for number, line in lines(path):
        if not isinstance(line, Damaged):
            yield None, number, line


def _lines_with(path: str, needle: bytes) -> Iterator[Hit]:
    if not needle or not is_plain(path):
        yield from (hit for hit in _all_lines(path) if needle in hit[2])
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while (hit := data.find(needle, at)) >= 0:
            start = data.rfind(b"\n", at, hit) + 1 or at
            end = data.find(b"\n", hit)
            end = len(data) if end < 0 else end
            yield start, None, stripped(data[start:end])
            at = end + 1


def _backwards(path: str, damaged: Callable[[FormatError], object]) -> Iterator[Found]:
    """The trajectories of a file from the last one on."""
    if not is_plain(path):
        # The lines themselves would fill memory: their numbers are enough, and the file is read anew for each.
        numbers = deque(number for _, number, _ in _all_lines(path))
        for wanted in reversed(numbers):
            hit = next(hit for hit in _all_lines(path) if hit[1] == wanted)
            if (found := found_in(path, hit, damaged)) is not None:
                yield found
        return
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = begin_of_last(file, 1, end)
            file.seek(start)
            line = stripped(file.read(end - start))
            if line and (found := found_in(path, (start, None, line), damaged)) is not None:
                yield found
            end = start


def _line_number(path: str, offset: int) -> int:
    with open(path, "rb") as file:
        return newlines_before(file, offset) + 1


class IndexedLine(NamedTuple):
    """A line with a trajectory, which is read when it is asked for."""

    path: str
    at: Place
    length: int
    """In bytes."""
    store: LineStore
    head: FoundHead

    @property
    def place(self) -> str:
        """File and line, for a message."""
        return place_of(self.path, self.at.number)

    def load(self) -> Trajectory:
        """The trajectory, with its notes. Raises FormatError: the line does not match the format."""
        try:
            line = line_at(self.path, self.at, self.length, self.store.opened)
        except EOFError as error:
            raise FormatError(f"{error}.") from error
        found = found_in(self.path, (None, self.at.number, line))
        if found is None:
            raise FormatError(f"{self.place}: the line changed while it was read. Read the file again.")
        return found.load()


class LineIndex:
    """The lines of files, in their order. What takes long to read once more is kept unpacked in a temporary file."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.problems: list[FormatError] = []
        """An error for each line that is no trajectory."""
        self.lines: list[IndexedLine] = []
        self._store = LineStore(cast("Callable[[], BinaryIO]", tempfile.TemporaryFile))
        for path in paths:
            self._add(path)

    def __enter__(self) -> LineIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def _add(self, path: str) -> None:
        with open_binary(path) as file:
            numbered = NumberedLines(file, path)
            for number, line in numbered:
                if isinstance(line, Damaged):
                    self.problems.append(FormatError(f"{place_of(path, number)}: {line}"))
                    continue
                found = found_in(path, (None, number, line), self.problems.append)
                if found is not None:
                    at = numbered.place
                    if is_address(path) or (numbered.is_packed and at.begin > FAR):
                        at = self._store.keep(line, number)
                    self.lines.append(IndexedLine(path, at, len(line), self._store, found.head))


def ids_in(path: str | os.PathLike[str], wanted: Collection[str]) -> set[str]:
    """Selects the trajectories that have a complete line in a file; none if there is no file.

    Only their lines are decoded: of the others, the first bytes are looked at.

    Raises:
        OSError: the file cannot be read.
        ImportError: it is compressed with zstd and the package zstandard is not installed.
    """
    found: set[str] = set()
    for _, line in lines(os.fspath(path)) if os.path.exists(path) else ():
        if isinstance(line, Damaged):
            continue
        # A line of several members may be the rest of a killed writer's, and then a whole one.
        for part in (line, line.last_member()) if isinstance(line, SplitLine) else (line,):
            name = id_of(part)
            if name is not None and name in wanted and name not in found and is_whole(part):
                found.add(name)
    return found
