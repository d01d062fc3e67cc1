"""Reads trajectories from files, one line at a time."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace import guard
from rollout_trace.errors import FormatError
from rollout_trace.file.decode import BadLine, decode
from rollout_trace.file.kinds import refuse_special_file
from rollout_trace.file.lines import Damaged, SplitLine, lines
from rollout_trace.file.media import MissingMedia, folder_of, restore

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

PathLike: TypeAlias = "str | os.PathLike[str]"
OnError: TypeAlias = Literal["raise", "skip"]
ReadMedia: TypeAlias = Literal["restore", "keep"]


def read(
    path: PathLike | Iterable[PathLike], *, on_error: OnError = "raise", media: ReadMedia = "restore"
) -> TrajectoryReader:
    """Returns an iterator over the trajectories of a file, of the files that match a pattern, or of a list of these.

    Lines are read lazily.

    Args:
        path: a path, a pattern such as ``runs/*.jsonl``, or an iterable of these. Files compressed with gzip or zstd
            are decompressed.
        on_error: ``raise``: raise at a line that cannot be read; ``skip``: leave it out, keep its error in ``.skipped``
            of the iterator, and log one warning at the end.
        media: ``restore``: replace references by the media in the folder ``<path>.media``; ``keep``: leave references
            in their places, without reading the data (see docs/file-format.md).

    Raises:
        FileNotFoundError: a path does not exist, or a pattern matches nothing.
        OSError: a path is a folder, a pipe, a socket or a device.
        ValueError: ``on_error`` or ``media`` has another value.
        FormatError: while iterating, unless skipped: a line does not match the format, or its media are missing.
        ImportError: while iterating: a file is compressed with zstd and the package zstandard is not installed.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is {on_error!r}; it can be "raise" or "skip".')
    if media not in ("restore", "keep"):
        raise ValueError(f'media is {media!r}; it can be "restore" or "keep".')
    return TrajectoryReader(_expand_paths(path), on_error, media)


class TrajectoryReader(Iterator["Trajectory"]):
    """Iterates once over the trajectories of files; returned by ``read``."""

    def __init__(self, paths: list[str], on_error: OnError, media: ReadMedia = "restore") -> None:
        self.paths = paths
        self.skipped: list[FormatError] = []
        """One error per line left out so far."""
        self._on_error = on_error
        self._media = media
        self._has_trajectories = False
        """Whether the current file has had a line with a trajectory so far."""
        self._foreign_errors: list[tuple[int, FormatError]] = []
        """Errors that replace those at these indices of ``skipped``, if the current file has no trajectory at all."""
        self._trajectories = self._read_files()

    def __iter__(self) -> TrajectoryReader:
        return self

    def __next__(self) -> Trajectory:
        return next(self._trajectories)

    def _read_files(self) -> Iterator[Trajectory]:
        for path in self.paths:
            self._has_trajectories, self._foreign_errors = False, []
            for number, line in lines(path):
                yield from self._read_line(path, number, line)
            for at, error in () if self._has_trajectories else self._foreign_errors:
                self.skipped[at] = error
        if self.skipped:
            count = len(self.skipped)
            lines_were = "line could not be read and was" if count == 1 else "lines could not be read and were"
            guard.warn(f"{count} {lines_were} skipped; the first: {self.skipped[0]}")

    def _read_line(self, path: str, number: int, line: bytes | Damaged) -> Iterator[Trajectory]:
        try:
            trajectory = _parse_line(path, number, line, self._media)
        except FormatError as caught:
            error = caught if self._has_trajectories else _foreign_file_error(path, line, caught)
            if self._on_error == "raise":
                raise error from error.__cause__
            if error is not caught:
                self._foreign_errors.append((len(self.skipped), error))
            self.skipped.append(caught)
            if isinstance(line, SplitLine):
                yield from self._read_after_seam(path, number, line)
        else:
            self._has_trajectories = True
            yield trajectory

    def _read_after_seam(self, path: str, number: int, line: SplitLine) -> list[Trajectory]:
        """The trajectory of the bytes behind the seam, if any.

        The member before the seam may be damaged without its newline: the line of the next one must not be lost.
        """
        try:
            found = _parse_line(path, number, bytes(line[line.seam :]), self._media)
        except FormatError:
            # It was a single bad line in two members; its error is in `skipped` already.
            return []
        self._has_trajectories = True
        return [found]


def _parse_line(path: str, number: int, line: bytes | Damaged, media: ReadMedia) -> Trajectory:
    place = f"{path}, line {number}"
    if isinstance(line, Damaged):
        raise FormatError(f"{place}: {line}")
    try:
        try:
            return _decode_line(path, line, media)
        except RecursionError:
            # The limit counts the caller's frames too: whether a line can be read must not depend on them.
            return _on_a_fresh_stack(_decode_line, path, line, media)
    except (BadLine, MissingMedia) as error:
        where = f"{place}, {error}" if str(error).startswith("$") else f"{place}: {error}"
        raise FormatError(where) from error


def _foreign_file_error(path: str, line: bytes | Damaged, error: FormatError) -> FormatError:
    """The error to report if no line of the file is a trajectory: it names the file as the mistake, not the line."""
    if isinstance(line, Damaged) or b'"rollout-trace/' in line:
        return error
    foreign = FormatError(f"{path} is no rollout file, as rt.recording() writes them: {error}")
    foreign.__cause__ = error.__cause__
    return foreign


def _decode_line(path: str, line: bytes, media: ReadMedia) -> Trajectory:
    return decode(line if media == "keep" else restore(line, folder_of(path)))


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


def _expand_paths(path: PathLike | Iterable[PathLike]) -> list[str]:
    if isinstance(path, (str, os.PathLike)):
        return _expand_pattern(os.fspath(path))
    found = [file for one in path for file in _expand_pattern(os.fspath(one))]
    if not found:
        raise FileNotFoundError("the list of files to read is empty: name at least one.")
    return found


def _expand_pattern(path: str) -> list[str]:
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder: name its files, as in {os.path.join(path, '*.jsonl')!r}.")
    if os.path.exists(path):
        refuse_special_file(path)
        return [path]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"there is no file {path}.")
    found = [file for file in sorted(glob.glob(path, recursive=True)) if not os.path.isdir(file)]
    if not found:
        raise FileNotFoundError(f"no file matches the pattern {path}.")
    return found
