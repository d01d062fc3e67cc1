"""What has to hold between the lines of one file: ids that occur once, and references to the steps of parents."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollout_trace.file.decode import BadLine

if TYPE_CHECKING:
    from rollout_trace.file.records import TrajectoryRecord


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
