"""How good an agent is: pass@k and pass^k of its runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace import guard
from rollout_trace.data.user_values import brief, finite_number
from rollout_trace.train.groups import Group, finite_reward, groups

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

Key: TypeAlias = "Callable[[Trajectory], Hashable | None]"
Passes: TypeAlias = "float | Callable[[Trajectory], bool | None]"


def pass_at_k(
    trajectories: Trajectory | Iterable[Trajectory],
    k: int,
    *,
    threshold: Passes = 1.0,
    key: Key | None = None,
    on_short: Literal["raise", "drop"] = "raise",
) -> float:
    """The chance that at least one of ``k`` runs of a task passes, averaged over the tasks.

    Of a task with ``n`` scored runs, ``c`` of which passed, it is ``1 - C(n-c, k) / C(n, k)``: the unbiased estimator
    of Chen et al. 2021 (arXiv 2107.03374). The groups are those of ``rt.groups``. Runs without a reward are not counted
    as failed: they are no runs of their group here.

    Args:
        trajectories: any iterable, read once; what ``rt.read`` gives.
        k: number of runs, from 1.
        threshold: a run passes with this reward or more; or a function that returns whether a run passes, and None for
            one that is not scored.
        key: returns what runs of one task have in common; ``group_id`` by default.
        on_short: where a group has fewer than ``k`` scored runs: ``raise``, or ``drop`` the group, with a warning that
            counts them. The mean is then of the other tasks, which may be the easier ones.

    Raises:
        TypeError: one of them is no trajectory; ``k`` is no whole number.
        ValueError: there is no group with ``k`` scored runs, or not each has as many; an option or a reward is invalid.
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
    """pass^k: the chance that all of ``k`` runs of a task pass, averaged over the tasks. How reliable an agent is.

    Of a task with ``n`` scored runs, ``c`` of which passed, it is ``C(c, k) / C(n, k)``: the unbiased estimator of
    tau-bench (Yao et al. 2024, arXiv 2406.12045). Arguments, and what is raised, are those of ``rt.pass_at_k``.
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
    passes = _passes(threshold, name)
    counted = [(group, *_count(group, passes)) for group in groups(trajectories, key=key)]
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


def _passes(threshold: Any, name: str) -> Callable[[Trajectory], bool | None]:
    if callable(threshold):
        return threshold  # type: ignore[no-any-return]
    least = finite_number(threshold, f"threshold of rt.{name}")
    return lambda run: None if run.reward is None else finite_reward(run) >= least


def _count(group: Group, passes: Callable[[Trajectory], bool | None]) -> tuple[int, int]:
    """Number of scored runs, and of those that pass."""
    results = [bool(result) for run in group.trajectories if (result := passes(run)) is not None]
    return len(results), sum(results)


def chance_of_any(n: int, c: int, k: int) -> float:
    """pass@k: the chance that at least one of k of the runs passed (Chen et al. 2021, arXiv 2107.03374)."""
    # Whole numbers, divided once: exact, where a product of fractions would gather rounding errors.
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def chance_of_all(n: int, c: int, k: int) -> float:
    """pass^k: the chance that all of k of the runs passed (tau-bench, Yao et al. 2024, arXiv 2406.12045)."""
    return math.comb(c, k) / math.comb(n, k)
