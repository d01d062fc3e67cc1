"""Notes: what becomes known of trajectories after they were written, in a file beside theirs.

``rollouts.jsonl`` has its notes in ``rollouts.notes.jsonl``, one a line; ``annotate`` appends them, every reader
applies them. Later notes win field by field; named values (rewards, metrics, metadata) are merged by name.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rollout_trace.data.model import shared
from rollout_trace.data.trainer_tokens import TRAINER_VALUES, TrainerTokens, padded
from rollout_trace.data.user_values import Metrics, Rewards, brief
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import is_file, open_binary
from rollout_trace.file.extras import n_ids, read_trainer
from rollout_trace.file.line_format import BadLine, LineFormat, at_any_depth
from rollout_trace.file.lines import Damaged, lines
from rollout_trace.file.records import NOTE_SCHEMA, SCHEMA, NoteRecord, StepNoteRecord

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.records import TrainerRecord

N = TypeVar("N")
SUFFIX = ".notes.jsonl"
SCORE_ERROR = "score_error"
"""The name in ``Trajectory.metadata`` under which readers put the failure of a scoring function."""

_PACKED = re.compile(r"(\.(jsonl|ndjson|json))?(\.(gz|zst))?$")
_FORMAT = LineFormat(NOTE_SCHEMA, NoteRecord)


def notes_path(path: str | os.PathLike[str]) -> str:
    """Path of the notes of a file: its own, with ``.notes.jsonl`` in the place of ``.jsonl``, ``.jsonl.gz``, ..."""
    folder, name = os.path.split(os.fspath(path))
    # A name that is nothing but a suffix (".jsonl") stays whole.
    return os.path.join(folder, (_PACKED.sub("", name, count=1) or name) + SUFFIX)


def is_notes_file(path: str | os.PathLike[str]) -> bool:
    """True for a file with the name of notes, unless its first bytes are those of a trajectory."""
    name = os.fspath(path)
    return name.endswith(SUFFIX) and not _holds_trajectories(name)


def _holds_trajectories(path: str) -> bool:
    """True where the first line is a trajectory: such a file got this name before there were notes."""
    try:
        with open_binary(path) as file:
            return re.match(rb'\s*\{\s*"schema"\s*:\s*"%s"' % SCHEMA.encode(), file.read(200)) is not None
    except OSError:
        return False


def notes_beside(path: str | os.PathLike[str]) -> str | None:
    """Path of the file of notes of a file of trajectories; None where it has none."""
    beside = notes_path(path)
    return None if beside == os.fspath(path) or not is_file(beside) or _holds_trajectories(beside) else beside


def merge_notes(earlier: NoteRecord | None, later: NoteRecord) -> NoteRecord:
    """Merges two notes; the values of the later one win."""
    if earlier is None:
        return later
    scored = later.reward is not None or bool(later.rewards)
    return NoteRecord(
        schema=NOTE_SCHEMA,
        id=later.id,
        at=later.at or earlier.at,
        reward=earlier.reward if later.reward is None else later.reward,
        rewards=_merged(earlier.rewards, later.rewards),
        metrics=_merged(earlier.metrics, later.metrics),
        metadata=_merged(earlier.metadata, later.metadata),
        # One after the other, not by step: a step may be named by its id in one and by its index in the other.
        steps=[*earlier.steps, *later.steps],
        scorer=later.scorer or earlier.scorer,
        score_error=later.score_error or (None if scored else earlier.score_error),
    )


def _merged(earlier: dict[str, Any] | None, later: dict[str, Any] | None) -> dict[str, Any] | None:
    return later if earlier is None else earlier if later is None else {**earlier, **later}


def metadata_of(note: NoteRecord, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """The metadata of a trajectory with those of a note merged into them."""
    found = _merged(metadata, note.metadata)
    if note.score_error is not None:
        error = {"type": note.score_error.type, "message": note.score_error.message}
        return {**(found or {}), SCORE_ERROR: error}
    # Folded into the line by a merge, and scored since.
    scored = note.reward is not None or note.rewards
    if scored and found is not None and SCORE_ERROR in found and SCORE_ERROR not in (note.metadata or ()):
        return {name: value for name, value in found.items() if name != SCORE_ERROR} or None
    return found


def apply_note(note: NoteRecord, trajectory: Trajectory) -> list[str]:
    """Sets what a note gives, without the checks of assignment.

    Returns:
        What it names that is not there, or does not fit: ``step 3``, ``entropy of step 3 (12 numbers, 10 tokens)``.
    """
    put = object.__setattr__
    if note.reward is not None:
        put(trajectory, "reward", note.reward)
    for name, kind in (("rewards", Rewards), ("metrics", Metrics)):
        given = getattr(note, name)
        if given is not None:
            put(trajectory, name, kind.unchecked({**(getattr(trajectory, name) or {}), **given}))
    put(trajectory, "metadata", metadata_of(note, trajectory.metadata))
    return _apply_to_steps(note.steps, trajectory.steps) if note.steps else []


def _apply_to_steps(given: Sequence[StepNoteRecord], steps: Iterable[Step]) -> list[str]:
    by_id, by_index = {step.id: step for step in steps}, {step.index: step for step in steps}
    missing = []
    for note in given:
        step = by_index.get(note.index) if note.id is None and note.index is not None else by_id.get(note.id or "")
        if step is None:
            missing.append(f"step {brief(note.index if note.id is None else note.id)}")
            continue
        for name in STEP_VALUES:
            value = getattr(note, name)
            if value is not None:
                # `advantage` becomes a list, as the reader makes it from a line.
                merged = _merged(step.metadata, value) if name == "metadata" else value
                object.__setattr__(step, name, merged)
        if note.trainer is not None:
            missing += _apply_trainer(note.trainer, step)
    return missing


def _apply_trainer(given: TrainerRecord, step: Step) -> list[str]:
    """Puts a trainer's numbers into a step; returns those that are more than it has tokens, and are left out."""
    ids = shared(step, "completion_token_ids")
    sampled = 0 if ids is None else n_ids(ids)
    found = {name: array for name in TRAINER_VALUES if (array := getattr(read_trainer(given, None), name)) is not None}
    fit = {name: padded(array, sampled) for name, array in found.items() if len(array) <= sampled}
    if fit:
        object.__setattr__(step, "trainer", replace(step.trainer or TrainerTokens(), **fit))
    return [
        f"{name} of step {brief(step.index)} ({len(array)} numbers, {sampled} tokens)"
        for name, array in found.items()
        if name not in fit
    ]


STEP_VALUES = ("reward", "advantage", "trainable", "policy_version", "metadata")
"""What a note can give of a step, beside a trainer's numbers."""


class Notes:
    """The notes of one file, merged by trajectory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._by_id: dict[str, NoteRecord] = {}
        self._found: set[str] = set()
        self._without_step: list[str] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, note: NoteRecord) -> None:
        """Adds a note that is later than those added before."""
        self._by_id[note.id] = merge_notes(self._by_id.get(note.id), note)

    def get(self, trajectory_id: str) -> NoteRecord | None:
        """The merged note of a trajectory."""
        return self._by_id.get(trajectory_id)

    def items(self) -> Iterable[tuple[str, NoteRecord]]:
        """Ids and merged notes."""
        return self._by_id.items()

    def apply(self, trajectory: Trajectory) -> None:
        """Applies the note of a trajectory to it, if there is one."""
        note = self._by_id.get(trajectory.id)
        if note is None:
            return
        self._found.add(trajectory.id)
        missing = apply_note(note, trajectory)
        self._without_step += [f"{one} of trajectory {brief(trajectory.id)}" for one in missing]

    def unmatched(self) -> list[str]:
        """Lists what the notes name and no trajectory so far had: ``trajectory 'a'``, ``step 3 of trajectory 'b'``."""
        missing = [f"trajectory {brief(one)}" for one in self._by_id if one not in self._found]
        return [*missing, *dict.fromkeys(self._without_step)]


class SharedNotes(Generic[N]):
    """The notes of several files. Files of one name in several compressions share theirs.

    Args:
        paths: of the files, each of which will be read once.
        load: gives the notes of a file.
    """

    def __init__(self, paths: Iterable[str], load: Callable[[str], N]) -> None:
        self._left = Counter(map(notes_path, paths))
        """How many of the files with these notes are still to be read."""
        self._load = load
        self._loaded: dict[str, N] = {}

    def of(self, path: str) -> N:
        """The notes of a file."""
        beside = notes_path(path)
        if beside not in self._loaded:
            self._loaded[beside] = self._load(path)
        return self._loaded[beside]

    def was_read(self, path: str) -> N | None:
        """Called when a file was read to its end: returns its notes where no other file shares them."""
        beside = notes_path(path)
        self._left[beside] -= 1
        return None if self._left[beside] else self._loaded.pop(beside, None)


def load_notes(
    path: str, damaged: Callable[[FormatError], object], each: Callable[[NoteRecord], object] | None = None
) -> Notes | None:
    """The notes of the file ``path`` of trajectories; None where it has none.

    Args:
        damaged: called with the error of each line that is not a note. It may raise it.
        each: called with each note, before it is merged with the others.
    """
    beside = notes_beside(path)
    if beside is None:
        return None
    notes = Notes(beside)
    for note in note_lines(beside, damaged):
        if each is not None:
            each(note)
        notes.add(note)
    return notes


def note_lines(path: str, damaged: Callable[[FormatError], object]) -> Iterator[NoteRecord]:
    """The notes of a file of notes, one by one. ``damaged``: as for ``load_notes``."""
    for number, line in lines(path):
        try:
            yield decode_note(line)
        except BadLine as error:
            damaged(error.at(f"{path}, line {number}"))


def note_lines_by_id(path: str) -> Iterator[tuple[str, bytes]]:
    """Yields trajectory id and line of each note in a notes file. Lines that are not notes are skipped."""
    for _, line in lines(path):
        try:
            yield decode_note(line).id, bytes(line)  # type: ignore[arg-type]  # Damaged lines were refused.
        except BadLine:
            continue


def decode_note(line: bytes | Damaged) -> NoteRecord:
    """Decodes a line of a notes file. Raises BadLine if it is not a note."""
    if isinstance(line, Damaged):
        raise BadLine("", str(line), line.code)
    note = at_any_depth(_FORMAT.decode, line)
    for at, step in enumerate(note.steps):
        if step.id is None and step.index is None:
            raise BadLine(f"$.steps[{at}]", "expected the id or the index of a step, got neither", "missing-field")
        if step.trainer is not None:
            try:
                read_trainer(step.trainer, None)
            except BadLine as error:
                raise BadLine("", f"$.steps[{at}].trainer{error}", error.code) from error
    return note
