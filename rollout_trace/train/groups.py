"""Groups of runs of one task, and advantages from the comparison of their rewards: GRPO and its kin.

Values are computed on access from the current state of the trajectories, which are never changed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rollout_trace import guard
from rollout_trace._field_docs import document_fields
from rollout_trace._lazy import registered
from rollout_trace.data.episodes import episode_of, last_attempts, lineage
from rollout_trace.data.trajectory import each_trajectory

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The runs of one task. Whatever is computed from rewards raises ValueError if a reward is not a finite number."""

    id: Hashable
    """Key shared by the runs: their ``group_id``, or the result of ``key``."""
    trajectories: tuple[Trajectory, ...]
    """The runs, in input order."""
    inside: tuple[Trajectory, ...] = ()
    """Trajectories opened inside the runs, such as sub-agents, unless they belong to a group of their own."""
    n_repeated: int = 0
    """Number of inputs dropped because they repeat a run's id; only the last one with an id is used."""
    n_earlier_attempts: int = 0
    """Number of runs dropped because ``rt.collect`` made another attempt at the same rollout; only the last attempt is
    used. Includes sub-agents of earlier attempts that would be runs of their own group."""

    def _repr_html_(self) -> str:
        """The picture of the group in a notebook."""
        html: str = registered("group_html")(self)
        return html

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Each run's reward; None if it was not scored."""
        return tuple(trajectory.reward for trajectory in self.trajectories)

    @property
    def n_scored(self) -> int:
        """Number of runs with a reward."""
        return sum(reward is not None for reward in self.rewards)

    @property
    def mean(self) -> float | None:
        """Mean of the rewards; None if no run is scored."""
        scored = [reward for _, reward in self._scored()]
        return statistics.mean(scored) if scored else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the rewards (divided by n - 1), as in TRL 1.16 and verl 0.9.1.

        None with fewer than two rewards, where it is undefined.
        """
        scored = [reward for _, reward in self._scored()]
        return statistics.stdev(scored) if len(scored) > 1 else None

    @property
    def best(self) -> Trajectory | None:
        """The run with the highest reward (the first of equals); None if no run is scored."""
        return max(self._scored(), key=lambda pair: pair[1], default=(None, 0.0))[0]

    def advantages(
        self, method: Literal["grpo", "leave_one_out"] = "grpo", *, normalize: bool = True, eps: float = 1e-4
    ) -> list[float | None]:
        """Computes each run's advantage over its group: one number per trajectory, None if it was not scored.

        Runs without a reward do not count in the baseline. Equal rewards give exactly 0.0.

        Args:
            method: ``grpo``: ``(reward - mean) / (std + eps)``; 0.0 if only one run is scored. ``leave_one_out``
                (RLOO): reward - mean of the others; None if there are no others.
            normalize: for GRPO only. False: ``reward - mean``, as in Dr. GRPO (arXiv 2503.20783).
            eps: added to the standard deviation, so that a tiny one does not give huge advantages; TRL uses 1e-4, verl
                1e-6.

        Raises:
            ValueError: a reward is not a finite number, or ``method`` is unknown.
        """
        if method not in ("grpo", "leave_one_out"):
            raise ValueError(f"method={method!r}: expected 'grpo' or 'leave_one_out'.")
        scored, mean = len(self._scored()), self.mean or 0.0
        above = [None if run.reward is None else finite_reward(run) - mean for run in self.trajectories]
        if method == "leave_one_out":
            # reward - mean of the others = (reward - mean of all) * n / (n - 1)
            return [None if one is None or scored < 2 else one * scored / (scored - 1) for one in above]
        spread = (self.std or 0.0) + eps if normalize else 1.0
        # 0 stays 0: with eps=0, equal rewards would divide 0 by 0.
        return [one / spread if one else one for one in above]

    def _scored(self) -> list[tuple[Trajectory, float]]:
        return [(run, finite_reward(run)) for run in self.trajectories if run.reward is not None]


def groups(
    trajectories: Trajectory | Iterable[Trajectory], *, key: Callable[[Trajectory], Hashable | None] | None = None
) -> list[Group]:
    """Groups trajectories by task; the groups are in the order of their first runs.

    A trajectory whose key is None belongs to no group. Neither does one opened inside another of the same group, at any
    depth: it is part of that run, not another run. Parents that are not among ``trajectories`` are not considered. If
    several trajectories have the same id (a run written twice, overlapping files), the last one is used, in the place
    of the first; ``Group.n_repeated`` counts the others, and one warning is logged. If ``rt.collect`` made several
    attempts at a rollout (same name, task and index), the last one is used; ``Group.n_earlier_attempts`` counts the
    others, and what was opened inside them.

    Args:
        trajectories: any iterable, read once.
        key: a function that returns the same value for all runs of a group; ``group_id`` by default. With ``lambda
            trajectory: (trajectory.group_id, trajectory.name)`` each agent is compared only with itself.

    Raises:
        TypeError: an item is not a trajectory. To read trajectories from a path, use ``rt.read(path)``.
    """
    times: Counter[str] = Counter()
    # Of equal ids a dict keeps the place of the first and the value of the last.
    latest: dict[str, Trajectory] = {}
    for run in each_trajectory(trajectories):
        times[run.id] += 1
        latest[run.id] = run
    if (repeated := times.total() - len(times)) > 0:
        first = next(one for one, count in times.items() if count > 1)
        guard.warn_once(
            "groups-repeated",
            f"rt.groups got {repeated} trajectories more than once (the first: {first}): only the last one with each "
            "id counts.",
        )
    runs = list(latest.values())
    keys = [run.group_id if key is None else key(run) for run in runs]
    key_of = {run.id: run_key for run, run_key in zip(runs, keys, strict=True)}
    parents = {run.id: run.parent_id for run in runs}
    members: dict[Hashable, list[Trajectory]] = {}
    inside: dict[Hashable, list[Trajectory]] = {}
    for run, run_key in zip(runs, keys, strict=True):
        around = [key_of[one] for one in lineage(run.id, parents) if one != run.id and key_of.get(one) is not None]
        if run_key is not None and run_key not in around:
            members.setdefault(run_key, []).append(run)
        elif around:
            inside.setdefault(around[0] if run_key is None else run_key, []).append(run)
    thrown = _thrown(runs, keys)
    found: list[Group] = []
    for run_key, runs in members.items():
        counting = [run for run in last_attempts(runs) if episode_of(run) not in thrown]
        repeated, earlier = sum(times[run.id] - 1 for run in runs), len(runs) - len(counting)
        if counting:
            found.append(
                Group(
                    id=run_key,
                    trajectories=tuple(counting),
                    inside=tuple(run for run in inside.get(run_key, ()) if episode_of(run) not in thrown),
                    n_repeated=repeated,
                    n_earlier_attempts=earlier,
                )
            )
    return found


def _thrown(runs: Iterable[Trajectory], keys: Iterable[Hashable | None]) -> set[str]:
    """The episodes of attempts that another one of the same key follows at their rollout, sub-agents included."""
    by_key: dict[Hashable | None, list[Trajectory]] = {}
    for run, run_key in zip(runs, keys, strict=True):
        by_key.setdefault(run_key, []).append(run)
    counting = {run.id for members in by_key.values() for run in last_attempts(members)}
    return {episode_of(run) for members in by_key.values() for run in members if run.id not in counting}


def finite_reward(run: Trajectory) -> float:
    """The reward of a scored run as a float. Raises ValueError where it is None or no finite number."""
    try:
        reward = float(run.reward)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not math.isfinite(reward):
        raise ValueError(
            f"trajectory {run.id!r}: its reward is {run.reward!r}; give a finite number, or None if it was not scored."
        )
    return reward


def run_advantages(
    trajectories: Iterable[Trajectory], method: Literal["grpo", "leave_one_out"] = "grpo"
) -> dict[str, float | None]:
    """Computes each run's advantage within its group (``groups()``), by trajectory id; None if it was not scored.

    A run counts once, however many rows or trajectories it has, and whether or not its tokens are usable. A trajectory
    without a group, or inside another run of its group, has no entry.

    Raises:
        ValueError: as for ``Group.advantages``.
    """
    return {
        run.id: value
        for group in groups(trajectories)
        for run, value in zip(group.trajectories, group.advantages(method), strict=True)
    }
