"""pass@k of a stream of trajectories, by the groups of ``rt.groups`` and as ``rt.pass_at_k`` estimates it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.train.evaluation import chance_of_all, chance_of_any
from rollout_trace.view.counted import Families, key_of

if TYPE_CHECKING:
    from rollout_trace.view.model import Summary


class Pass(NamedTuple):
    """The chance to pass with ``k`` runs."""

    k: int
    any: float
    """pass@k: that one of them passes."""
    all: float
    """pass^k: that all of them pass."""
    groups: int
    """Groups with as many scored runs; the others are left out."""


class Passes:
    """Scored runs, and those that pass, by group.

    Args:
        threshold: a run passes with this reward or more.
        families: which trajectories are inside others, of all that were read; None: of those that are added.
    """

    def __init__(self, threshold: float, families: Families | None = None) -> None:
        self.threshold = threshold
        self._families = Families() if families is None else families
        self._adds_families = families is None
        self._groups: dict[str, list[int]] = {}
        """Number of scored runs, and of those that pass."""
        self._waiting: list[tuple[int, str, float]] = []
        """Key of the id, group and reward of scored ones that were opened inside another one, perhaps of their group:
        whether they are runs of it is known when all have been read."""

    def add(self, one: Summary) -> None:
        """Adds a trajectory."""
        if self._adds_families:
            self._families.add(one.id, one.parent, one.group)
        if one.group is None or one.reward is None:
            return
        if one.parent is None:
            self._score(one.group, one.reward)
        else:
            self._waiting.append((key_of(one.id), one.group, one.reward))

    def _score(self, group: str, reward: float) -> None:
        counts = self._groups.setdefault(group, [0, 0])
        counts[0] += 1
        counts[1] += reward >= self.threshold

    def _take_waiting(self) -> None:
        for key, group, reward in self._waiting:
            if not self._families.is_inside(key, group):
                self._score(group, reward)
        self._waiting = []

    def at_k(self) -> list[Pass]:
        """The chances with 1, 2, 4, ... runs, as far as there is a group with as many. When all have been added."""
        self._take_waiting()
        return list(self._at_k())

    def _at_k(self) -> Iterator[Pass]:
        k = 1
        while enough := [(n, c) for n, c in self._groups.values() if n >= k]:
            yield Pass(
                k,
                math.fsum(chance_of_any(n, c, k) for n, c in enough) / len(enough),
                math.fsum(chance_of_all(n, c, k) for n, c in enough) / len(enough),
                len(enough),
            )
            k *= 2

    @property
    def groups(self) -> int:
        """Groups with a scored run. When all have been added."""
        self._take_waiting()
        return len(self._groups)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.at_k()
        return {
            "threshold": self.threshold,
            "groups": self.groups,
            "pass_at_k": {str(one.k): one.any for one in found},
            "pass_hat_k": {str(one.k): one.all for one in found},
            "groups_at_k": {str(one.k): one.groups for one in found},
        }
