"""Reads trajectories from files, one line at a time."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, TypeAlias

from rollout_trace import guard
from rollout_trace.data.user_values import brief
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import (
    has_magic,
    is_address,
    is_history_file,
    join,
    matching,
    names_in,
    refuse_special_file,
    shown,
    to_local,
)
from rollout_trace.file.decode import build, parse, parse_restored
from rollout_trace.file.line_format import BadLine, at_any_depth
from rollout_trace.file.lines import Damaged, NumberedLines, SplitLine, lines
from rollout_trace.file.notes import Notes, SharedNotes, is_notes_file, load_notes, notes_path
from rollout_trace.file.shards import SUFFIXES, lines_among

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.parallel import Workers
    from rollout_trace.file.records import NoteRecord

PathLike: TypeAlias = "str | os.PathLike[str]"
OnError: TypeAlias = Literal["raise", "skip"]
ReadMedia: TypeAlias = Literal["restore", "keep"]


def read(
    path: PathLike | Iterable[PathLike],
    *,
    on_error: OnError = "raise",
    media: ReadMedia = "restore",
    workers: int = 1,
) -> TrajectoryReader:
    """Returns an iterator over the trajectories of a file, a folder, an address, a pattern, or of a list of these.

    Lines are read lazily. Notes written by ``annotate`` are applied; a file's notes are read together with its first
    line.

    Args:
        path: a path, a folder, a pattern such as ``runs/*.jsonl``, or an iterable of these. Or an address that fsspec
            opens, such as ``s3://bucket/run``: a file, a "folder" of files, or a pattern. In a folder, files whose
            names end with ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst`` are read, in the order of their names; subfolders
            are not. Notes files, hidden files and ``history.jsonl`` are left out. Files compressed with gzip or zstd
            are decompressed.
        on_error: ``raise``: raise at a line or note that cannot be read; ``skip``: leave it out, keep its error in the
            iterator's ``.skipped``, and log one warning at the end.
        media: ``restore``: replace references with the media in the folder ``<path>.media``; ``keep``: leave the
            references, without reading the data (see docs/file-format.md).
        workers: number of processes that read the files; 1: only this process. Less than about 128 MB of JSON is always
            read by this process, since starting others would take as long. Trajectories, their order and errors are the
            same. The processes end with the iterator, even if it is dropped early.

    Raises:
        FileNotFoundError: a path does not exist, a pattern matches nothing, or a folder has no such file.
        OSError: a path is a pipe, a socket or a device, or an address cannot be read.
        ValueError: ``on_error`` or ``media`` has another value.
        FormatError: while iterating, unless skipped: a line or a note does not match the format, or media are missing.
        ImportError: the package that opens an address is missing; or, while iterating, a file is compressed with zstd
            and the package zstandard is not installed.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is {on_error!r}; it can be "raise" or "skip".')
    if media not in ("restore", "keep"):
        raise ValueError(f'media is {media!r}; it can be "restore" or "keep".')
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"workers is {brief(workers)}; give a number of processes, such as workers=2.")
    if workers < 1:
        raise ValueError(f"workers is {workers}; give 1, to read in this process, or more.")
    return TrajectoryReader(expand_paths(path), on_error, media, workers)


class ReadLine(NamedTuple):
    """A line of a file, with its trajectory."""

    path: str
    number: int
    """From 1."""
    data: bytes
    trajectory: Trajectory
    is_whole: bool = True
    """False: ``data`` is the last member of the line, because the bytes before it are damaged."""
    note: NoteRecord | None = None
    """What was noted of the trajectory, where notes are read; ``data`` is without it."""


_ONE_AT_A_TIME = (
    "rt.read(path) yields trajectories one at a time: `for trajectory in rt.read(path)`, next(rt.read(path)), or "
    "list(rt.read(path)) where all of them fit into memory."
)


class TrajectoryReader(Iterator["Trajectory"]):
    """Iterates once over the trajectories of files. ``read`` returns it."""

    def __init__(self, paths: list[str], on_error: OnError, media: ReadMedia = "restore", workers: int = 1) -> None:
        self.paths = paths
        self.skipped: list[FormatError] = []
        """One error per line left out so far."""
        self._on_error = on_error
        self._media = media
        self._has_trajectories = False
        """Whether the current file has had a line with a trajectory so far."""
        self._foreign_errors: list[tuple[int, FormatError]] = []
        """Errors that replace those at these indices of ``skipped``, if the current file has no trajectory at all."""
        self._notes = _NotesOfFiles(paths, self.damaged)
        self._trajectories = self._read_files(workers)

    def __iter__(self) -> TrajectoryReader:
        return self

    def __next__(self) -> Trajectory:
        return next(self._trajectories)

    if not TYPE_CHECKING:  # For type checkers there are no such methods.

        def __getitem__(self, at: object) -> None:
            raise TypeError(_ONE_AT_A_TIME)

        def __getattr__(self, name: str) -> None:
            raise AttributeError(f"there is no {name!r} here: {_ONE_AT_A_TIME}")

    def _read_files(self, workers: int) -> Iterator[Trajectory]:
        # Not before the first one is asked for.
        pool = None
        if workers != 1:
            from rollout_trace.file.parallel import Workers, pays_off

            if pays_off(self.paths):
                pool = Workers(self.paths, workers, has_media=self._media == "restore")
        try:
            for at, path in enumerate(self.paths):
                notes = self._notes.of(path)
                here = (line.trajectory for line in self.read_lines(path))
                for trajectory in here if pool is None else self._read_parsed(path, at, pool):
                    if notes is not None:
                        notes.apply(trajectory)
                    yield trajectory
                self._notes.was_read(path)
        finally:
            if pool is not None:
                pool.close()
        if self.skipped:
            count = len(self.skipped)
            lines_were = "line could not be read and was" if count == 1 else "lines could not be read and were"
            guard.warn(f"{count} {lines_were} skipped; the first: {self.skipped[0]}")
        self._notes.warn_of_unmatched(has_skipped=bool(self.skipped))

    def _read_parsed(self, path: str, at: int, pool: Workers) -> Iterator[Trajectory]:
        """The trajectories of a file, of lines that other processes have parsed."""
        from rollout_trace.file.parallel import line_trajectory

        last = 0
        for line in pool.lines(at):
            try:
                found = None if line is None else line_trajectory(line[1])
            except (BadLine, RecursionError):
                pool.skip(at)
                found = None
            if line is None or found is None:
                # From here on by this process, so that every error is the one that it reports.
                yield from (one.trajectory for one in self.read_lines(path, after=last))
                return
            last = line[0]
            yield found

    def read_noted_lines(self, open_file: Callable[[str], BinaryIO]) -> Iterator[ReadLine]:
        """Yields the lines of all files with their trajectories. Notes are applied to these, not to ``data``.

        Errors of skipped lines are in ``skipped``; notes that match nothing are logged as a warning.
        """
        for path in self.paths:
            notes = self._notes.of(path)
            with open_file(path) as file:
                for line in self.read_lines(path, file=file):
                    if notes is None:
                        yield line
                        continue
                    notes.apply(line.trajectory)
                    yield line._replace(note=notes.get(line.trajectory.id))
            self._notes.was_read(path)
        self._notes.warn_of_unmatched(has_skipped=bool(self.skipped))

    def read_lines(self, path: str, *, after: int = 0, file: BinaryIO | None = None) -> Iterator[ReadLine]:
        """Yields the lines of one file with their trajectories, without applying notes.

        Args:
            after: number of a line with a trajectory; reading starts after it.
            file: the file, open at its start; None: it is opened here.
        """
        self._has_trajectories, self._foreign_errors = after > 0, []
        for number, line in lines(path) if file is None else NumberedLines(file, path):
            if number > after:
                yield from self._read_line(path, number, line)
        for at, error in () if self._has_trajectories else self._foreign_errors:
            self.skipped[at] = error

    def _read_line(self, path: str, number: int, line: bytes | Damaged) -> Iterator[ReadLine]:
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
                yield from self._read_last_member(path, number, line)
        else:
            self._has_trajectories = True
            yield ReadLine(path, number, line, trajectory)  # type: ignore[arg-type]  # Damaged lines were refused.

    def _read_last_member(self, path: str, number: int, line: SplitLine) -> list[ReadLine]:
        """The trajectory of the last member, if any.

        The member before it may be damaged without its newline: the line of the next one must not be lost.
        """
        data = line.last_member()
        try:
            found = _parse_line(path, number, data, self._media)
        except FormatError:
            return []
        self._has_trajectories = True
        return [ReadLine(path, number, data, found, is_whole=False)]

    def damaged(self, error: FormatError) -> None:
        """Raises the error of a line or note, or keeps it in ``skipped``."""
        if self._on_error == "raise":
            raise error
        self.skipped.append(error)


class _NotesOfFiles(SharedNotes["Notes | None"]):
    """The notes of the files of one reader."""

    def __init__(self, paths: list[str], damaged: Callable[[FormatError], object]) -> None:
        super().__init__(paths, lambda path: load_notes(path, damaged))
        self._unmatched: list[str] = []
        self._counts: Counter[str] = Counter()

    def was_read(self, path: str) -> Notes | None:
        notes = super().was_read(path)
        unmatched = [] if notes is None else notes.unmatched()
        self._counts[notes_path(path)] += len(unmatched)
        self._unmatched += unmatched[: max(0, 3 - len(self._unmatched))]
        return notes

    def warn_of_unmatched(self, *, has_skipped: bool) -> None:
        count = sum(self._counts.values())
        if not count:
            return
        where = ", ".join([path for path, found in self._counts.items() if found][:3])
        more = ", ..." if count > len(self._unmatched) else ""
        perhaps = " (perhaps in the lines that were skipped)" if has_skipped else ""
        matches = f"1 note in {where} matches" if count == 1 else f"{count} notes in {where} match"
        guard.warn(f"{matches} nothing in the files read{perhaps}: {', '.join(self._unmatched)}{more}")


def _parse_line(path: str, number: int, line: bytes | Damaged, media: ReadMedia) -> Trajectory:
    place = f"{path}, line {number}"
    if isinstance(line, Damaged):
        raise FormatError(f"{place}: {line}")
    try:
        parsed = at_any_depth(parse, line) if media == "keep" else at_any_depth(parse_restored, line, path)
        return at_any_depth(build, parsed)
    except BadLine as error:
        raise error.at(place) from error


def _foreign_file_error(path: str, line: bytes | Damaged, error: FormatError) -> FormatError:
    """The error to report if no line of the file is a trajectory: it names the file as the mistake, not the line."""
    if isinstance(line, Damaged) or b'"rollout-trace/' in line:
        return error
    foreign = FormatError(
        f"{path} is not a rollout file: {error}. `rollout-trace import --list` names the tools whose files can be "
        "imported."
    )
    foreign.__cause__ = error.__cause__
    return foreign


def expand_paths(path: PathLike | Iterable[PathLike]) -> list[str]:
    """The files that a path, a folder, an address, a pattern, or an iterable of these names.

    Raises:
        TypeError: it is none of these.
        FileNotFoundError: there are none.
        OSError: a path is a pipe, a socket or a device, or an address cannot be read.
    """
    if isinstance(path, (str, os.PathLike)):
        return _expand(to_local(path))
    paths = list(path) if isinstance(path, Iterable) and not isinstance(path, bytes) else [path]
    for one in paths:
        if not isinstance(one, (str, os.PathLike)):
            raise TypeError(
                f'expected the path of a file, such as "rollouts.jsonl", a folder, a pattern, or a list of these, '
                f"got {brief(one)}."
            )
    found = [file for one in paths for file in _expand(to_local(one))]
    only = "has only files of notes" if found else "is empty"
    # Left out of lists too: a shell's `*.jsonl` names the notes beside the files that they belong to.
    return _with_trajectories(found, f"the list of files to read {only}: name at least one file of trajectories.")


_NONE_IN = f"there is no file of trajectories in %s: none ends with {', '.join(SUFFIXES)}."
_NONE_MATCHES = "no file matches the pattern %s."


def _expand(path: str) -> list[str]:
    if is_address(path):
        return _at_address(path)
    if os.path.isdir(path):
        names = lines_among(os.listdir(path))
        files = [file for name in names if os.path.isfile(file := os.path.join(path, name))]
        return _with_trajectories(files, _NONE_IN % path)
    if os.path.exists(path):
        refuse_special_file(path)
        return [path]
    # Not a pattern of a shell, {a,b}.jsonl.
    if path.lstrip().startswith("{") and ":" in path:
        raise FileNotFoundError(f"expected the path of a file, got a line of one: {brief(path)}. Give the path itself.")
    if not has_magic(path):
        raise FileNotFoundError(f"there is no file {path}.")
    files = [file for file in sorted(glob.glob(path, recursive=True)) if not os.path.isdir(file)]
    return _with_trajectories(files, _NONE_MATCHES % path)


def _at_address(address: str) -> list[str]:
    if has_magic(address):
        return _with_trajectories(matching(address), _NONE_MATCHES % shown(address))
    names = names_in(address)
    if names is None:
        return [address]
    return _with_trajectories([join(address, name) for name in lines_among(names)], _NONE_IN % shown(address))


def _with_trajectories(files: list[str], none: str) -> list[str]:
    """Leaves out notes and histories.

    Raises:
        FileNotFoundError: nothing else is among the files; ``none`` is the message.
    """
    found = [file for file in files if not (is_notes_file(file) or is_history_file(file))]
    if not found:
        raise FileNotFoundError(none)
    return found
