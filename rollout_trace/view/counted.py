"""Selects the trajectories of a stream that count: the last line of an id, and the last attempt at a rollout.

The rule is that of ``rt.groups`` and ``rt.pass_at_k``, for files that do not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from rollout_trace.data.episodes import is_made_again, lineage, rank, rollout_of
from rollout_trace.data.trajectory import Trajectory

T = TypeVar("T")
HELD = 5_000
"""Trajectories of which something is held back, as another attempt will probably follow."""


def key_of(*parts: object) -> int:
    """64 bits of a hash. Two of a million keys are equal by chance with a probability of 3 in 100 million."""
    return int.from_bytes(blake2b(repr(parts).encode("utf-8", "replace"), digest_size=8).digest(), "little")


class _Attempt(NamedTuple):
    """An attempt at a rollout. The greatest counts."""

    rank: tuple[int, bool]
    place: int
    """Position of the first line with its id."""
    position: int


class Families:
    """Finds trajectories opened inside another one of their group, which are parts of its run."""

    def __init__(self) -> None:
        self._parents: dict[int, int | None] = {}
        """Key of the parent, by the key of the id."""
        self._groups: dict[int, int] = {}
        """Key of the group, by the key of the id."""

    def add(self, identity: str, parent: str | None, group: str | None) -> None:
        """Adds a trajectory. Of several with one id the last counts."""
        key = key_of(identity)
        for found, value in ((self._parents, parent), (self._groups, group)):
            if value is None:
                found.pop(key, None)
            else:
                found[key] = key_of(value)

    def is_inside(self, key: int, group: str) -> bool:
        """Whether a trajectory that this one was opened inside, at any depth, is of the group. When all were added."""
        wanted = key_of(group)
        return any(self._groups.get(one) == wanted for one in lineage(key, self._parents) if one != key)


class NotCounted:
    """The positions of a stream that do not count, as far as it was read."""

    def __init__(self) -> None:
        self.families = Families()
        """Of all trajectories: what an attempt opened is inside it, although that does not count itself."""
        self.doubles: set[int] = set()
        """Lines that another one with the same id follows."""
        self.attempts: set[int] = set()
        """Attempts at a rollout that another one takes the place of."""
        self._ids: dict[int, int] = {}
        """The latest position, by the key of the id."""
        self._first: dict[int, int] = {}
        """The first position of ids that came again."""
        self._rollout_of: dict[int, int] = {}
        self._rollouts: dict[int, dict[int, _Attempt]] = {}
        """The attempts at each rollout, by the keys of their ids."""

    def add(self, position: int, trajectory: Trajectory) -> list[int]:
        """Takes the next trajectory. Returns the positions, perhaps its own, that changed between counting and not."""
        key = key_of(trajectory.id)
        self.families.add(trajectory.id, trajectory.parent_id, trajectory.group_id)
        before = self._ids.get(key)
        self._ids[key] = position
        changed = [] if before is None else self._replace(key, before)
        rollout = rollout_of(trajectory)
        if rollout is not None:
            attempt = _Attempt(rank(trajectory), self._first.get(key, position), position)
            # In another group it is another run: of the next iteration of a training, say.
            self._rollout_of[key] = key_of(*rollout, trajectory.group_id)
            self._rollouts.setdefault(self._rollout_of[key], {})[key] = attempt
            changed += self._decide(self._rollout_of[key])
        return changed

    def _replace(self, key: int, before: int) -> list[int]:
        """An id has come again, and its line before does not count any more."""
        self._first.setdefault(key, before)
        self.doubles.add(before)
        self.attempts.discard(before)
        rollout = self._rollout_of.pop(key, None)
        if rollout is None:
            return [before]
        del self._rollouts[rollout][key]
        return [before, *self._decide(rollout)]

    def _decide(self, rollout: int) -> list[int]:
        """Decides which attempt at a rollout counts."""
        found = self._rollouts[rollout].values()
        last = max(found, default=None)
        gone = {one.position for one in found if one is not last}
        changed = [one.position for one in found if (one.position in gone) != (one.position in self.attempts)]
        self.attempts.difference_update(one.position for one in found)
        self.attempts |= gone
        return changed

    def __contains__(self, position: int) -> bool:
        return position in self.doubles or position in self.attempts


def counted(
    read: Callable[[], Iterable[Trajectory]],
    of: Callable[[Trajectory], T],
    start: Callable[[NotCounted], Callable[[T], object]],
) -> NotCounted:
    """Reads a stream, and gives what is taken ``of`` the trajectories that count to a function. Returns which did not.

    The stream is read once where that will do. Where a trajectory turns out not to count after it was given (files
    that overlap), all is begun anew and the stream is read a second time. ``start`` is called at each beginning with
    which positions do not count so far, and returns the function.
    """
    known = NotCounted()
    add = start(known)
    held: dict[int, T] = {}
    is_wrong = False
    for position, trajectory in enumerate(read()):
        for one in known.add(position, trajectory):
            # One that was held back and does not count is merely dropped. Any other was given already, or dropped.
            is_wrong = is_wrong or (one != position and (one not in held or one not in known))
            held.pop(one, None)
        if is_wrong or position in known:
            continue
        if is_made_again(trajectory) and len(held) < HELD:
            held[position] = of(trajectory)
        else:
            add(of(trajectory))
    if not is_wrong:
        for taken in held.values():
            add(taken)
        return known
    add = start(known)
    for taken in _those_that_count(read(), known, of):
        add(taken)
    return known


def _those_that_count(stream: Iterable[Trajectory], known: NotCounted, of: Callable[[Trajectory], T]) -> Iterator[T]:
    for position, trajectory in enumerate(stream):
        if position not in known:
            yield of(trajectory)
