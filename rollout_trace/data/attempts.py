"""Attempts at rollouts: what ``rt.collect`` notes of them in their trajectories' metadata, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import amend

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

FIELD = "collect"
"""Key of the metadata."""


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


def is_made_again(trajectory: Trajectory) -> bool:
    """Whether another attempt follows, in the same run or in the next: it failed and is retried, or was cut."""
    return rollout_of(trajectory) is not None and (
        trajectory.status == "aborted" or noted(trajectory).get("will_retry") is True
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
