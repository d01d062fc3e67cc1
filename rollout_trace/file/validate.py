"""Checks files against the format, line by line: every broken rule with its file, line and place in the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from msgspec import Struct

from rollout_trace.file.addresses import open_binary
from rollout_trace.file.decode import BadLine
from rollout_trace.file.lines import Damaged, NumberedLines, SplitLine
from rollout_trace.file.media import name_of_folder
from rollout_trace.file.records import TrajectoryRecord
from rollout_trace.file.validate_file import Across
from rollout_trace.file.validate_line import check_line
from rollout_trace.file.validate_notes import NotesOfFiles
from rollout_trace.file.validate_rules import RULES


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
    """What was checked, and how much was found."""

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
        paths: of the files.
        found: called with each problem.
        ignore: codes of rules that are not looked at.
        open_file: opens a path.
        alone: those of the paths that have nothing beside them, such as stdin.

    Raises:
        OSError: a file cannot be read.
    """
    return _Validation(found, frozenset(ignore), open_file, frozenset(alone)).run(paths)


class _Validation:
    """One run over files."""

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
            notes.was_checked(path)

    def _line(self, path: str, number: int, line: bytes | Damaged, folder: str | None) -> TrajectoryRecord | None:
        if isinstance(line, Damaged):
            self._found(path, number, BadLine("", str(line), line.code))
            return None
        record, problems = check_line(line, folder)
        for problem in problems:
            self._found(path, number, problem)
        if record is None and isinstance(line, SplitLine):
            # As the reader does: the line of the next member must not be lost with what is before it.
            return check_line(bytes(line[line.seam :]), folder)[0]
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
