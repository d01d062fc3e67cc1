"""``merge``: several files, and their notes, as one file in which each trajectory stands once."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rollout_trace._field_docs import document_fields
from rollout_trace.data.user_values import brief
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import is_address, size_of
from rollout_trace.file.compression import compressor
from rollout_trace.file.copies import NotedLine, copy_lines, missing_media, steps_missing
from rollout_trace.file.line_format import at_any_depth
from rollout_trace.file.lines import SplitLine, lines
from rollout_trace.file.notes import SUFFIX, merge_notes, note_lines, notes_beside, notes_path
from rollout_trace.file.reader import OnError, PathLike, TrajectoryReader, expand_paths
from rollout_trace.file.records import NoteRecord
from rollout_trace.file.writer import check_path


@document_fields
@dataclass(slots=True, kw_only=True)
class MergeReport:
    """The result of ``merge``."""

    output: str
    """Path of the file that was written."""
    read: int = 0
    """Number of trajectories in the files read, including duplicates."""
    written: int = 0
    """Number of trajectories in the output."""
    doubles: int = 0
    """Number of lines left out because a later line has the same trajectory id."""
    notes: int = 0
    """Number of trajectories to which notes were applied."""
    unmatched_notes: list[str] = field(default_factory=list)
    """Ids with notes but without a trajectory in the files. Their notes are not in the output."""
    unmatched_steps: list[str] = field(default_factory=list)
    """Steps with notes that are not in their trajectory: ``step 7 of trajectory 'a'``."""
    unreadable: list[FormatError] = field(default_factory=list)
    """An error for each line and each note that could not be read and is not in the output."""

    def lines(self) -> list[str]:
        """Returns the report as lines of text."""
        found = [f"{self.written} trajectories in {self.output}, of {self.read} read"]
        if self.doubles:
            found.append(f"doubles dropped: {self.doubles}")
        found.append(f"trajectories with notes folded in: {self.notes}")
        for what, names in (
            ("a trajectory", list(map(brief, self.unmatched_notes))),
            ("their step", self.unmatched_steps),
        ):
            if names:
                more = ", ..." if len(names) > 3 else ""
                found.append(f"notes without {what}: {len(names)} ({', '.join(names[:3])}{more})")
        if self.unreadable:
            found.append(f"lines that could not be read: {len(self.unreadable)}, the first: {self.unreadable[0]}")
        return found

    def __str__(self) -> str:
        return "; ".join(self.lines())


def merge(
    paths: PathLike | Iterable[PathLike], out: PathLike, *, on_error: OnError = "raise", overwrite: bool = False
) -> MergeReport:
    """Merges several files into a new one, with notes applied and each trajectory id once.

    If several lines have the same id, the last one is kept, in its place. The notes of all files are applied, in the
    order of the files. A line without notes is copied byte for byte, together with the media it refers to. The files
    are read twice, one line at a time; ids are kept in memory, trajectories are not. The output appears under its name
    complete, or not at all; the files read are not changed. Files at an address must not contain references to media.

    Args:
        paths: as for ``read``.
        out: path of the new file. Its suffix chooses the compression, as for ``JSONLWriter``.
        on_error: ``raise``: raise at a line or note that cannot be read, and write nothing; ``skip``: leave it out and
            put its error in the report.
        overwrite: replace ``out`` if it exists.

    Raises:
        FileNotFoundError: a path does not exist, or a pattern matches nothing.
        FileExistsError: ``out`` exists, or beside it are notes that belong to none of the files read.
        ValueError: ``out`` is one of the files read, or its suffix is that of another format.
        FormatError: a line cannot be read, unless skipped, or a file was changed while it was read.
        OSError: the output cannot be written.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is {on_error!r}; it can be "raise" or "skip".')
    files = expand_paths(paths)
    target = check_path(out)
    check_output(target, files, overwrite=overwrite)
    compressor(target)  # A missing package is said before the files are read.
    plan = _Plan(files, on_error)
    report = MergeReport(
        output=str(target),
        read=plan.read,
        doubles=plan.read - len(plan.kept),
        unmatched_notes=plan.unmatched,
        unreadable=plan.unreadable,
    )
    copy_lines(target, mode_of(files), lambda put: _copy(plan, put, report))
    return report


class _Plan:
    """The lines that are written, and their notes: found in a first reading. A line is (index of its file, number)."""

    def __init__(self, files: list[str], on_error: OnError) -> None:
        self.files = files
        self.read = 0
        self.parts: set[tuple[int, int]] = set()
        """Lines of which only the last member is a trajectory."""
        self._reader = TrajectoryReader(files, on_error, "keep")
        self._identities = [_identity(path) for path in files]
        last: dict[str, tuple[int, int]] = {}
        for index, path in enumerate(files):
            self._read_file(index, path, last)
        self.kept = frozenset(last.values())
        notes = self._read_notes()
        self.notes = {last[one]: note for one, note in notes.items() if one in last}
        self.unmatched = [one for one in notes if one not in last]

    @property
    def unreadable(self) -> list[FormatError]:
        return self._reader.skipped

    def _read_file(self, index: int, path: str, last: dict[str, tuple[int, int]]) -> None:
        for line in self._reader.read_lines(path):
            error = missing_media(NotedLine(path, line.number, line.data))
            if error is not None:
                self._reader.damaged(error)
                continue
            self.read += 1
            last[line.trajectory.id] = index, line.number
            if not line.is_whole:
                self.parts.add((index, line.number))

    def _read_notes(self) -> dict[str, NoteRecord]:
        merged: dict[str, NoteRecord] = {}
        # Once each: the files of one name in several compressions share theirs.
        for beside in dict.fromkeys(map(notes_beside, self.files)):
            for note in () if beside is None else note_lines(beside, self._reader.damaged):
                merged[note.id] = merge_notes(merged.get(note.id), note)
        return merged

    def check_unchanged(self, written: int) -> None:
        """Raises FormatError if a file changed since it was first read. Appended lines do not count as a change."""
        for path, (identity, size) in zip(self.files, self._identities, strict=True):
            now, now_size = _identity(path)
            if now != identity or now_size < size:
                raise FormatError(f"{path} was replaced or cut while it was read: nothing was written. Merge again.")
        if written != len(self.kept):
            raise FormatError("a file was changed while it was read: nothing was written. Merge again.")


def _identity(path: str) -> tuple[tuple[int, int], int]:
    if is_address(path):
        return (0, 0), size_of(path)
    state = os.stat(path)
    return (state.st_dev, state.st_ino), state.st_size


def _copy(plan: _Plan, put: Callable[[NotedLine], None], report: MergeReport) -> None:
    for index, path in enumerate(plan.files):
        for number, line in lines(path):
            if (index, number) not in plan.kept or not isinstance(line, bytes):
                continue
            data = line.last_member() if (index, number) in plan.parts and isinstance(line, SplitLine) else line
            note = plan.notes.get((index, number))
            put(NotedLine(path, number, data, note))
            if note is not None:
                report.unmatched_steps += at_any_depth(steps_missing, data, note)
                report.notes += 1
            report.written += 1
    plan.check_unchanged(report.written)


def check_output(target: Path, files: list[str], *, overwrite: bool, doing: str = "merge") -> None:
    """Checks that a file can be written which trajectories of other files are copied to.

    Args:
        overwrite: it may exist.
        doing: what is done with the files, for messages.

    Raises:
        FileExistsError: it exists, or notes are beside it that are of none of the files read.
        ValueError: it is one of the files read, a file of notes, or a device.
    """
    local = [path for path in files if not is_address(path)]
    if any(target.exists() and os.path.samefile(target, path) for path in local):
        raise ValueError(
            f"{target} is one of the files to {doing}: give a new name, and remove the old files afterwards."
        )
    if target.name.endswith(SUFFIX):
        raise ValueError(f"{target}: names that end with {SUFFIX} are for notes. Give another name.")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: give the path of a file.")
    if target.exists() and not target.is_file():  # /dev/null would be replaced by a file.
        raise ValueError(f"{target} is a pipe or a device: give the path of a file.")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists. Give a new name, or overwrite=True to replace it.")
    beside = Path(notes_path(target))
    read = {os.path.abspath(notes_path(path)) for path in files}
    if beside.exists() and beside.stat().st_size and os.path.abspath(beside) not in read:
        raise FileExistsError(
            f"{beside} exists already, and its notes would be applied to the trajectories in {target.name}: give "
            "another name for the output, or move the notes away."
        )


def mode_of(files: list[str]) -> int:
    """Permissions for the output: what all the files allow."""
    mode = 0o666
    for path in files:
        if is_address(path):
            continue
        mode &= stat.S_IMODE(os.stat(path).st_mode)
    return mode
