"""The last trajectories of files, and those that are written while one looks."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, cast

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import is_address, open_binary
from rollout_trace.file.lines import FilePart, begin_of_last, end_of_whole, is_packed, newlines_before
from rollout_trace.file.notes import load_notes
from rollout_trace.file.reader import TrajectoryReader, expand_paths

_MORE = 4
"""Times as many lines are read where too few of the last ones were wanted."""
_MARK = 256
"""Bytes at the beginning and before the end of what was read, by which a file that was written anew is noticed."""
_LINE = re.compile(r", line (\d+)")


class Line(NamedTuple):
    """A line that was read."""

    data: bytes
    """Without its newline and without notes."""
    trajectory: Trajectory
    """With notes."""


class Lines:
    """Reads lines of files, of the trajectories that are wanted (None: all), and keeps what could not be read."""

    def __init__(self, where: Callable[[Trajectory], bool] | None) -> None:
        self._where = where
        self.problems: list[FormatError] = []

    def last(self, path: str, count: int, *, end: int | None = None) -> list[Line]:
        """The last trajectories of a file, or of its begin, in their order. Plain files are read from their end."""
        with open_binary(path) as file:
            size = file.seek(0, os.SEEK_END) if end is None else end
            is_whole = is_address(path) or is_packed(file)
        lines, kept = count, self.problems
        while True:
            self.problems = []
            with open_binary(path) as file:
                begin = 0 if is_whole else begin_of_last(file, lines, size)
            found = deque(self.between(path, begin, size), maxlen=count)
            if begin == 0 or len(found) >= count:
                self.problems = kept + self.problems
                return list(found)
            lines *= _MORE

    def between(self, path: str, begin: int, end: int) -> Iterator[Line]:
        """The trajectories between two offsets of a file, at which lines begin."""
        reader = TrajectoryReader([path], "skip", "keep")
        notes = None if begin == end else load_notes(path, self.problems.append)
        with open_binary(path) as file:
            part = cast("BinaryIO", FilePart(file, begin, end))
            for line in reader.read_lines(path, file=part):
                if notes is not None:
                    notes.apply(line.trajectory)
                if self._where is None or self._where(line.trajectory):
                    yield Line(line.data, line.trajectory)
        if reader.skipped:
            with open_binary(path) as file:
                before = newlines_before(file, begin) if begin and not is_packed(file) else 0
            self.problems += [_moved(error, before) for error in reader.skipped]


def _moved(error: FormatError, by: int) -> FormatError:
    """An error whose line is counted from the beginning of the file."""
    if not by:
        return error
    return FormatError(_LINE.sub(lambda match: f", line {int(match[1]) + by}", str(error), count=1))


def last_of(paths: Iterable[str], count: int, lines: Lines) -> list[Line]:
    """The last trajectories of several files, as if they were one."""
    found: list[Line] = []
    for path in reversed(list(paths)):
        if len(found) >= count:
            break
        found = lines.last(path, count - len(found)) + found
    return found


class _Place(NamedTuple):
    """The position up to which a file was read."""

    identity: tuple[int, int]
    end: int
    mark: bytes
    """The first bytes, and those before ``end``."""


class Follower:
    """Files that need not exist yet, grow, or are replaced; of a folder or a pattern also new ones."""

    def __init__(self, paths: Iterable[str], lines: Lines) -> None:
        self._paths = list(paths)
        self._lines = lines
        self._places: dict[str, _Place] = {}

    def begin(self, count: int) -> list[Line]:
        """Returns the last trajectories written so far. ``more`` continues after them."""
        files = self._files()
        self._places = {path: place for path in files if (place := self._now(path, 0)) is not None}
        found: list[Line] = []
        for path in reversed(files):
            if path in self._places and len(found) < count:
                found = self._lines.last(path, count - len(found), end=self._places[path].end) + found
        return found

    def more(self) -> list[Line]:
        """Returns what was written since the last time; incomplete lines are left for the next time."""
        found: list[Line] = []
        files = self._files()
        for path in list(self._places):
            if path not in files:
                # A file of this name that comes later is another one.
                del self._places[path]
        for path in files:
            begin = self._begin(path)
            place = self._now(path, begin)
            if place is None:
                self._places.pop(path, None)
                continue
            self._places[path] = place
            if place.end > begin:
                found += self._lines.between(path, begin, place.end)
        return found

    def _files(self) -> list[str]:
        files: dict[str, None] = {}
        for path in self._paths:
            try:
                files.update(dict.fromkeys(expand_paths(path)))
            except FileNotFoundError:
                # Not yet.
                continue
        return list(files)

    def _begin(self, path: str) -> int:
        """Where to go on: 0 for a file that took the place of the one that was read."""
        place = self._places.get(path)
        if place is None:
            return 0
        try:
            with open(path, "rb") as file:
                is_same = _place(file, place.end) == place
        except FileNotFoundError:
            return 0
        return place.end if is_same else 0

    @staticmethod
    def _now(path: str, begin: int) -> _Place | None:
        """How far there are whole lines from an offset on; None where the file is gone."""
        try:
            with open(path, "rb") as file:
                return _place(file, end_of_whole(file, begin, path))
        except FileNotFoundError:
            return None


def _place(file: BinaryIO, end: int) -> _Place:
    status = os.fstat(file.fileno())
    file.seek(0)
    first = file.read(min(end, _MARK))
    file.seek(max(0, end - _MARK))
    # The end of what was read: a file that is shorter now has less there.
    return _Place((status.st_dev, status.st_ino), end, first + file.read(min(end, _MARK)))
