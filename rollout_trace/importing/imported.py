"""What importers return: an iterator over trajectories, with its report and the errors that were skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from rollout_trace import guard
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.errors import FormatError
from rollout_trace.importing.fields import Fields, OnError, Problems
from rollout_trace.importing.inputs import Given, Input, documents, inputs_of, records
from rollout_trace.report import format_counts

T = TypeVar("T")
SESSIONS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""Ends of the names of files by lines."""
JSON = (*SESSIONS, ".json", ".json.gz", ".json.zst")
"""Ends of the names of files of JSON."""
Read: TypeAlias = "Callable[[list[Input], Job], Iterable[Trajectory]]"
"""What reads the files of a source."""


class ImportReport:
    """Counts of one import. Pass one to an importer as ``report=``, or read ``.report`` of what it returns."""

    def __init__(self) -> None:
        self.missing: dict[str, int] = {}
        """What the source does not have, so that steps or trajectories lack it: counts by description."""
        self.dropped: dict[str, int] = {}
        """What the source has but the trajectories lack: counts by description."""
        self.noted: dict[str, int] = {}
        """What was changed, joined or created during the import: counts by description."""
        self.trajectories = 0
        """Number of trajectories yielded so far."""
        self.steps = 0
        """Number of their steps."""

    def miss(self, what: str, count: int = 1) -> None:
        """Counts something that the source does not have. Zero is ignored."""
        _add(self.missing, what, count)

    def miss_tokens(self, ids: object = None, logprobs: object = None) -> None:
        """Counts the token values of a step that the source does not have, which are None."""
        self.miss("token ids", ids is None)
        self.miss("logprobs", logprobs is None)

    def drop(self, what: str, count: int = 1) -> None:
        """Counts something that trajectories have no place for. Zero is ignored."""
        _add(self.dropped, what, count)

    def note(self, what: str, count: int = 1) -> None:
        """Counts something that was changed, joined or created during the import. Zero is ignored."""
        _add(self.noted, what, count)

    def __str__(self) -> str:
        parts = [("missing in the source", self.missing), ("left out", self.dropped), ("note", self.noted)]
        found = [f"{name}: {format_counts(counts)}" for name, counts in parts if counts]
        return "; ".join(found) or "nothing is missing, and nothing was left out"


def _add(counts: dict[str, int], what: str, count: int) -> None:
    if count:
        counts[what] = counts.get(what, 0) + count


class Job:
    """One import: its report, its problems, and the ids that it has given so far."""

    def __init__(self, source: str, on_error: OnError, report: ImportReport | None) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error is {on_error!r}; it can be "raise" or "skip".')
        self.source = source
        self.report = ImportReport() if report is None else report
        self.problems = Problems(on_error)
        self._ids: dict[str, int] = {}

    def unique_id(self, wanted: str) -> str:
        """The id, or one with a number behind it where a trajectory of this import has it already."""
        number = self._ids.get(wanted, 0) + 1
        self._ids[wanted] = number
        if number == 1:
            return wanted
        self.report.note("ids that two trajectories of the source share, given a number")
        return self.unique_id(f"{wanted}-{number}")

    def attempt(self, add: Callable[[Fields], object], record: Fields) -> None:
        """Calls a function with a record; its error about the record as a whole is raised, or kept."""
        try:
            add(record)
        except FormatError as error:
            self.problems.add(error)

    def guarded(self, made: Callable[[], Iterable[T]]) -> Iterator[T]:
        """Yields what one part of the source gives. An error about the part as a whole is raised, or kept."""
        try:
            yield from made()
        except FormatError as error:
            self.problems.add(error)


def session_lines(source: Input, job: Job) -> Iterator[Fields]:
    """The lines of a session, which may still be written: a last one without its end is left out, and counted."""

    def cut() -> None:
        job.report.drop("last lines without their end: the session was still being written")

    return records(source, job.problems, cut)


def each_file(made: Callable[[Input, Job], Iterable[Trajectory]]) -> Read:
    """Reads files separately, and yields what each gives."""
    return lambda sources, job: (one for source in sources for one in made(source, job))


def each_document(made: Callable[[Fields, Job], Iterable[Trajectory]]) -> Read:
    """Reads JSON objects separately, and yields what each gives, or an error about it."""
    return each_file(
        lambda source, job: (
            one
            for document in documents(source, job.problems)
            for one in job.guarded(lambda: made(document, job))  # noqa: B023
        )
    )


def imported(
    source: str,
    given: Given,
    suffixes: tuple[str, ...],
    on_error: OnError,
    report: ImportReport | None,
    read: Read,
) -> Imported:
    """Begins an import: what is read of the files that an argument names. Raises as ``Job`` and ``inputs_of``."""
    job = Job(source, on_error, report)
    return Imported(job, read(inputs_of(given, suffixes), job))


class Imported(Iterator["Trajectory"]):
    """Iterates once over the trajectories of a source; files are read lazily."""

    def __init__(self, job: Job, trajectories: Iterable[Trajectory]) -> None:
        self.report = job.report
        """What the source did not have, and what was left out."""
        self._job = job
        self._trajectories = self._counted(trajectories)

    @property
    def skipped(self) -> list[FormatError]:
        """One error for each value, line or file left out so far, with ``on_error="skip"``."""
        return self._job.problems.skipped

    def __iter__(self) -> Imported:
        return self

    def __next__(self) -> Trajectory:
        return next(self._trajectories)

    def _counted(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        before = dict(self.report.dropped)
        for trajectory in trajectories:
            self.report.trajectories += 1
            self.report.steps += len(trajectory.steps)
            yield trajectory
        self._warn(before)

    def _warn(self, before: dict[str, int]) -> None:
        # A user's report may have counts of earlier imports: the warning is about this one.
        left = {what: count - before.get(what, 0) for what, count in self.report.dropped.items()}
        left = {what: count for what, count in left.items() if count}
        name = f"importing.{self._job.source}"
        if left:
            guard.warn(f"{name} left out: {format_counts(left)}. The counts are in `.report` of the result.")
        if self.skipped:
            values = "1 value or line" if len(self.skipped) == 1 else f"{len(self.skipped)} values or lines"
            guard.warn(f"{name}: {values} could not be read and were left out; the first: {self.skipped[0]}")
