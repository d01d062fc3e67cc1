"""Which trajectories belong together: those of one episode, in whatever order and by whatever process they came."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

Key = TypeVar("Key")

REMEMBERED = 1 << 16
"""Number of episodes that were given already whose ids are kept, to tell trajectories that come too late."""


class _Member(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def episode_id(self) -> str | None: ...


def episode_of(trajectory: _Member) -> str:
    """The id of a trajectory's episode; its own, where a file of another program names none."""
    return trajectory.episode_id or trajectory.id


def outermost_of(family: Iterable[Trajectory]) -> Trajectory:
    """The first trajectory that was not opened inside another of them; of a circle the first."""
    trajectories = list(family)
    ids = {trajectory.id for trajectory in trajectories}
    return next((one for one in trajectories if one.parent_id not in ids), trajectories[0])


def families(
    trajectories: Iterable[Trajectory],
    *,
    most_waiting: int | None = None,
    too_late: Callable[[Trajectory], object] | None = None,
) -> Iterator[list[Trajectory]]:
    """Groups trajectories by their episode, in the order of the first of each.

    Args:
        trajectories: in any order: those of several episodes may be interleaved.
        most_waiting: trajectories that are kept until others of their episode come; past it the oldest episode is
            given as far as it has come. None: all of them are kept until the last was read.
        too_late: called with each trajectory whose episode was given already, which is a family of its own; while
            that episode is one of the latest ``REMEMBERED``.
    """
    waiting: dict[str, list[Trajectory]] = {}
    given: OrderedDict[str, None] = OrderedDict()
    size = 0
    for trajectory in trajectories:
        episode = episode_of(trajectory)
        if episode in given:
            if too_late is not None:
                too_late(trajectory)
            yield [trajectory]
            continue
        waiting.setdefault(episode, []).append(trajectory)
        size += 1
        if most_waiting is not None and size > most_waiting:
            oldest = next(iter(waiting))
            given[oldest] = None
            if len(given) > REMEMBERED:
                given.popitem(last=False)
            family = waiting.pop(oldest)
            size -= len(family)
            yield family
    yield from waiting.values()


def lineage(one: Key, parents: Mapping[Key, Key | None]) -> Iterator[Key]:
    """Yields a trajectory and those that it was opened inside, the innermost first.

    Args:
        one: its id, or what stands for it.
        parents: by the id of a trajectory, that of its parent. In a file of another program parents may form a circle,
            of which each is given once.
    """
    seen: set[Key] = set()
    at: Key | None = one
    while at is not None and at not in seen:
        yield at
        seen.add(at)
        at = parents.get(at)
