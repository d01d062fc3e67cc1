"""Attempts of ``rt.collect`` at one rollout: which of them counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

COLLECT = "collect"
"""The name in ``Trajectory.metadata`` of what ``rt.collect`` keeps there."""
_CUT = ("aborted", "running")


def rollout_key(trajectory: Trajectory) -> tuple[str, str, int] | None:
    """Name, task and index of a trajectory of ``rt.collect``: those of all attempts at one rollout. None for others."""
    known, task, index = (trajectory.metadata or {}).get(COLLECT), trajectory.task, trajectory.rollout_index
    if not isinstance(known, dict) or task is None or task.id is None or index is None:
        return None
    return trajectory.name, task.id, index


def attempt_number(trajectory: Trajectory) -> int:
    """The number of an attempt, from 1."""
    known = (trajectory.metadata or {}).get(COLLECT)
    number = known.get("attempt") if isinstance(known, dict) else None
    return number if isinstance(number, int) else 1


def last_attempts(runs: Iterable[Trajectory]) -> list[Trajectory]:
    """The runs without those that another attempt at the same rollout follows, each in the place of the first attempt.

    The highest number counts. Of equal numbers (a process was killed, and its journal recovered after the rollout had
    been made again) one that was not cut, else the last given.
    """
    found: dict[object, Trajectory] = {}
    for run in runs:
        # Any other trajectory is a run of its own.
        key: object = rollout_key(run) or id(run)
        before = found.get(key)
        if before is None or _rank(run) >= _rank(before):
            found[key] = run
    return list(found.values())


def _rank(run: Trajectory) -> tuple[int, bool]:
    return attempt_number(run), run.status not in _CUT
