"""The account of a run of ``collect``: kept while it runs (``Tally``), and told at its end (``CollectSummary``)."""

from __future__ import annotations

import copy
from array import array
from collections import Counter
from typing import TYPE_CHECKING

from rollout_trace.collection.account import CollectSummary
from rollout_trace.collection.facts import CallTotals
from rollout_trace.collection.totals import Scores, percentiles, reason_unscored

if TYPE_CHECKING:
    from rollout_trace.collection.facts import Facts
    from rollout_trace.collection.job import Outcome
    from rollout_trace.data.model import Cost

__all__ = ["CollectSummary", "Tally"]


class Tally:
    """What has come of a run so far. All methods are called in one thread; each takes constant time.

    Statuses and rewards are those of the rollouts; calls, tokens, costs and times those of all attempts of this run.
    """

    def __init__(self, planned: int) -> None:
        self.planned = planned
        """Rollouts of the whole plan, earlier ones included."""
        self.ended = 0
        """Rollouts that this run has made."""
        self.earlier = 0
        """Rollouts that were in the output before, and are not made again."""
        self.attempts = 0
        """Attempts that have ended."""
        self.written = 0
        """Of these, those whose trajectories are in the output."""
        self.retried = 0
        """Attempts that another followed."""
        self.left_behind = 0
        """Attempts whose agent could not be stopped."""
        self.reward_failures = 0
        """Rollouts with a reward function that failed."""
        self.by_status: Counter[str] = Counter()
        """Of the rollouts of this run."""
        self.earlier_by_status: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Rollouts of this run that failed, by the class of the exception."""
        self.usage = CallTotals()
        self.reward_usage = CallTotals()
        self.steps = 0
        self.steps_with_ids = 0
        self.without_ids: Counter[str] = Counter()
        self.drift = 0
        self.drifted = 0
        """Attempts with drift."""
        self.silent: set[str] = set()
        """Episodes of attempts in which no call was recorded."""
        self.has_thrown = False
        """Whether attempts were thrown away: tried again, or followed by others."""
        self._scores = Scores()
        self._latencies = array("f")
        self._first_tokens = array("f")

    def add_earlier(self, facts: Facts) -> None:
        """Counts a rollout that is in the output already and is not made again."""
        self.earlier += 1
        self.earlier_by_status[facts.status] += 1
        self._scores.add(facts.key, facts.reward, facts.rewards, reason_unscored(facts.status, facts.reward_errors))

    def add(self, outcome: Outcome) -> None:
        """Counts an attempt that has ended. Its ``facts`` are not looked at: ``add_facts`` counts them."""
        self.attempts += 1
        self.has_thrown = self.has_thrown or outcome.will_retry or outcome.attempt > 1
        self.left_behind += outcome.is_left_behind
        if outcome.will_retry:
            self.retried += 1
            return
        self.ended += 1
        self.by_status[outcome.status] += 1
        self.reward_failures += bool(outcome.reward_errors)
        if outcome.error is not None:
            self.errors[outcome.error.type] += 1
        reason = reason_unscored(outcome.status, outcome.reward_errors)
        self._scores.add(outcome.key, outcome.reward, outcome.rewards, reason)

    def retract(self, outcome: Outcome) -> None:
        """Takes back the last attempt at a rollout that was added: it is lost, and made again."""
        self.ended -= 1
        self.by_status -= Counter([outcome.status])
        self.reward_failures -= bool(outcome.reward_errors)
        if outcome.error is not None:
            self.errors -= Counter([outcome.error.type])
        reason = reason_unscored(outcome.status, outcome.reward_errors)
        self._scores.remove(outcome.key, outcome.reward, outcome.rewards, reason)

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
        self.without_ids.update(facts.without_ids)
        self.drift += facts.drift
        self.drifted += facts.drift > 0
        self._latencies.extend(facts.latencies)
        self._first_tokens.extend(facts.first_tokens)

    @property
    def n_scored(self) -> int:
        """Rollouts with a reward, earlier ones included."""
        return self._scores.count

    @property
    def mean_reward(self) -> float | None:
        """Of all scored rollouts, earlier ones included; None where there are none."""
        return self._scores.running_mean

    @property
    def calls(self) -> int:
        """Calls of the agents in this run."""
        return self.usage.calls

    @property
    def input_tokens(self) -> int:
        """Sum of the known counts of this run."""
        return self.usage.input_tokens

    @property
    def output_tokens(self) -> int:
        """Sum of the known counts of this run."""
        return self.usage.output_tokens

    @property
    def cost(self) -> Cost | None:
        """Sum of the known costs of this run; None where no call has one, or currencies differ."""
        return self.usage.cost

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

        Args:
            run_id: of this run of ``collect``.
            output: path or address.
            seconds: that the run took.
            interrupted: whether Ctrl-C, or a cancellation, ended it.
            stopped: why it ended before all rollouts were made.
            threshold: a run passes with this reward or more. None: with 1, where all rewards are 0 or 1; where they are
                not there is no pass@k.
        """
        scores = self._scores
        passing = scores.passing(threshold)
        return CollectSummary(
            run_id=run_id,
            output=output,
            planned=self.planned,
            made=self.ended,
            earlier=self.earlier,
            by_status=dict((self.by_status + self.earlier_by_status).most_common()),
            errors=dict(self.errors.most_common()),
            attempts=self.attempts,
            unwritten=max(0, self.attempts - self.written),
            retried=self.retried,
            left_behind=self.left_behind,
            interrupted=interrupted,
            stopped=stopped,
            n_tasks=scores.n_tasks,
            n_scored=scores.count,
            mean_reward=scores.mean,
            std_reward=scores.std,
            stderr_reward=scores.standard_error,
            rewards=scores.signals,
            unscored=dict(scores.unscored.most_common()),
            reward_failures=self.reward_failures,
            threshold=passing,
            pass_at_k={} if passing is None else scores.pass_at_k(passing),
            pass_hat_k={} if passing is None else scores.pass_hat_k(passing),
            usage=copy.deepcopy(self.usage),
            reward_usage=copy.deepcopy(self.reward_usage),
            latency=percentiles(self._latencies),
            time_to_first_token=percentiles(self._first_tokens),
            steps=self.steps,
            steps_with_ids=self.steps_with_ids,
            without_ids=dict(self.without_ids.most_common()),
            drift=self.drift,
            drifted=self.drifted,
            seconds=seconds,
        )
