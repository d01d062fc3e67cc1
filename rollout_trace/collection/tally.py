"""Counts of a run of ``collect`` so far, updated while it runs and turned into a summary at its end."""

from __future__ import annotations

import copy
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING

from rollout_trace.collection.facts import CallTotals
from rollout_trace.collection.summary import CollectSummary, PassRate, Percentiles
from rollout_trace.train.evaluation import Chances, chances_of
from rollout_trace.train.quantiles import Numbers

if TYPE_CHECKING:
    from rollout_trace.collection.facts import Facts
    from rollout_trace.collection.items import Key
    from rollout_trace.collection.job import Outcome

REASONS = 100
"""Most reasons that are told apart; more are counted together."""
OTHER = "other reasons"
_LONGEST = 200


class Tally:
    """Counts of a run so far. All methods are called in one thread; each takes constant time.

    Statuses and rewards are those of the rollouts; calls, tokens, costs and times those of all attempts of this run.
    """

    def __init__(self, planned: int) -> None:
        # As the fields of `CollectSummary` with these names.
        self.planned = planned
        self.earlier = 0
        self.attempts = 0
        self.retried = 0
        self.left_behind = 0
        self.reward_failures = 0
        self.usage = CallTotals()
        self.reward_usage = CallTotals()
        self.steps = 0
        self.steps_with_ids = 0
        self.turns = 0
        self.exact_turns = 0
        self.without_ids: Counter[str] = Counter()
        self.drift = 0
        self.drifted = 0
        self.errors: Counter[str] = Counter()
        self.ended = 0
        """Rollouts that this run has made."""
        self.written = 0
        self.by_status: Counter[str] = Counter()
        """Of the rollouts of this run."""
        self.earlier_by_status: Counter[str] = Counter()
        self.silent: set[str] = set()
        """Episodes of attempts in which no call was recorded."""
        self.has_thrown = False
        """Whether attempts were thrown away: tried again, or followed by others."""
        self._scores = Scores()
        self._latencies = Numbers()
        self._first_tokens = Numbers()

    def add_earlier(self, facts: Facts, by: int = 1) -> None:
        """Counts a rollout that is in the output already and is not made again; ``by=-1``: takes it back."""
        self.earlier += by
        self.earlier_by_status[facts.status] += by
        self._score(facts, by)

    def add(self, outcome: Outcome) -> None:
        """Counts an attempt that has ended. Its ``facts`` are not looked at: ``add_facts`` counts them."""
        self.attempts += 1
        self.has_thrown = self.has_thrown or outcome.will_retry or outcome.attempt > 1
        self.left_behind += outcome.is_left_behind
        self.retried += outcome.will_retry
        if not outcome.will_retry:
            self._count(outcome, 1)

    def retract(self, outcome: Outcome) -> None:
        """Takes back the last attempt at a rollout that was added: it is lost, and made again."""
        self._count(outcome, -1)

    def _count(self, outcome: Outcome, by: int) -> None:
        self.ended += by
        self.by_status[outcome.status] += by
        self.by_status += Counter()  # Without those that are none any more.
        self.reward_failures += by * bool(outcome.reward_errors)
        if outcome.error is not None:
            self.errors[outcome.error.type] += by
            self.errors += Counter()
        self._score(outcome, by)

    def _score(self, of: Outcome | Facts, by: int = 1) -> None:
        self._scores.add(of.key, of.reward, of.rewards, _reason_unscored(of.status, of.reward_errors), by)

    def add_facts(self, facts: Facts) -> None:
        """Counts what an attempt of this run used, once its trajectories are written."""
        self.written += 1
        if not facts.usage.calls:
            self.silent.add(facts.episode)
        self.add_inside(facts)

    def add_inside(self, facts: Facts) -> None:
        """Counts what the child processes of an attempt used, whose trajectories these wrote themselves."""
        self.usage.add(facts.usage)
        self.reward_usage.add(facts.reward_usage)
        self.steps += facts.steps
        self.steps_with_ids += facts.steps_with_ids
        self.turns += facts.turns
        self.exact_turns += facts.exact_turns
        self.without_ids.update(facts.without_ids)
        self.drift += facts.drift
        self.drifted += facts.drift > 0
        for numbers, values in ((self._latencies, facts.latencies), (self._first_tokens, facts.first_tokens)):
            for value in values:
                numbers.add(value)

    @property
    def n_scored(self) -> int:
        """Rollouts with a reward, earlier ones included."""
        return self._scores.count

    @property
    def mean_reward(self) -> float | None:
        """Of all scored rollouts, earlier ones included; None where there are none."""
        return self._scores.running_mean

    def summary(
        self,
        *,
        run_id: str,
        output: str,
        seconds: float,
        interrupted: bool = False,
        stopped: str | None = None,
        threshold: float | None = None,
    ) -> CollectSummary:
        """The account of the run.

        A run passes with a reward of ``threshold`` or more. None: 1, if all are 0 or 1, else there is no pass@k.
        """
        scores = self._scores
        passing = scores.passing(threshold)
        mean, std, error = scores.spread()
        chances = scores.chances(passing)
        return CollectSummary(
            run_id=run_id,
            output=output,
            made=self.ended,
            by_status=dict((self.by_status + self.earlier_by_status).most_common()),
            errors=dict(self.errors.most_common()),
            unwritten=max(0, self.attempts - self.written),
            interrupted=interrupted,
            stopped=stopped,
            n_tasks=scores.n_tasks,
            n_scored=scores.count,
            mean_reward=mean,
            std_reward=std,
            stderr_reward=error,
            rewards=scores.signals,
            unscored=dict(scores.unscored.most_common()),
            threshold=passing,
            pass_at_k={one.k: PassRate(value=one.any, tasks=one.groups) for one in chances},
            pass_hat_k={one.k: PassRate(value=one.all, tasks=one.groups) for one in chances},
            usage=copy.deepcopy(self.usage),
            reward_usage=copy.deepcopy(self.reward_usage),
            latency=_percentiles(self._latencies),
            time_to_first_token=_percentiles(self._first_tokens),
            without_ids=dict(self.without_ids.most_common()),
            seconds=seconds,
            planned=self.planned,
            earlier=self.earlier,
            attempts=self.attempts,
            retried=self.retried,
            left_behind=self.left_behind,
            reward_failures=self.reward_failures,
            steps=self.steps,
            steps_with_ids=self.steps_with_ids,
            drift=self.drift,
            drifted=self.drifted,
        )


def _percentiles(values: Numbers) -> Percentiles | None:
    """The percentiles of values; None where there are none."""
    p50, p90, p99 = values.percentiles((50, 90, 99))
    if p50 is None or p90 is None or p99 is None:
        return None
    return Percentiles(count=values.count, p50=p50, p90=p90, p99=p99)


def _reason_unscored(status: str, errors: Sequence[str]) -> str:
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
        self.unscored: Counter[str] = Counter()
        self._sum = 0.0
        self._by_task: dict[tuple[str, str], array[float]] = {}
        self._signals: dict[str, tuple[int, float]] = {}
        self._is_binary = True

    def add(self, key: Key, reward: float | None, rewards: Mapping[str, float] | None, reason: str, by: int) -> None:
        """Counts a rollout (1), or takes it back (-1). ``reason``: why it has no reward, where it has none."""
        of_task = self._by_task.setdefault((key.agent, key.task), array("d"))
        if reward is None:
            known = reason in self.unscored or (by > 0 and len(self.unscored) < REASONS)
            self.unscored[reason if known else OTHER] += by
            self.unscored += Counter()  # Without those that are none any more.
        else:
            self.count += by
            self._sum += by * reward
            self._is_binary = self._is_binary and reward in (0.0, 1.0)
            (of_task.append if by > 0 else of_task.remove)(reward)
        for name, value in (rewards or {}).items():
            count, total = self._signals.get(name, (0, 0.0))
            self._signals[name] = count + by, total + by * value

    @property
    def n_tasks(self) -> int:
        """Number of tasks with a rollout."""
        return len(self._by_task)

    @property
    def running_mean(self) -> float | None:
        """Of all rewards, in constant time; None without any."""
        return self._sum / self.count if self.count else None

    def spread(self) -> tuple[float | None, float | None, float | None]:
        """The mean, the standard deviation of the sample (n - 1), and the standard error, clustered by task.

        Runs of one task are alike: taken as independent they would make the mean look surer than it is. With one run a
        task the error is ``std / sqrt(n)``; with fewer than two tasks that have rewards it is None.
        """
        clusters = [of_task for of_task in self._by_task.values() if of_task]
        if not clusters:
            return None, None, None
        mean = fmean(chain.from_iterable(clusters))
        squares = math.fsum((one - mean) ** 2 for of_task in clusters for one in of_task)
        std = math.sqrt(squares / (self.count - 1)) if self.count > 1 else None
        if len(clusters) < 2:
            return mean, std, None
        squares = math.fsum(math.fsum(one - mean for one in of_task) ** 2 for of_task in clusters)
        return mean, std, math.sqrt(squares * len(clusters) / (len(clusters) - 1)) / self.count

    @property
    def signals(self) -> dict[str, float]:
        """The mean of each named reward, of the rollouts that have it."""
        return {name: total / count for name, (count, total) in self._signals.items() if count}

    def passing(self, threshold: float | None) -> float | None:
        """The reward from which on a run passes: the threshold given; else 1, where all rewards are 0 or 1."""
        if threshold is not None or not self.count:
            return threshold
        return 1.0 if self._is_binary else None

    def chances(self, threshold: float | None) -> list[Chances]:
        """pass@k and pass^k of the scored runs of each task; none without a threshold."""
        if threshold is None:
            return []
        return chances_of((len(runs), sum(one >= threshold for one in runs)) for runs in self._by_task.values())
