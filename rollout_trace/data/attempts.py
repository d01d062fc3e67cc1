"""Attempts at rollouts: what ``rt.collect`` notes of them in their trajectories' metadata, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import amend

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

FIELD = "collect"
"""Key of the metadata."""
CUT = ("aborted", "running")
"""Statuses of attempts that did not come to an end."""


def noted(trajectory: Trajectory) -> Mapping[str, Any]:
    """What ``rt.collect`` noted; empty for a trajectory that it has not made."""
    found = (trajectory.metadata or {}).get(FIELD)
    return found if isinstance(found, dict) else {}


def rollout_of(trajectory: Trajectory) -> tuple[str, str, int] | None:
    """The rollout that a trajectory is an attempt at: agent, task and index; None for any other trajectory."""
    task, index = trajectory.task, trajectory.rollout_index
    if "attempt" not in noted(trajectory) or task is None or task.id is None or index is None:
        return None
    return trajectory.name, task.id, index


def attempt_of(trajectory: Trajectory) -> int:
    """The number of the attempt, from 1. Of the attempts at one rollout the one with the highest number counts."""
    number = noted(trajectory).get("attempt")
    return number if isinstance(number, int) and not isinstance(number, bool) else 1


def rank(trajectory: Trajectory) -> tuple[int, bool]:
    """Which of the attempts at one rollout counts: the highest.

    That is the one with the highest number. Of equal numbers (a process was killed, and its journal recovered after the
    rollout had been made again) one that was not cut.
    """
    return attempt_of(trajectory), not is_made_again(trajectory)


def last_attempts(runs: Iterable[Trajectory]) -> list[Trajectory]:
    """The runs without those that another attempt at the same rollout follows, each in the place of the first attempt.

    Of attempts with equal ranks the last given counts.
    """
    found: dict[object, Trajectory] = {}
    for run in runs:
        # Any other trajectory is a run of its own.
        key: object = rollout_of(run) or id(run)
        before = found.get(key)
        if before is None or rank(run) >= rank(before):
            found[key] = run
    return list(found.values())


def is_made_again(trajectory: Trajectory) -> bool:
    """Whether another attempt follows, in the same run or in the next: it failed and is retried, or was cut."""
    return rollout_of(trajectory) is not None and (
        trajectory.status in CUT or noted(trajectory).get("will_retry") is True
    )


def supersede(trajectory: Trajectory) -> None:
    """Marks what an attempt sampled as thrown away: another one follows. For complete trajectories."""
    for step in trajectory.steps:
        if step.status == "ok":
            amend(step, status="superseded")


def leave_out(trajectory: Trajectory) -> None:
    """Marks the steps of a reward function's own calls as not to be trained on. For complete trajectories."""
    for step in trajectory.steps:
        step.trainable = False


def mark_recovered(trajectories: Iterable[Trajectory]) -> None:
    """Marks the steps of recovered trajectories as the process that was killed would have."""
    every = list(trajectories)
    cut = {one.id for one in every if is_made_again(one)}
    for one in every:
        if one.id in cut or one.episode_id in cut:
            supersede(one)
        if "reward" in noted(one):
            leave_out(one)
