"""The ids of the trajectories of a file, without the rest of their lines: for looking trajectories up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rollout_trace.errors import FormatError
from rollout_trace.file.decode import BadLine, LineFormat, on_a_fresh_stack
from rollout_trace.file.lines import Damaged, SplitLine, lines
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


_FORMAT = LineFormat(SCHEMA, TrajectoryHead)


def heads(path: str, damaged: Callable[[FormatError], object]) -> Iterator[TrajectoryHead]:
    """The heads of the trajectories of a file, in the order of its lines. The rest of a line is not checked.

    Args:
        path: of the file.
        damaged: called with the error of each line that is no trajectory.
    """
    for number, line in lines(path):
        try:
            yield _decode(line)
        except BadLine as error:
            where = (
                f"{path}, line {number}, {error}" if str(error).startswith("$") else f"{path}, line {number}: {error}"
            )
            damaged(FormatError(where))
            if isinstance(line, SplitLine):
                # The bytes before the seam may be damaged without their newline.
                try:
                    yield _decode(bytes(line[line.seam :]))
                except BadLine:
                    continue


def _decode(line: bytes | Damaged) -> TrajectoryHead:
    if isinstance(line, Damaged):
        raise BadLine("", str(line), line.code)
    try:
        return _FORMAT.decode(line)
    except RecursionError:
        return on_a_fresh_stack(_FORMAT.decode, line)
