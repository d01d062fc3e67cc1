"""How good agents are: pass@k and pass^k of runs, and two sets of runs compared task by task."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace import guard
from rollout_trace._field_docs import document_fields
from rollout_trace.data.user_values import brief, finite_number
from rollout_trace.train.groups import Group, finite_reward, groups

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

Key: TypeAlias = "Callable[[Trajectory], Hashable | None]"
Passes: TypeAlias = "float | Callable[[Trajectory], bool | None]"
_AT_ONCE = 1_000_000
"""Most numbers that are drawn at once: 8 MB."""


def pass_at_k(
    trajectories: Trajectory | Iterable[Trajectory],
    k: int,
    *,
    threshold: Passes = 1.0,
    key: Key | None = None,
    on_short: Literal["raise", "drop"] = "raise",
) -> float:
    """Estimates the probability that at least one of ``k`` runs of a task passes, averaged over the tasks.

    For a task with ``n`` scored runs, ``c`` of which passed, it is ``1 - C(n-c, k) / C(n, k)``: the unbiased estimator
    of Chen et al. 2021 (arXiv 2107.03374). The groups are those of ``rt.groups``. Runs without a reward are ignored,
    not counted as failed.

    Args:
        trajectories: any iterable, read once, such as ``rt.read(path)``.
        k: number of runs, from 1.
        threshold: a run passes with this reward or more; or a function that returns whether a run passes, and None for
            one that is not scored.
        key: a function that returns the same value for all runs of a task; ``group_id`` by default.
        on_short: what to do if a group has fewer than ``k`` scored runs: ``raise``, or ``drop`` the group, with a
            warning that counts the dropped groups. The mean is then over the other tasks, which may be easier.

    Raises:
        TypeError: an item is not a trajectory, or ``k`` is not an integer.
        ValueError: no group, or not every one, has ``k`` scored runs; an option or a reward is invalid.
    """
    return _mean(chance_of_any, "pass_at_k", trajectories, k, threshold, key, on_short)


def pass_hat_k(
    trajectories: Trajectory | Iterable[Trajectory],
    k: int,
    *,
    threshold: Passes = 1.0,
    key: Key | None = None,
    on_short: Literal["raise", "drop"] = "raise",
) -> float:
    """Estimates pass^k, the probability that all ``k`` runs of a task pass, averaged over the tasks: the reliability.

    For a task with ``n`` scored runs, ``c`` of which passed, it is ``C(c, k) / C(n, k)``: the unbiased estimator of
    tau-bench (Yao et al. 2024, arXiv 2406.12045). Arguments and errors are those of ``rt.pass_at_k``.
    """
    return _mean(chance_of_all, "pass_hat_k", trajectories, k, threshold, key, on_short)


def _mean(
    chance: Callable[[int, int, int], float],
    name: str,
    trajectories: Trajectory | Iterable[Trajectory],
    k: int,
    threshold: Passes,
    key: Key | None,
    on_short: str,
) -> float:
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"rt.{name}: k is {brief(k)}; give a whole number of runs, such as 1.")
    if k < 1:
        raise ValueError(f"rt.{name}: k is {k}; give a number of runs, 1 or more.")
    if on_short not in ("raise", "drop"):
        raise ValueError(f"rt.{name}: on_short is {brief(on_short)}; it can be 'raise' or 'drop'.")
    passes: Any = threshold
    if not callable(threshold):
        least = finite_number(threshold, f"threshold of rt.{name}")
        passes = lambda run: None if run.reward is None else finite_reward(run) >= least  # noqa: E731
    counted = []
    for group in groups(trajectories, key=key):
        results = [bool(result) for run in group.trajectories if (result := passes(run)) is not None]
        counted.append((group, len(results), sum(results)))
    if not counted:
        raise ValueError(f"rt.{name}: no trajectory is in a group: give their group_id, or key=.")
    short = [(group, n) for group, n, _ in counted if n < k]
    if short and (on_short == "raise" or len(short) == len(counted)):
        raise ValueError(f"rt.{name}: {_too_short(short, len(counted), k)}")
    if short:
        guard.warn(f"rt.{name}: left out: {_too_short(short, len(counted), k)}")
    return math.fsum(chance(n, c, k) for _, n, c in counted if n >= k) / (len(counted) - len(short))


def _too_short(short: list[tuple[Group, int]], of: int, k: int) -> str:
    group, n = short[0]
    runs = len(group.trajectories)
    hint = "." if len(short) == of else "; on_short='drop' leaves these out."
    return (
        f"{len(short)} of {of} groups have fewer than k={k} scored runs, the first {brief(group.id)} with {n} of its "
        f"{runs} runs{hint}"
    )


def chance_of_any(n: int, c: int, k: int) -> float:
    """pass@k: the chance that at least one of k of the runs passed (Chen et al. 2021, arXiv 2107.03374)."""
    # Whole numbers, divided once: exact, where a product of fractions would gather rounding errors.
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def chance_of_all(n: int, c: int, k: int) -> float:
    """pass^k: the chance that all of k of the runs passed (tau-bench, Yao et al. 2024, arXiv 2406.12045)."""
    return math.comb(c, k) / math.comb(n, k)


class Chances(NamedTuple):
    """The chances to pass with ``k`` runs, averaged over groups of runs."""

    k: int
    any: float
    """pass@k: that one of them passes."""
    all: float
    """pass^k: that all of them pass."""
    groups: int
    """Groups with as many scored runs; the others are left out."""


def chances_of(counts: Iterable[tuple[int, int]]) -> list[Chances]:
    """The chances with 1, 2, 4, ... runs, as far as there is a group with as many.

    Args:
        counts: of each group the number of scored runs, and of those that pass.
    """
    enough = [(n, c) for n, c in counts if n]
    found: list[Chances] = []
    while enough:
        k = 1 << len(found)
        of_any, of_all = (
            math.fsum(chance(n, c, k) for n, c in enough) / len(enough) for chance in (chance_of_any, chance_of_all)
        )
        found.append(Chances(k, of_any, of_all, len(enough)))
        enough = [(n, c) for n, c in enough if n >= 2 * k]
    return found


# Two sets of runs


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of ``rt.compare(a, b)``. Differences are b - a: positive where b is better."""

    signal: str | None
    """The named reward that was compared; None: the reward itself."""
    difference: float
    """Mean, over the tasks in both, of the difference: mean of b's runs - mean of a's runs."""
    low: float | None
    """Lower end of the confidence interval of ``difference``; None with fewer than two tasks."""
    high: float | None
    """Upper end of the interval; None with fewer than two tasks."""
    confidence: float
    """Level of the interval: 0.95 for 95 %."""
    mean_a: float
    """Mean of a: the mean of the task means, over the tasks in both."""
    mean_b: float
    """The same of b."""
    both: int
    """Number of tasks with scored runs in both a and b, which are compared."""
    only_a: int
    """Number of tasks that are only in a."""
    only_b: int
    """Number of tasks that are only in b."""
    unscored: int
    """Number of tasks that are in both, but have no scored run in one of them."""
    better: int
    """Number of tasks with a higher mean in b."""
    worse: int
    """Number of tasks with a lower mean in b."""
    equal: int
    """Number of tasks with equal means."""
    unscored_runs_a: int
    """Number of a's runs without this reward, which no mean includes."""
    unscored_runs_b: int
    """The same of b."""
    differences: dict[Hashable, float]
    """Difference b - a for each task."""

    @property
    def is_clear(self) -> bool:
        """Returns whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def __str__(self) -> str:
        what = "reward" if self.signal is None else f"reward {self.signal!r}"
        span = "no interval: one task"
        if self.low is not None and self.high is not None:
            span = f"{100 * self.confidence:.4g} % interval {self.low:+.4g} to {self.high:+.4g}"
        lines = [
            f"{what}: a {self.mean_a:.4g}, b {self.mean_b:.4g}, difference {self.difference:+.4g} ({span})",
            f"{self.both} tasks in both: b better in {self.better}, worse in {self.worse}, equal in {self.equal}",
        ]
        left = ((self.only_a, "only in a"), (self.only_b, "only in b"), (self.unscored, "without a reward in one"))
        if any(count for count, _ in left):
            lines.append("tasks left out: " + ", ".join(f"{count} {where}" for count, where in left if count))
        if self.unscored_runs_a or self.unscored_runs_b:
            lines.append(f"runs without a reward: {self.unscored_runs_a} of a, {self.unscored_runs_b} of b")
        return "\n".join(lines)


def compare(
    a: Trajectory | Iterable[Trajectory],
    b: Trajectory | Iterable[Trajectory],
    *,
    signal: str | None = None,
    key: Callable[[Trajectory], Hashable | None] | None = None,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compares two sets of runs, paired by task, to tell whether ``b`` does better than ``a``.

    The interval is a percentile bootstrap of the mean difference: tasks are resampled with replacement, ``resamples``
    times. The same runs and seed give the same numbers. Runs without a reward are ignored.

    Args:
        a: the runs to compare with, such as the old agent's.
        b: the runs in question, such as the new agent's.
        signal: name of a reward in ``Trajectory.rewards``; None: ``Trajectory.reward``.
        key: a function that returns the task of a run; by default the id of its task, otherwise its ``group_id``.
        confidence: confidence level of the interval, between 0 and 1.
        resamples: number of bootstrap samples.
        seed: seed of the resampling.

    Raises:
        TypeError: an item is not a trajectory.
        ValueError: no task has scored runs in both; an option or a reward is invalid.
    """
    if not 0 < finite_number(confidence, "confidence of rt.compare") < 1:
        raise ValueError(f"rt.compare: confidence is {brief(confidence)}; give a number between 0 and 1, such as 0.95.")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        raise ValueError(f"rt.compare: resamples is {brief(resamples)}; give a whole number, 1 or more.")
    of_a, of_b = (_Side(runs, signal, key or _task_of) for runs in (a, b))
    shared = [task for task in of_a.means if task in of_b.means]
    if not shared:
        raise ValueError(_nothing_shared(of_a, of_b, signal))
    differences = {task: of_b.means[task] - of_a.means[task] for task in shared}
    values = list(differences.values())
    low, high = _interval(values, confidence, resamples, seed)
    return Comparison(
        signal=signal,
        difference=fmean(values),
        low=low,
        high=high,
        confidence=confidence,
        mean_a=fmean(of_a.means[task] for task in shared),
        mean_b=fmean(of_b.means[task] for task in shared),
        both=len(shared),
        only_a=len(of_a.tasks - of_b.tasks),
        only_b=len(of_b.tasks - of_a.tasks),
        unscored=len(of_a.tasks & of_b.tasks) - len(shared),
        better=sum(one > 0 for one in values),
        worse=sum(one < 0 for one in values),
        equal=sum(one == 0 for one in values),
        unscored_runs_a=of_a.unscored,
        unscored_runs_b=of_b.unscored,
        differences=differences,
    )


class _Side:
    """One side: a set of runs."""

    def __init__(
        self,
        trajectories: Trajectory | Iterable[Trajectory],
        signal: str | None,
        key: Callable[[Trajectory], Hashable | None],
    ) -> None:
        self.tasks: set[Hashable] = set()
        self.means: dict[Hashable, float] = {}
        """Mean reward of each task with scored runs."""
        self.unscored = 0
        for group in groups(trajectories, key=key):
            self.tasks.add(group.id)
            values = [value for run in group.trajectories if (value := _value(run, signal)) is not None]
            self.unscored += len(group.trajectories) - len(values)
            if values:
                self.means[group.id] = fmean(values)


def _task_of(run: Trajectory) -> Hashable | None:
    # Not the group first: it may have the agent's name in it, and agents are what is compared.
    return run.task.id if run.task is not None and run.task.id is not None else run.group_id


def _value(run: Trajectory, signal: str | None) -> float | None:
    if signal is None:
        return None if run.reward is None else finite_reward(run)
    value = (run.rewards or {}).get(signal)
    return None if value is None else finite_number(value, f"trajectory {run.id!r}: its reward {signal!r}")


def _nothing_shared(a: _Side, b: _Side, signal: str | None) -> str:
    what = "reward" if signal is None else f"reward {signal!r}"
    shared = len(a.tasks & b.tasks)
    if shared:
        return f"rt.compare: the tasks in a and in b, {shared}, have no runs with a {what} in both."
    return (
        f"rt.compare: no task is in both: a has {len(a.tasks)}, b has {len(b.tasks)}. Runs are paired by the id of "
        "their task, or by key=."
    )


def _interval(
    differences: list[float], confidence: float, resamples: int, seed: int
) -> tuple[float, float] | tuple[None, None]:
    """The percentile interval of the mean of a bootstrap over the tasks."""
    count = len(differences)
    if count < 2:
        return None, None
    import numpy as np

    values, generator = np.array(differences, np.float64), np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // count)
    means = [
        values[generator.integers(0, count, (min(rows, resamples - begin), count))].mean(axis=1)
        for begin in range(0, resamples, rows)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail)).tolist()
    return low, high
