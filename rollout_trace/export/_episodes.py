"""The trajectories of one run together, from a stream in which those of several runs may be mixed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rollout_trace.export._common import each

if TYPE_CHECKING:
    from rollout_trace.export._common import ExportReport
    from rollout_trace.trajectories import Trajectory

HELD = 256
"""Trajectories that wait for others of their episode. A process writes an episode's lines one after the other; those
of other processes may stand between them."""


def episodes(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, *, held: int = HELD
) -> Iterator[list[Trajectory]]:
    """The trajectories of each episode, in the order in which the first of each came.

    Memory is bounded: a trajectory that comes more than ``held`` later than the first of its episode is a group of its
    own, and is counted.
    """
    waiting: dict[str, list[Trajectory]] = {}
    given: set[str] = set()
    size = 0
    for trajectory in each(trajectories):
        episode = trajectory.episode_id or trajectory.id
        if episode in given:
            report.drop("trajectories too far from the first of their episode", where=f"trajectory {trajectory.id}")
            yield [trajectory]
            continue
        waiting.setdefault(episode, []).append(trajectory)
        size += 1
        if size > held:
            oldest = next(iter(waiting))
            group = waiting.pop(oldest)
            given.add(oldest)
            size -= len(group)
            yield group
    yield from waiting.values()
