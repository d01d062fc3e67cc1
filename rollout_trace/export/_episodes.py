"""The trajectories of one run together, from a stream in which those of several runs may be mixed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rollout_trace.export._common import each

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport

HELD = 256
"""Trajectories that wait for others of their episode. A process writes an episode's lines one after the other; those
of other processes may stand between them."""
REMEMBERED = 1 << 16
"""Episodes that were given and are still known, to tell a trajectory that comes too late."""


def episodes(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, *, held: int = HELD
) -> Iterator[list[Trajectory]]:
    """The trajectories of each episode, in the order in which the first of each came.

    Memory is bounded: a trajectory that comes more than ``held`` later than the first of its episode is a group of its
    own, and is counted, while its episode is one of the latest ``REMEMBERED``.
    """
    waiting: dict[str, list[Trajectory]] = {}
    given: OrderedDict[str, None] = OrderedDict()
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
            given[oldest] = None
            if len(given) > REMEMBERED:
                given.popitem(last=False)
            size -= len(group)
            yield group
    yield from waiting.values()
