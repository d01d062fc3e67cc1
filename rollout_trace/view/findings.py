"""The findings of many trajectories: where each is, and sums by code."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from msgspec import Struct

from rollout_trace.data.episodes import rollout_of
from rollout_trace.data.model import shared
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.train.check_codes import CODES, FOR_TRAINING, Grade
from rollout_trace.train.checks import check
from rollout_trace.view import numbers as fmt
from rollout_trace.view.summary import GRADES
from rollout_trace.wire.profiles import sends_no_ids

PLACES = 3
"""Places that are kept of each code."""


class Place(Struct, kw_only=True, frozen=True):
    """A finding, and where it is."""

    file: str
    line: int
    trajectory: str
    """Its id."""
    code: str
    grade: Grade
    message: str
    step: int | None = None
    """Index of the step; None for a finding on the whole trajectory."""
    step_id: str | None = None
    token: int | None = None
    """Index in the completion, or in the prompt where the message says so."""

    def __str__(self) -> str:
        """One line, with the file and the line before it as compilers print them."""
        return f"{self.file}:{self.line}: {self.grade}: {self.code}: {self.where}: {self.message}"

    @property
    def where(self) -> str:
        """The trajectory, and the step and the token where there are any."""
        texts = [f"trajectory {self.trajectory}"]
        texts += [] if self.step is None else [f"step {self.step}"]
        texts += [] if self.token is None else [f"token {self.token}"]
        return ", ".join(texts)


def findings_of(
    file: str, line: int, trajectory: Trajectory, *, codes: Container[str] | None = None, vocab_size: int | None = None
) -> Iterator[Place]:
    """The findings of ``trajectory.check()`` with these codes (None: all). Ids from ``vocab_size`` on are findings."""
    found = check(trajectory, vocab_size=vocab_size)
    # A step's id may be that of several in files of other programs: the first is meant.
    indices = {step.id: at for at, step in reversed(list(enumerate(trajectory.steps)))} if found else {}
    for one in found:
        if codes is not None and one.code not in codes:
            continue
        yield Place(
            file=file,
            line=line,
            trajectory=trajectory.id,
            code=one.code,
            grade=one.grade,
            message=" ".join(one.message.split()),
            step=None if one.step_id is None else indices.get(one.step_id),
            step_id=one.step_id,
            token=one.position,
        )


def holds_ids(trajectory: Trajectory) -> bool:
    """Whether a step has token ids, had some that were withheld, or asked an engine for them: for training."""
    return any(
        shared(step, "completion_token_ids") is not None
        or (step.token_issue is not None and step.token_issue.code not in ("ids_missing", "not_on_wire", "cached"))
        or (step.engine is not None and not sends_no_ids(step.engine, step.protocol))
        for step in trajectory.steps
    )


class Repeated:
    """Finds trajectories that are another run of one rollout: of the same number in the same group.

    Several attempts of ``rt.collect`` at a rollout are none: of these the last one counts.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], tuple[str, int, str]] = {}
        """File, line and id of the first run of each."""

    def of(self, file: str, line: int, trajectory: Trajectory) -> Iterator[Place]:
        """The finding on a trajectory, where an earlier one has its group and number and another id."""
        group, index = trajectory.group_id, trajectory.rollout_index
        if group is None or index is None or trajectory.parent_id is not None or rollout_of(trajectory) is not None:
            return
        file_before, line_before, before = self._first.setdefault((group, index), (file, line, trajectory.id))
        if before == trajectory.id:
            return
        yield Place(
            file=file,
            line=line,
            trajectory=trajectory.id,
            code="repeated_rollout",
            grade=CODES["repeated_rollout"][0],
            message=f"line {line_before} of {file_before} has rollout {index} of the group {group!r} too, "
            f"as trajectory {before}: was it recorded twice?",
        )


class OfCode(Struct):
    """The findings with one code and one grade."""

    code: str
    grade: Grade
    meaning: str | None
    """None for a code that a newer version wrote."""
    count: int = 0
    trajectories: int = 0
    first: list[Place] = []


class Findings:
    """Sums over the findings of many trajectories."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.with_findings = 0
        self._codes: dict[tuple[str, Grade], OfCode] = {}

    def add(self, found: list[Place]) -> None:
        """Adds the findings of one trajectory."""
        self.trajectories += 1
        self.with_findings += bool(found)
        seen: set[tuple[str, Grade]] = set()
        for one in found:
            key = one.code, one.grade
            sums = self._codes.setdefault(key, OfCode(*key, CODES[one.code][1] if one.code in CODES else None))
            sums.count += 1
            if key not in seen:
                seen.add(key)
                sums.trajectories += 1
            if len(sums.first) < PLACES:
                sums.first.append(one)

    def by_code(self) -> list[OfCode]:
        """The worst grade first; of one grade what matters to a trainer alone last, and the most findings first."""
        return sorted(
            self._codes.values(), key=lambda one: (GRADES.index(one.grade), one.code in FOR_TRAINING, -one.count)
        )

    def has(self, grade: Grade) -> bool:
        """Whether there is a finding of this grade, or of a worse one."""
        return any(GRADES.index(one.grade) <= GRADES.index(grade) for one in self._codes.values())

    def as_dict(self) -> dict[str, Any]:
        """Returns the findings as JSON values."""
        return {
            "trajectories": self.trajectories,
            "with_findings": self.with_findings,
            "findings": self.by_code(),
        }

    def lines(self) -> Iterator[str]:
        """Returns the findings as text: sums by code, each with its first places. Not escaped."""
        for one in self.by_code():
            meaning = "" if one.meaning is None else f": {one.meaning}"
            yield f"{one.grade}  {one.code}  {one.count:,} in {fmt.trajectories(one.trajectories)}{meaning}"
            for place in one.first:
                yield f"    {place.file}:{place.line}: {place.where}: {place.message}"
            if one.count > len(one.first):
                yield f"    and {one.count - len(one.first):,} more"
        yield f"{fmt.trajectories(self.trajectories)}, {self.with_findings:,} with findings"
