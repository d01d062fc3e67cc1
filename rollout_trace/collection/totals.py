"""Statistics of a run of ``collect``: rewards by task, and times."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollout_trace._field_docs import document_fields
from rollout_trace.collection.items import Key
from rollout_trace.train.evaluation import chance_of_all, chance_of_any

REASONS = 100
"""Most reasons that are told apart; more are counted together."""
OTHER = "other reasons"
_LONGEST = 200


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of all values, with linear interpolation between them. In seconds."""

    count: int
    """Number of values."""
    p50: float
    """The median."""
    p90: float
    """90 % of the values are at most this."""
    p99: float
    """99 % of the values are at most this."""


def percentiles(values: array[float]) -> Percentiles | None:
    """The percentiles of float32 values; None where there are none."""
    if not values:
        return None
    import numpy as np

    # A copy: while numpy looks at its memory, the array cannot grow.
    p50, p90, p99 = np.percentile(np.array(values, np.float32), (50, 90, 99)).tolist()
    return Percentiles(count=len(values), p50=p50, p90=p90, p99=p99)


def reason_unscored(status: str, errors: Sequence[str]) -> str:
    """Why a rollout without a reward has none, in words that are the same for all such rollouts."""
    if errors:
        # "name: Class: message": the message is particular to one rollout.
        return f"reward function failed: {': '.join(errors[0].split(': ')[:2])}"[:_LONGEST]
    if status == "completed":
        return "no reward was given"
    return f"status {status}"[:_LONGEST]


class Scores:
    """The rewards of rollouts, by task. A rollout takes constant time and some 10 bytes, a task some 200 bytes."""

    def __init__(self) -> None:
        self.count = 0
        """Number of rewards."""
        self.unscored: Counter[str] = Counter()
        """Rollouts without a reward, by the reason."""
        self._sum = 0.0
        self._by_task: dict[tuple[str, str], array[float]] = {}
        self._signals: dict[str, tuple[int, float]] = {}
        self._is_binary = True

    def add(self, key: Key, reward: float | None, rewards: Mapping[str, float] | None, reason: str) -> None:
        """Counts a rollout. ``reason``: why it has no reward, where it has none."""
        of_task = self._by_task.get((key.agent, key.task))
        if of_task is None:
            of_task = self._by_task[key.agent, key.task] = array("d")
        if reward is None:
            known = reason in self.unscored or len(self.unscored) < REASONS
            self.unscored[reason if known else OTHER] += 1
        else:
            self.count += 1
            self._sum += reward
            self._is_binary = self._is_binary and reward in (0.0, 1.0)
            of_task.append(reward)
        for name, value in (rewards or {}).items():
            count, total = self._signals.get(name, (0, 0.0))
            self._signals[name] = count + 1, total + value

    def remove(self, key: Key, reward: float | None, rewards: Mapping[str, float] | None, reason: str) -> None:
        """Takes back a rollout that was added."""
        if reward is None:
            self.unscored -= Counter([reason if reason in self.unscored else OTHER])
        else:
            self.count -= 1
            self._sum -= reward
            self._by_task[key.agent, key.task].remove(reward)
        for name, value in (rewards or {}).items():
            count, total = self._signals[name]
            if count > 1:
                self._signals[name] = count - 1, total - value
            else:
                del self._signals[name]

    @property
    def n_tasks(self) -> int:
        """Number of tasks with a rollout."""
        return len(self._by_task)

    @property
    def running_mean(self) -> float | None:
        """``mean``, in constant time."""
        return self._sum / self.count if self.count else None

    @property
    def mean(self) -> float | None:
        """Of all rewards; None without any."""
        return math.fsum(map(math.fsum, self._by_task.values())) / self.count if self.count else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the sample (n - 1); None with fewer than two rewards."""
        mean = self.mean
        if mean is None or self.count < 2:
            return None
        squares = math.fsum((one - mean) ** 2 for of_task in self._by_task.values() for one in of_task)
        return math.sqrt(squares / (self.count - 1))

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean, clustered by task; None with fewer than two tasks that have rewards.

        Runs of one task are alike: taken as independent they would make the mean look surer than it is. With one run a
        task this is ``std / sqrt(n)``.
        """
        mean = self.mean
        clusters = [of_task for of_task in self._by_task.values() if of_task]
        if mean is None or len(clusters) < 2:
            return None
        squares = math.fsum(math.fsum(one - mean for one in of_task) ** 2 for of_task in clusters)
        return math.sqrt(squares * len(clusters) / (len(clusters) - 1)) / self.count

    @property
    def signals(self) -> dict[str, float]:
        """The mean of each named reward, of the rollouts that have it."""
        return {name: total / count for name, (count, total) in self._signals.items()}

    def passing(self, threshold: float | None) -> float | None:
        """The reward from which on a run passes: the threshold given; else 1, where all rewards are 0 or 1."""
        if threshold is not None or not self.count:
            return threshold
        return 1.0 if self._is_binary else None

    def pass_at_k(self, threshold: float) -> dict[int, PassRate]:
        """For k = 1, 2, 4, ...: the chance that one of k runs passes."""
        counts = self._passed(threshold)
        return {k: _rate([chance_of_any(n, c, k) for n, c in counts if n >= k]) for k in _powers(counts)}

    def pass_hat_k(self, threshold: float) -> dict[int, PassRate]:
        """For k = 1, 2, 4, ...: the chance that all of k runs pass."""
        counts = self._passed(threshold)
        return {k: _rate([chance_of_all(n, c, k) for n, c in counts if n >= k]) for k in _powers(counts)}

    def _passed(self, threshold: float) -> list[tuple[int, int]]:
        """For each task the number of scored runs, and of those that passed."""
        every = self._by_task.values()
        return [(len(of_task), sum(one >= threshold for one in of_task)) for of_task in every]


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """A chance to pass, averaged over tasks."""

    value: float
    """From 0 to 1."""
    tasks: int
    """Tasks that it is the mean of: those with at least k scored runs."""


def _rate(chances: list[float]) -> PassRate:
    return PassRate(value=math.fsum(chances) / len(chances), tasks=len(chances))


def _powers(counts: list[tuple[int, int]]) -> list[int]:
    most = max((n for n, _ in counts), default=0)
    return [1 << power for power in range(most.bit_length())]
