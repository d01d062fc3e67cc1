"""Checks files against the format, line by line: every broken rule with its file, line and place in the record."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from msgspec import Struct

from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import open_binary
from rollout_trace.file.extras import read_trainer
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.lines import Damaged, NumberedLines, SplitLine, lines
from rollout_trace.file.media import name_of_folder
from rollout_trace.file.notes import SharedNotes, decode_note, notes_beside, notes_path
from rollout_trace.file.records import NoteRecord, TrajectoryRecord
from rollout_trace.file.validate_line import (
    PER_LINE,
    check_line,
    has_distinct_plain_keys,
    json_problems,
    refused_problems,
)

if TYPE_CHECKING:
    from rollout_trace.file.records import StepNoteRecord, StepRecord, TrajectoryRecord


class Rule(NamedTuple):
    """A rule of files of trajectories and of their notes."""

    demand: str
    """What has to hold."""
    advice: str
    """What to do where it does not."""


_WRITER = "Mend the program that wrote the line, and write it anew."
_REWRITE = "Read the file with on_error='skip' and write what is good to a new one: rollout-trace merge FILE -o NEW."
_UPGRADE = "Upgrade in a newer checkout, with: pip install ."
_WITHHELD = "Leave the field out: what cannot be trusted is missing, with the reason in extra_issues or token_issue."

RULES = {
    # The file, and what a line is.
    "empty-file": Rule("A file has at least one line.", "Remove it, or look why nothing was written to it."),
    "damaged-compression": Rule(
        "Compressed bytes can be decompressed.", f"A writer was stopped, or a copy. {_REWRITE}"
    ),
    "line-too-long": Rule(
        "A line has at most 1 GiB, decompressed.", "Write large media beside the file: media='folder'."
    ),
    "truncated-line": Rule("A line is whole.", f"Its writer was stopped. {_REWRITE}"),
    "not-utf8": Rule("A line is UTF-8.", "Write it as UTF-8; half a surrogate pair is escaped (\\ud83d)."),
    "not-json": Rule("A line is one JSON object.", f"Is this a file of trajectories? {_REWRITE}"),
    "json-constant": Rule("Numbers are finite: JSON has no NaN and no Infinity.", "Write null in their place."),
    "too-deep": Rule(
        "Values are nested no deeper than Python can read: about 1,000 levels, and more from Python 3.12 on.", _WRITER
    ),
    "duplicate-key": Rule("A name occurs once in an object: readers keep the last value, some the first.", _WRITER),
    "unknown-schema": Rule(
        "schema is rollout-trace/1 (of notes: rollout-trace-note/1).", "Give files of trajectories."
    ),
    "newer-version": Rule("The version of the schema is one that this library reads.", _UPGRADE),
    "missing-field": Rule("Required fields are there.", _WRITER),
    "wrong-type": Rule("A field has the type that docs/file-format.md gives.", _WRITER),
    "number-range": Rule("Counts and indices are 0 or more.", _WRITER),
    "bad-time": Rule("Times are RFC 3339, with a time zone.", "Write them in UTC: 2026-11-21T00:31:30.123456Z."),
    "duplicate-trajectory-id": Rule(
        "A trajectory id occurs once in a file.", "Keep the last of each: rollout-trace merge FILE -o NEW."
    ),
    # Tables, tokens.
    "table-rows": Rule("messages and tools of a step are rows of the line's tables.", _WRITER),
    "token-id": Rule("Token ids are from 0 to 2147483647.", "Withhold the ids of the step: leave `tokens` out."),
    "segment-base": Rule("from names an earlier segment, and no more ids than that has.", _WRITER),
    "step-segment": Rule("A step's segment is one of the line.", _WRITER),
    "step-range": Rule("prompt <= end <= length of the segment.", _WRITER),
    "logprobs-length": Rule("There are as many logprobs as completion ids.", _WITHHELD),
    "logprob-range": Rule("Logprobs are numbers that float32 can hold.", _WITHHELD),
    "logprob-positive": Rule(
        "Logprobs are 0 or less.", "Write natural logarithms of probabilities, not probabilities."
    ),
    "logprob-missing": Rule(
        "A null among logprobs has a reason: token_issue is logprobs_incomplete.",
        "Set token_issue, so that the step is not trained on, or leave the logprobs out.",
    ),
    "top-logprobs-type": Rule("top_logprobs is a list.", _WITHHELD),
    "top-logprobs-length": Rule("top_logprobs are as many as the logprobs that they came with.", _WITHHELD),
    "texts-length": Rule("There are as many texts of tokens as completion ids.", _WITHHELD),
    # Arrays.
    "array-dtype": Rule("dtype is uint8, uint16, int32 or float32.", _UPGRADE),
    "array-shape": Rule("shape has 1 to 3 numbers.", _WRITER),
    "array-data": Rule("data is base64 of exactly the bytes that dtype and shape need.", _WRITER),
    "array-form": Rule("An array has the dtype and the axes of its field.", _WRITER),
    "array-runs": Rule("Runs are rows of the arrays of the line, of one dtype and shape.", _WRITER),
    "routed-experts": Rule("routed_experts has at most as many rows as the step has tokens.", _WITHHELD),
    "prompt-logprobs": Rule("prompt_logprobs has a row for each prompt id.", _WITHHELD),
    "prompt-top-tokens": Rule("prompt_top_tokens has a row for each prompt id, ids and logprobs alike.", _WITHHELD),
    "top-tokens": Rule("top_tokens has a row for each completion id, ids and logprobs alike.", _WITHHELD),
    "sampling-mask": Rule(
        "sampling_mask has a count for each completion id, and as many ids as these sum up to.", _WITHHELD
    ),
    "policy-spans": Rule("policy_spans are positions of the completion.", _WITHHELD),
    "policy-spans-gap": Rule(
        "policy_spans follow each other without gaps, from 0 to the end of the completion.", _WITHHELD
    ),
    # Kept bytes, media.
    "body-bytes": Rule("Kept bytes are text, or base64.", _WRITER),
    "media-missing": Rule(
        "Media that the line refers to are in the folder beside the file.", "Copy FILE.media with the file."
    ),
    "media-differs": Rule("Media have the sha256 of their name.", "Copy FILE.media anew from where it was recorded."),
    # Exchanges.
    "exchange-base": Rule(
        "from of a request names an earlier exchange, and no more bytes than its request has.", _WRITER
    ),
    "chunk-sizes": Rule("chunk_sizes of an exchange add up to the bytes of its response.", _WRITER),
    "chunk-times": Rule("There are as many chunk_times_ms as chunk_sizes, or none.", _WRITER),
    # What refers to what.
    "duplicate-step-id": Rule("Step ids are distinct within a trajectory.", _WRITER),
    "duplicate-choice": Rule("A call has one step for each of its choices.", _WRITER),
    "index-order": Rule("index grows from step to step.", _WRITER),
    "tool-run-step": Rule("step_id of a tool run is a step of the trajectory.", _WRITER),
    "parent-step": Rule(
        "parent_step_id is a step of the trajectory parent_id, where that is in the same file; and no trajectory is "
        "its own parent.",
        _WRITER,
    ),
    "time-order": Rule("Nothing ends before it has begun.", "Take both times from one clock, in UTC."),
    "negative-number": Rule("Durations and counts of tokens are 0 or more.", _WRITER),
    "usage-output": Rule(
        "The engine counts as many tokens as it sent ids, in a call with one whole answer.",
        "Some ids are missing, or were taken from another answer: do not train on the step.",
    ),
    "advantage-length": Rule("A list of advantages has one for each completion token.", _WRITER),
    "trainer-length": Rule(
        "A trainer's numbers (trainer_logprobs, ...) are no more than the completion has tokens.", _WRITER
    ),
    # Notes.
    "note-trajectory": Rule("A note names a trajectory of the file.", "Note it of the file that has the trajectory."),
    "note-step": Rule("A note names steps that its trajectory has.", "Note it anew, with the id of a step."),
}
"""By code. Codes are never renamed; docs/file-format.md explains each."""


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule that is broken, at one place."""

    file: str
    line: int | None = None
    """From 1; None: of the file as a whole."""
    path: str | None = None
    """Place in the record, ``$.steps[3].tokens.end``; None: of the line as a whole."""
    code: str
    """Name of the rule: one of ``RULES``."""
    message: str
    """What was expected, and what was found."""
    advice: str
    """What to do."""

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        path = "" if self.path is None else f", {self.path}"
        return f"{self.file}{line}{path}: {self.message} [{self.code}]"


class Report(Struct, kw_only=True):
    """The numbers of what was checked and found."""

    files: int = 0
    lines: int = 0
    """That are not blank."""
    trajectories: int = 0
    """Lines whose types are those of the format."""
    notes: int = 0
    problems: int = 0
    files_with_problems: int = 0
    codes: Counter[str]
    """How many problems of each code."""


def validate(
    paths: Sequence[str],
    found: Callable[[Problem], object],
    *,
    ignore: Iterable[str] = (),
    open_file: Callable[[str], BinaryIO] = open_binary,
    alone: Iterable[str] = (),
) -> Report:
    """Checks files of trajectories, and the notes and media beside them.

    Memory is that of one line, and 8 bytes for each step and trajectory of a file. Of a line the first 20 problems are
    looked for.

    Args:
        ignore: codes of rules that are not looked at.
        alone: those of the paths that have nothing beside them, such as stdin.

    Raises:
        OSError: a file cannot be read.
    """
    return _Validation(found, frozenset(ignore), open_file, frozenset(alone)).run(paths)


class _Validation:
    """A run over files."""

    def __init__(
        self,
        found: Callable[[Problem], object],
        ignore: frozenset[str],
        open_file: Callable[[str], BinaryIO],
        alone: frozenset[str],
    ) -> None:
        self._each, self._ignore, self._open, self._alone = found, ignore, open_file, alone
        self.report = Report(codes=Counter())
        self._bad_files: set[str] = set()

    def run(self, paths: Sequence[str]) -> Report:
        notes = NotesOfFiles([path for path in paths if path not in self._alone], self._found)
        for path in paths:
            self.report.files += 1
            self._check(path, None if path in self._alone else notes)
        self.report.notes, self.report.files_with_problems = notes.count, len(self._bad_files)
        return self.report

    def _check(self, path: str, notes: NotesOfFiles | None) -> None:
        across, own = Across(), None if notes is None else notes.of(path)
        folder = None if notes is None else name_of_folder(path)
        before = self.report.lines
        with self._open(path) as file:
            for number, line in NumberedLines(file, path):
                self.report.lines += 1
                record = self._line(path, number, line, folder)
                if record is not None:
                    self.report.trajectories += 1
                    across.add(number, record)
                    if own is not None:
                        own.match(record)
        if self.report.lines == before:
            self._found(path, None, BadLine("", "expected lines of trajectories, got none", "empty-file"))
        for number, problem in across.problems():
            self._found(path, number, problem)
        if notes is not None:
            notes.was_read(path)

    def _line(self, path: str, number: int, line: bytes | Damaged, folder: str | None) -> TrajectoryRecord | None:
        if isinstance(line, Damaged):
            self._found(path, number, BadLine("", str(line), line.code))
            return None
        record, problems = check_line(line, folder)
        for problem in problems:
            self._found(path, number, problem)
        if record is None and isinstance(line, SplitLine):
            # As the reader does: the line of the next member must not be lost with what is before it.
            return check_line(line.last_member(), folder)[0]
        return record

    def _found(self, path: str, number: int | None, error: BadLine) -> None:
        if error.code in self._ignore:
            return
        self.report.problems += 1
        self.report.codes[error.code] += 1
        self._bad_files.add(path)
        problem = Problem(
            file=path,
            line=number,
            path=error.path or None,
            code=error.code,
            message=error.problem,
            advice=RULES[error.code].advice,
        )
        self._each(problem)


class Across:
    """The trajectories of one file, as hashes: 8 bytes for each id and step."""

    def __init__(self) -> None:
        self._ids, self._lines, self._steps = array("q"), array("q"), array("q")
        self._parents, self._parent_steps, self._children = array("q"), array("q"), array("q")

    def add(self, number: int, record: TrajectoryRecord) -> None:
        """Adds the trajectory of a line."""
        self._ids.append(hash(record.id))
        self._lines.append(number)
        self._steps.extend([hash((record.id, step.id)) for step in record.steps])
        if record.parent_id is not None and record.parent_step_id is not None and record.parent_id != record.id:
            self._parents.append(hash(record.parent_id))
            self._parent_steps.append(hash((record.parent_id, record.parent_step_id)))
            self._children.append(number)

    def problems(self) -> Iterator[tuple[int, BadLine]]:
        """The number of a line, and what is wrong with it. To be called once all lines were added."""
        import numpy as np

        ids, lines = _numbers(self._ids), _numbers(self._lines)
        order = np.argsort(ids, kind="stable")
        again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
        for before, line in sorted(
            zip(lines[order[again]], lines[order[again + 1]], strict=True), key=lambda one: one[1]
        ):
            problem = f"expected an id that no other line has, got that of line {before}"
            yield int(line), BadLine("$.id", problem, "duplicate-trajectory-id")
        is_here = np.isin(_numbers(self._parents), ids)
        is_step = np.isin(_numbers(self._parent_steps), _numbers(self._steps))
        for line in _numbers(self._children)[is_here & ~is_step]:
            problem = "expected the id of a step of the trajectory $.parent_id, which the file has, got another"
            yield int(line), BadLine("$.parent_step_id", problem, "parent-step")


def _numbers(values: array[int]) -> Any:
    import numpy as np

    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


Found = Callable[[str, int, BadLine], object]
"""Called with the path of a file, the number of a line, and what is wrong with it."""


class NotesOfFiles(SharedNotes["_Notes"]):
    """The notes of all files that are checked."""

    def __init__(self, paths: Iterable[str], found: Found) -> None:
        super().__init__(paths, self._of)
        self._found = found
        self.count = 0
        """Lines with a note so far."""

    def _of(self, path: str) -> _Notes:
        notes, beside = _Notes(), notes_beside(path)
        if beside is not None:
            self._add(beside, notes)
        return notes

    def was_read(self, path: str) -> _Notes | None:
        notes = super().was_read(path)
        for number, problem in () if notes is None else notes.unmatched():
            self._found(notes_path(path), number, problem)
        return notes

    def _add(self, path: str, notes: _Notes) -> None:
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


def _problem(note: StepNoteRecord, step: StepRecord | None, trajectory_id: str, path: str) -> BadLine | None:
    """Says what is wrong with a step's note: there is no such step, or it has fewer tokens than a trainer's numbers."""
    if step is None:
        named = f"id {brief(note.id)}" if note.id is not None else f"index {note.index}"
        return BadLine(path, f"expected a step of trajectory {brief(trajectory_id)}, got the {named}", "note-step")
    if note.trainer is not None:
        sampled = None if step.tokens is None else step.tokens.sampled
        try:
            read_trainer(note.trainer, sampled or 0)
        except BadLine as error:
            return BadLine("", f"{path}.trainer{error}", error.code)
    return None


class _Notes:
    """The trajectories and steps that the notes of one file name."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[tuple[int, list[StepNoteRecord]]]] = {}
        self._matched: set[str] = set()
        self._wrong: dict[tuple[int, int], BadLine] = {}

    def add(self, number: int, note: NoteRecord) -> None:
        self._by_id.setdefault(note.id, []).append((number, note.steps))

    def match(self, record: TrajectoryRecord) -> None:
        """Compares the notes of a trajectory with it."""
        given = self._by_id.get(record.id)
        if given is None:
            return
        self._matched.add(record.id)
        by_id = {step.id: step for step in record.steps}
        by_index = {at if step.index is None else step.index: step for at, step in enumerate(record.steps)}
        for number, steps in given:
            for at, step in enumerate(steps):
                named = by_id.get(step.id) if step.id is not None else by_index.get(step.index or 0)
                problem = _problem(step, named, record.id, f"$.steps[{at}]")
                if problem is not None:
                    self._wrong[number, at] = problem

    def unmatched(self) -> list[tuple[int, BadLine]]:
        """Numbers of lines, and what they name that no trajectory so far had."""
        found = [(number, problem) for (number, _), problem in self._wrong.items()]
        for name, notes in self._by_id.items():
            if name not in self._matched:
                problem = f"expected a trajectory of the file that the notes are of, got {brief(name)}"
                found += [(number, BadLine("$.id", problem, "note-trajectory")) for number, _ in notes]
        return sorted(found, key=lambda one: one[0])
