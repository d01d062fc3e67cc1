"""Attempts of ``rt.collect`` at one rollout: which of them counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollout_trace.data.attempts import attempt_of, is_made_again, rollout_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


def last_attempts(runs: Iterable[Trajectory]) -> list[Trajectory]:
    """The runs without those that another attempt at the same rollout follows, each in the place of the first attempt.

    The highest number counts. Of equal numbers (a process was killed, and its journal recovered after the rollout had
    been made again) one that was not cut, else the last given.
    """
    found: dict[object, Trajectory] = {}
    for run in runs:
        # Any other trajectory is a run of its own.
        key: object = rollout_of(run) or id(run)
        before = found.get(key)
        if before is None or _rank(run) >= _rank(before):
            found[key] = run
    return list(found.values())


def _rank(run: Trajectory) -> tuple[int, bool]:
    return attempt_of(run), not is_made_again(run)
