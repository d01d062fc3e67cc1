"""Finds the trajectories that belong to one rollout (one episode), and the attempt that counts.

Trajectories come in any order, from any process. ``rt.collect`` notes its attempts in their metadata.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rollout_trace.data.model import amend

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory

Key = TypeVar("Key")

REMEMBERED = 1 << 16
"""Number of episodes that were given already whose ids are kept, to tell trajectories that come too late."""


class Member(Protocol):
    """The fields that say to which episode a trajectory belongs: of a whole one, or of the beginning of its line."""

    @property
    def id(self) -> str: ...
    @property
    def episode_id(self) -> str | None: ...


def episode_of(trajectory: Member) -> str:
    """The id of a trajectory's episode; its own, where a file of another program names none."""
    return trajectory.episode_id or trajectory.id


def outermost_of(episode: Iterable[Trajectory]) -> Trajectory:
    """The first trajectory that was not opened inside another of them; of a circle the first."""
    trajectories = list(episode)
    ids = {trajectory.id for trajectory in trajectories}
    return next((one for one in trajectories if one.parent_id not in ids), trajectories[0])


def episodes(
    trajectories: Iterable[Trajectory],
    *,
    most_waiting: int | None = None,
    too_late: Callable[[Trajectory], object] | None = None,
) -> Iterator[list[Trajectory]]:
    """Groups trajectories, which may be interleaved, by their episode, in the order of the first of each.

    Args:
        trajectories: in any order.
        most_waiting: trajectories that are kept; past it the oldest episode is given as far as it has come.
        too_late: called with each trajectory whose episode was among the latest ``REMEMBERED`` given; it comes alone.
    """
    waiting: dict[str, list[Trajectory]] = {}
    given: OrderedDict[str, None] = OrderedDict()
    size = 0
    for trajectory in trajectories:
        key = episode_of(trajectory)
        if key in given:
            if too_late is not None:
                too_late(trajectory)
            yield [trajectory]
            continue
        waiting.setdefault(key, []).append(trajectory)
        size += 1
        if most_waiting is not None and size > most_waiting:
            oldest = next(iter(waiting))
            given[oldest] = None
            if len(given) > REMEMBERED:
                given.popitem(last=False)
            episode = waiting.pop(oldest)
            size -= len(episode)
            yield episode
    yield from waiting.values()


def lineage(one: Key, parents: Mapping[Key, Key | None]) -> Iterator[Key]:
    """Yields the id of a trajectory and of those that it was opened inside, the innermost first.

    ``parents``: by id, that of the parent. In a file of another program they may form a circle: each is given once.
    """
    seen: set[Key] = set()
    at: Key | None = one
    while at is not None and at not in seen:
        yield at
        seen.add(at)
        at = parents.get(at)


# Attempts

FIELD = "collect"
"""Key of the metadata."""
STALE = "stale"
"""Key of the notes in it of a rollout that began too many versions of the weights before it could be used."""
CUT = ("aborted", "running")
"""Statuses of attempts that did not come to an end."""
NOT_SUCCEEDED = frozenset({"failed", "timeout", *CUT})
"""Statuses of rollouts that did not come to their end. Any other, also one that a user set, is a success."""


class Head(Member, Protocol):
    """The fields that say which attempt a trajectory is."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> Any: ...
    @property
    def rollout_index(self) -> int | None: ...
    @property
    def status(self) -> str: ...
    @property
    def metadata(self) -> dict[str, Any] | None: ...


def noted(trajectory: Head) -> Mapping[str, Any]:
    """The notes of ``rt.collect``; empty for a trajectory that it has not made."""
    found = (trajectory.metadata or {}).get(FIELD)
    return found if isinstance(found, dict) else {}


def rollout_of(trajectory: Head) -> tuple[str, str, int] | None:
    """The rollout that a trajectory is an attempt at: agent, task and index; None for any other trajectory."""
    task, index = trajectory.task, trajectory.rollout_index
    if "attempt" not in noted(trajectory) or task is None or task.id is None or index is None:
        return None
    return trajectory.name, task.id, index


def attempt_of(trajectory: Head) -> int:
    """The number of the attempt, from 1. Of the attempts at one rollout the one with the highest number counts."""
    number = noted(trajectory).get("attempt")
    return number if isinstance(number, int) and not isinstance(number, bool) else 1


def rank(trajectory: Head) -> tuple[int, bool]:
    """Orders the attempts at one rollout, the one that counts highest: by number, then whether it was not cut.

    Numbers are equal where a process was killed, and its journal recovered after the rollout had been made again.
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


def is_made_again(trajectory: Head) -> bool:
    """Returns whether another attempt follows, in the same run or in the next: it failed and is retried, or was cut."""
    return rollout_of(trajectory) is not None and (
        trajectory.status in CUT or noted(trajectory).get("will_retry") is True or noted(trajectory).get(STALE) is True
    )


def may_be_trained(step: Step) -> bool:
    """Returns whether something was sampled that a trainer could take, be it one that allows cut answers."""
    return step.trainable and step.status in ("ok", "abandoned", "cancelled")


def supersede(trajectory: Trajectory) -> None:
    """Marks what an attempt sampled as thrown away: another one follows. For complete trajectories."""
    for step in trajectory.steps:
        if step.status == "ok":
            amend(step, status="superseded")
        elif may_be_trained(step):
            step.trainable = False


def leave_out(trajectory: Trajectory) -> None:
    """Marks the steps of a reward function's own calls as not to be trained on. For complete trajectories."""
    for step in trajectory.steps:
        step.trainable = False


def of_rewards(episode: Sequence[Trajectory]) -> set[str]:
    """Ids of the trajectories of reward functions, and of those opened inside them."""
    judges = {one.id for one in episode if "reward" in noted(one)}
    parents = {one.id: one.parent_id for one in episode}
    return {one.id for one in episode if any(name in judges for name in lineage(one.id, parents))}


class Attempts:
    """The attempts at rollouts of an output, in any order: which of them others have taken the places of."""

    def __init__(self) -> None:
        self._counting: dict[tuple[str, str, int], tuple[tuple[int, bool], bool, str]] = {}
        """The attempt that counts, by rollout: its rank, whether it succeeded, its episode."""
        self._thrown: set[str] = set()

    def add(self, trajectory: Head) -> None:
        """Adds a trajectory; ignores one that is not an attempt at a rollout."""
        rollout = rollout_of(trajectory)
        if rollout is None:
            return
        own = rank(trajectory), trajectory.status not in NOT_SUCCEEDED, episode_of(trajectory)
        if is_made_again(trajectory):
            self._thrown.add(own[2])
            return
        before = self._counting.get(rollout)
        if before is not None and before > own:
            before, own = own, before
        self._counting[rollout] = own
        if before is not None and not before[1]:
            self._thrown.add(before[2])

    @property
    def thrown(self) -> set[str]:
        """The episodes of attempts that were thrown away: cut, tried again, or failed and followed by another one."""
        # One may have two lines: written by its process after another one had recovered it.
        return self._thrown - {episode for _, _, episode in self._counting.values()}


def mark_recovered(trajectories: Iterable[Trajectory], thrown: Collection[str]) -> None:
    """Marks the steps of all recovered trajectories as the process that was killed would have.

    ``thrown``: the episodes of attempts that were thrown away.
    """
    for episode in episodes(trajectories):
        judges = of_rewards(episode)
        for one in episode:
            if episode_of(one) in thrown:
                supersede(one)
            if one.id in judges:
                leave_out(one)
