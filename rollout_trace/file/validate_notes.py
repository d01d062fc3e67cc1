"""What is wrong with files of notes: their lines, and what they name that the trajectories' files do not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import is_file
from rollout_trace.file.decode import BadLine
from rollout_trace.file.lines import Damaged, lines
from rollout_trace.file.notes import decode_note, is_notes_file, notes_path
from rollout_trace.file.records import NoteRecord
from rollout_trace.file.validate_keys import has_distinct_plain_keys
from rollout_trace.file.validate_line import PER_LINE, refused_problems
from rollout_trace.file.validate_types import json_problems

if TYPE_CHECKING:
    from rollout_trace.file.records import StepNoteRecord, TrajectoryRecord

Found = Callable[[str, int, BadLine], object]
"""Called with the path of a file, the number of a line, and what is wrong with it."""


class NotesOfFiles:
    """The notes of all files that are checked. Files of one name in several compressions share theirs."""

    def __init__(self, paths: Iterable[str], found: Found) -> None:
        self._found = found
        self._left = Counter(map(notes_path, paths))
        """How many of the files with these notes are still to be checked."""
        self._loaded: dict[str, _Notes] = {}
        self.count = 0
        """Lines with a note so far."""

    def of(self, path: str) -> _Notes:
        """The notes of a file of trajectories; none where it has no such file."""
        beside = notes_path(path)
        if beside not in self._loaded:
            self._loaded[beside] = _Notes()
            if beside != path and is_file(beside) and is_notes_file(beside):
                self._load(beside, self._loaded[beside])
        return self._loaded[beside]

    def was_checked(self, path: str) -> None:
        """Called when a file was read to its end."""
        beside = notes_path(path)
        self._left[beside] -= 1
        if self._left[beside] <= 0:
            for number, problem in self._loaded.pop(beside).unmatched():
                self._found(beside, number, problem)

    def _load(self, path: str, notes: _Notes) -> None:
        for number, line in lines(path):
            try:
                note = decode_note(line)
            except BadLine as error:
                is_read = error.code != "damaged-compression" and isinstance(line, bytes)
                every = refused_problems(bytes(line), error, NoteRecord) if is_read else [error]  # type: ignore[arg-type]
                for problem in every:
                    self._found(path, number, problem)
                continue
            self.count += 1
            if not isinstance(line, Damaged) and not has_distinct_plain_keys(line):
                for problem in json_problems(line)[1][:PER_LINE]:
                    self._found(path, number, problem)
            notes.add(number, note)


class _Notes:
    """Which trajectories and steps the notes of one file name."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[tuple[int, list[StepNoteRecord]]]] = {}
        self._matched: set[str] = set()
        self._without_step: dict[tuple[int, int], BadLine] = {}

    def add(self, number: int, note: NoteRecord) -> None:
        self._by_id.setdefault(note.id, []).append((number, note.steps))

    def match(self, record: TrajectoryRecord) -> None:
        """Compares the notes of a trajectory with it."""
        given = self._by_id.get(record.id)
        if given is None:
            return
        self._matched.add(record.id)
        ids = {step.id for step in record.steps}
        indices = {at if step.index is None else step.index for at, step in enumerate(record.steps)}
        for number, steps in given:
            for at, step in enumerate(steps):
                if (step.id not in ids) if step.id is not None else (step.index not in indices):
                    named = f"id {brief(step.id)}" if step.id is not None else f"index {step.index}"
                    problem = f"expected a step of trajectory {brief(record.id)}, got the {named}"
                    self._without_step[number, at] = BadLine(f"$.steps[{at}]", problem, "note-step")

    def unmatched(self) -> list[tuple[int, BadLine]]:
        """Numbers of lines, and what they name that no trajectory so far had."""
        found = [(number, problem) for (number, _), problem in self._without_step.items()]
        for name, notes in self._by_id.items():
            if name not in self._matched:
                problem = f"expected a trajectory of the file that the notes are of, got {brief(name)}"
                found += [(number, BadLine("$.id", problem, "note-trajectory")) for number, _ in notes]
        return sorted(found, key=lambda one: one[0])
