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
    """The runs of one task. What is computed from rewards raises ValueError if one is no finite number."""

    id: Hashable
    """The key that the runs have in common: their ``group_id``, or the result of ``key``."""
    trajectories: tuple[Trajectory, ...]
    """The runs, in input order."""
    inside: tuple[Trajectory, ...] = ()
    """What was opened inside the runs, such as sub-agents, where it is no run of a group of its own."""
    n_repeated: int = 0
    """Number of inputs that were dropped as repetitions of these runs: of equal ids only the last counts."""
    n_earlier_attempts: int = 0
    """Number of runs that were dropped because ``rt.collect`` made another attempt at the same rollout: the last one
    counts. So are sub-agents of such an attempt, where they are runs of a group of their own."""

    def _repr_html_(self) -> str:
        """The picture of the group in a notebook."""
        html: str = registered("group_html")(self)
        return html

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Each run's reward; None where it was not scored."""
        return tuple(trajectory.reward for trajectory in self.trajectories)

    @property
    def n_scored(self) -> int:
        """Number of runs with a reward."""
        return sum(reward is not None for reward in self.rewards)

    @property
    def mean(self) -> float | None:
        """Mean of the rewards; None where no run is scored."""
        scored = [reward for _, reward in self._scored()]
        return statistics.mean(scored) if scored else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the rewards (divided by n - 1), as in TRL 1.16 and verl 0.9.1.

        None with fewer than two rewards, for which it is not defined.
        """
        scored = [reward for _, reward in self._scored()]
        return statistics.stdev(scored) if len(scored) > 1 else None

    @property
    def best(self) -> Trajectory | None:
        """The run with the highest reward, the first of equals; None where no run is scored."""
        return max(self._scored(), key=lambda pair: pair[1], default=(None, 0.0))[0]

    def advantages(
        self, method: Literal["grpo", "leave_one_out"] = "grpo", *, normalize: bool = True, eps: float = 1e-4
    ) -> list[float | None]:
        """The advantage of each run over its group: one number per trajectory, None where it was not scored.

        Runs without a reward are no part of the baseline. Equal rewards give exactly 0.0.

        Args:
            method: ``grpo``: ``(reward - mean) / (std + eps)``; 0.0 where one run alone is scored.
                ``leave_one_out`` (RLOO): reward - mean of the others; None where there are no others.
            normalize: for GRPO alone. False: ``reward - mean``, as in Dr. GRPO (arXiv 2503.20783).
            eps: added to the deviation, so that a tiny one does not give huge advantages; 1e-4 is TRL's, 1e-6 verl's.

        Raises:
            ValueError: a reward is no finite number, or ``method`` is unknown.
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
    """The groups of these trajectories, in the order of their first runs.

    A trajectory whose key is None is in no group. Nor is one that was opened inside another of the same group, at any
    depth: it is a part of that run, not another run. Parents that are not among ``trajectories`` are not considered.
    Of several with one id (a run written twice, two files that overlap) the last counts, in the place of the first;
    ``Group.n_repeated`` counts the others, and one warning is logged. Of several attempts of ``rt.collect`` at one
    rollout (one name, task and index) the last counts; ``Group.n_earlier_attempts`` counts the others, and what was
    opened inside them.

    Args:
        trajectories: any iterable, read once.
        key: returns what runs of one task have in common; ``group_id`` by default. With
            ``lambda trajectory: (trajectory.group_id, trajectory.name)`` each agent is compared with its own kind.

    Raises:
        TypeError: one of them is no trajectory. To read them from a path, use ``rt.read(path)``.
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
    """The advantage of each run within its group (``groups()``), by trajectory id; None where it was not scored.

    A run counts once, however many rows or trajectories it has, and whether or not its tokens can be used. A trajectory
    in no group, or inside another run of its group, has no entry.

    Raises:
        ValueError: as ``Group.advantages``.
    """
    return {
        run.id: value
        for group in groups(trajectories)
        for run, value in zip(group.trajectories, group.advantages(method), strict=True)
    }
