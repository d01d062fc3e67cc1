"""Trajectories grouped by episode, from a stream in which several episodes may be interleaved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rollout_trace.export._common import each

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport

MAX_WAITING = 256
"""Maximum number of trajectories that wait for others of their episode. A process writes the lines of an episode one
after the other; lines of other processes may come between them."""
REMEMBERED = 1 << 16
"""Number of finished episodes whose ids are kept, to count trajectories that come too late."""


def outermost_of(group: Iterable[Trajectory]) -> Trajectory:
    """The run of an episode: the first trajectory that was not opened inside another of them; of a circle the first."""
    trajectories = list(group)
    ids = {trajectory.id for trajectory in trajectories}
    return next((one for one in trajectories if one.parent_id not in ids), trajectories[0])


def episodes(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, *, max_waiting: int = MAX_WAITING
) -> Iterator[list[Trajectory]]:
    """The trajectories of each episode, in the order of the first of each.

    Memory is bounded. A trajectory that comes more than ``max_waiting`` after the first of its episode is yielded as a
    group of its own, and counted while its episode is one of the latest ``REMEMBERED``.
    """
    waiting: dict[str, list[Trajectory]] = {}
    finished: OrderedDict[str, None] = OrderedDict()
    size = 0
    for trajectory in each(trajectories):
        episode = trajectory.episode_id or trajectory.id
        if episode in finished:
            report.drop("trajectories too far from the first of their episode", where=f"trajectory {trajectory.id}")
            yield [trajectory]
            continue
        waiting.setdefault(episode, []).append(trajectory)
        size += 1
        if size > max_waiting:
            oldest = next(iter(waiting))
            group = waiting.pop(oldest)
            finished[oldest] = None
            if len(finished) > REMEMBERED:
                finished.popitem(last=False)
            size -= len(group)
            yield group
    yield from waiting.values()
