"""Reads trajectories back, one line at a time."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace import guard
from rollout_trace.errors import FormatError
from rollout_trace.file.decode import BadLine, decode
from rollout_trace.file.kinds import refuse_no_file
from rollout_trace.file.lines import Damaged, Joined, lines
from rollout_trace.file.media import MissingMedia, folder_of, restored

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

PathLike: TypeAlias = "str | os.PathLike[str]"
OnError: TypeAlias = Literal["raise", "skip"]
ReadMedia: TypeAlias = Literal["restore", "keep"]


def read(
    path: PathLike | Iterable[PathLike], *, on_error: OnError = "raise", media: ReadMedia = "restore"
) -> TrajectoryReader:
    """Gives the trajectories of a file, of all files a pattern (``runs/*.jsonl``) matches, or of a list of these.

    Lines are read as they are asked for. ``.gz`` and ``.zst`` are decompressed. With ``on_error="skip"`` lines that
    cannot be read are left out, kept as errors in ``.skipped`` of what is returned, and reported in one log line.

    Media that were moved to the folder ``<path>.media`` are put back; with ``media="keep"`` references stay in their
    places, for those who do not want the data (see docs/file-format.md).

    Raises:
        FileNotFoundError: a path does not exist, or a pattern matches nothing.
        OSError: a path is a pipe or a device.
        FormatError: while iterating, unless skipped: a line is not what the format says, or its media are not there.
        ImportError: while iterating: a file is compressed with zstd and the package zstandard is not installed.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is {on_error!r}; it can be "raise" or "skip".')
    if media not in ("restore", "keep"):
        raise ValueError(f'media is {media!r}; it can be "restore" or "keep".')
    return TrajectoryReader(_files(path), on_error, media)


class TrajectoryReader(Iterator["Trajectory"]):
    """Iterates once over the trajectories of files."""

    def __init__(self, paths: list[str], on_error: OnError, media: ReadMedia = "restore") -> None:
        self.paths = paths
        self.skipped: list[FormatError] = []
        """One error for each line left out so far."""
        self._on_error = on_error
        self._media = media
        self._has_rollouts = False
        """A line of the file at hand was a trajectory."""
        self._doubts: list[tuple[int, FormatError]] = []
        """What to put among the skipped, and where, if no line of the file at hand is one."""
        self._trajectories = self._all()

    def __iter__(self) -> TrajectoryReader:
        return self

    def __next__(self) -> Trajectory:
        return next(self._trajectories)

    def _all(self) -> Iterator[Trajectory]:
        for path in self.paths:
            self._has_rollouts, self._doubts = False, []
            for number, line in lines(path):
                yield from self._of_line(path, number, line)
            for at, error in () if self._has_rollouts else self._doubts:
                self.skipped[at] = error
        if self.skipped:
            count = len(self.skipped)
            lines_were = "line could not be read and was" if count == 1 else "lines could not be read and were"
            guard.warn(f"{count} {lines_were} skipped; the first: {self.skipped[0]}")

    def _of_line(self, path: str, number: int, line: bytes | Damaged) -> Iterator[Trajectory]:
        try:
            trajectory = _trajectory(path, number, line, self._media)
        except FormatError as caught:
            error = caught if self._has_rollouts else _of_another_file(path, line, caught)
            if self._on_error == "raise":
                raise error from error.__cause__
            if error is not caught:
                self._doubts.append((len(self.skipped), error))
            self.skipped.append(caught)
            if isinstance(line, Joined):
                yield from self._behind_the_seam(path, number, line)
        else:
            self._has_rollouts = True
            yield trajectory

    def _behind_the_seam(self, path: str, number: int, line: Joined) -> list[Trajectory]:
        """The member before may be damaged, and have lost its newline: it must not swallow this one's line."""
        try:
            found = _trajectory(path, number, bytes(line[line.seam :]), self._media)
        except FormatError:
            # It was one line that went on, and it is among the skipped already.
            return []
        self._has_rollouts = True
        return [found]


def _trajectory(path: str, number: int, line: bytes | Damaged, media: ReadMedia) -> Trajectory:
    place = f"{path}, line {number}"
    if isinstance(line, Damaged):
        raise FormatError(f"{place}: {line}")
    try:
        try:
            return _decoded(path, line, media)
        except RecursionError:
            # What a line may hold does not depend on how deep in its own calls the program reads it.
            return _on_a_fresh_stack(_decoded, path, line, media)
    except (BadLine, MissingMedia) as error:
        where = f"{place}, {error}" if str(error).startswith("$") else f"{place}: {error}"
        raise FormatError(where) from error


def _of_another_file(path: str, line: bytes | Damaged, error: FormatError) -> FormatError:
    """Says first that the whole file is something else, where no line of it was a trajectory."""
    if isinstance(line, Damaged) or b'"rollout-trace/' in line:
        return error
    told = FormatError(f"{path} is no rollout file, as rt.recording() writes them: {error}")
    told.__cause__ = error.__cause__
    return told


def _decoded(path: str, line: bytes, media: ReadMedia) -> Trajectory:
    return decode(line if media == "keep" else restored(line, folder_of(path)))


def _on_a_fresh_stack(function: Callable[..., Trajectory], *args: Any) -> Trajectory:
    outcome: list[Trajectory | Exception] = []

    def work() -> None:
        try:
            outcome.append(function(*args))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="rollout_trace reader")
    thread.start()
    thread.join()
    if isinstance(outcome[0], RecursionError):
        raise BadLine("", "expected values that can be decoded, got lists or objects nested too deeply")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _files(path: PathLike | Iterable[PathLike]) -> list[str]:
    if isinstance(path, (str, os.PathLike)):
        return _matching(os.fspath(path))
    found = [file for one in path for file in _matching(os.fspath(one))]
    if not found:
        raise FileNotFoundError("the list of files to read is empty: name at least one.")
    return found


def _matching(path: str) -> list[str]:
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder: name its files, as in {os.path.join(path, '*.jsonl')!r}.")
    if os.path.exists(path):
        refuse_no_file(path)
        return [path]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"there is no file {path}.")
    found = [file for file in sorted(glob.glob(path, recursive=True)) if not os.path.isdir(file)]
    if not found:
        raise FileNotFoundError(f"no file matches the pattern {path}.")
    return found
