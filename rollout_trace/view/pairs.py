"""Which trajectories of two files belong together: those of one id, else the same rollout of the same task."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rollout_trace.file.find import IndexedLine

K = TypeVar("K", bound=Hashable)

Pair: TypeAlias = "tuple[IndexedLine | None, IndexedLine | None]"
"""Of the first and the second file; None: it is only in the other one."""


def pairs_of(a: Sequence[IndexedLine], b: Sequence[IndexedLine]) -> list[Pair]:
    """Every trajectory of both, once: pairs in the order of ``a``, then those that are only in ``b``.

    Trajectories of one id are a pair. The others are paired by agent's name, task, group and rollout index; where
    several have the same, in their order.
    """
    with_id: dict[str, deque[int]] = {}
    for at, line in enumerate(b):
        with_id.setdefault(line.head.id, deque()).append(at)
    partner: list[int | None] = [_take(with_id, line.head.id) for line in a]
    taken = {at for at in partner if at is not None}
    with_key: dict[tuple[object, ...], deque[int]] = {}
    for at, line in enumerate(b):
        if at not in taken:
            with_key.setdefault(_key(line), deque()).append(at)
    for at, line in enumerate(a):
        if partner[at] is None:
            partner[at] = _take(with_key, _key(line))
    taken = {at for at in partner if at is not None}
    pairs: list[Pair] = [(line, None if at is None else b[at]) for line, at in zip(a, partner, strict=True)]
    return pairs + [(None, line) for at, line in enumerate(b) if at not in taken]


def _take(places: dict[K, deque[int]], key: K) -> int | None:
    left = places.get(key)
    return left.popleft() if left else None


def _key(line: IndexedLine) -> tuple[object, ...]:
    head = line.head
    return head.name, None if head.task is None else head.task.id, head.group_id, head.rollout_index
