"""The beginnings of the lines of a file, without the rest: for looking trajectories up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from rollout_trace.errors import FormatError
from rollout_trace.file.decode import BadLine, LineFormat, on_a_fresh_stack
from rollout_trace.file.lines import Damaged, Place, SplitLine, lines
from rollout_trace.file.records import SCHEMA, Record


class TaskHead(Record):
    """The id of a task."""

    id: str | None = None


class TrajectoryHead(Record):
    """What a trajectory is looked up by."""

    schema: str
    id: str
    rollout_index: int | None = None
    task: TaskHead | None = None


Head = TypeVar("Head", bound=TrajectoryHead)
HEAD = LineFormat(SCHEMA, TrajectoryHead)


def heads(
    path: str, damaged: Callable[[FormatError], object], form: LineFormat[Head], start: Place | None = None
) -> Iterator[tuple[bytes, Head]]:
    """The lines of the trajectories of a file with their heads. The rest of a line is not checked.

    Args:
        path: of the file.
        damaged: called with the error of each line that is no trajectory.
        form: the fields of a head.
        start: where to begin; None: at the begin.
    """
    for number, line in lines(path, start):
        try:
            yield _decode(line, form)
        except BadLine as error:
            where = (
                f"{path}, line {number}, {error}" if str(error).startswith("$") else f"{path}, line {number}: {error}"
            )
            damaged(FormatError(where))
            if isinstance(line, SplitLine):
                # The bytes before the seam may be damaged without their newline.
                try:
                    yield _decode(bytes(line[line.seam :]), form)
                except BadLine:
                    continue


def _decode(line: bytes | Damaged, form: LineFormat[Head]) -> tuple[bytes, Head]:
    if isinstance(line, Damaged):
        raise BadLine("", str(line), line.code)
    try:
        return line, form.decode(line)
    except RecursionError:
        return line, on_a_fresh_stack(form.decode, line)
