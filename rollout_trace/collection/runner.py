"""Makes the rollouts of a plan, so many at a time: retries, stops, and the account of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rollout_trace.collection.items import Key
from rollout_trace.collection.job import Job, Outcome, WorkerLost
from rollout_trace.collection.resume import Plan, after
from rollout_trace.collection.serving import LocalExecutor
from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.data.model import error_info

if TYPE_CHECKING:
    from rollout_trace.collection.job import Executor
    from rollout_trace.collection.progress import Monitor
    from rollout_trace.collection.reporters import Reporters
    from rollout_trace.collection.tally import Tally

TICK = 0.25
"""Seconds between two looks at the progress."""
LOSSES = 3
"""How often a rollout is made again whose worker was lost."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """Makes the rollouts of one plan. All methods run in one event loop."""

    plan: Plan
    executor: Executor
    tally: Tally
    monitor: Monitor
    reporter: Reporters
    concurrency: int
    most_failures: float
    """Stops after so many rollouts in a row have failed."""
    stopped: str | None = None
    """Why no further rollouts are begun."""
    is_interrupted: bool = False
    lost: int = 0
    """How often a worker was lost."""
    made: dict[Key, Outcome] = field(default_factory=dict)
    """What came of the rollouts, where workers can be lost."""
    _running: int = 0
    _failures: int = 0
    _slots: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, jobs: Iterator[Job] | None = None) -> None:
        """Makes the rollouts of the plan, or these, and returns when all have ended. Closes nothing.

        Raises:
            CancelledError: the task was cancelled; the rollouts that ran have been cut.
            Exception: an executor failed; so have they.
        """
        jobs = self.plan.jobs() if jobs is None else jobs
        self.lost = 0
        self._slots = [asyncio.ensure_future(self._fill(jobs)) for _ in range(min(self.concurrency, self.plan.size))]
        ticking = asyncio.ensure_future(self._tick())
        try:
            if self._slots:
                await asyncio.wait(self._slots, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Of slots that run still, one has failed, or this task is cancelled.
            running = [slot for slot in self._slots if not slot.done()]
            for slot in running:
                slot.cancel()
            ticking.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        # Of all: an exception that nobody looks at is printed when its task is freed.
        errors = [slot.exception() for slot in self._slots if not slot.cancelled()]
        if (error := next(filter(None, errors), None)) is not None:
            raise error

    def interrupt(self) -> None:
        """Begins no further rollout, and cuts those that run."""
        self.is_interrupted = True
        self.monitor.state = "stopping"
        for slot in self._slots:
            slot.cancel()

    def report(self) -> None:
        """Shows the progress now."""
        self.reporter.update(self.monitor.progress(self._running))

    async def _tick(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(TICK)

    async def _fill(self, jobs: Iterator[Job]) -> None:
        """One of the places for a running rollout: makes one after the other."""
        for job in jobs:
            if self.stopped is not None or self.is_interrupted:
                return
            self._running += 1
            try:
                outcome = await self._make(job)
                # Without a trajectory, or to be tried again, it is not expected in the output.
                is_final = outcome.trajectory_id and not outcome.will_retry
                if is_final and not isinstance(self.executor, LocalExecutor):
                    self.made[outcome.key] = replace(outcome, facts=None)
                self._count(outcome)
            finally:
                self._running -= 1
            self.report()

    async def _make(self, job: Job) -> Outcome:
        """Makes a rollout, as often as that takes; returns what came of the last attempt."""
        losses = 0
        while True:
            try:
                outcome = await self.executor.run(job)
            except WorkerLost as error:
                losses += 1
                self.lost += 1
                if losses > LOSSES:
                    outcome = _lost(job, error)
                    self._add(outcome)
                    return outcome
                # What the lost one recorded is in its journal.
                job = replace(job, attempt=job.attempt + 1)
                continue
            self._add(outcome)
            if not outcome.will_retry or self.stopped is not None:
                return outcome
            job = replace(after(job, outcome.attempt, outcome.trajectory_id), failures=job.failures + 1)
            self.report()
            # Rollouts that fail together, for one server, are not to come back together.
            await asyncio.sleep(self.plan.work.retries.wait(job.failures) * random.uniform(0.5, 1.0))

    def _add(self, outcome: Outcome) -> None:
        self.tally.add(outcome)
        self.monitor.add(outcome)
        if outcome.facts is not None:
            self.tally.add_facts(outcome.facts)

    def _count(self, outcome: Outcome) -> None:
        self._failures = self._failures + 1 if outcome.status in NOT_SUCCEEDED else 0
        if outcome.reward_errors and self.tally.reward_failures == 1:
            text = f"{outcome.key.task}[{outcome.key.index}] reward failed: {outcome.reward_errors[0]}"
            self.reporter.note(f"{text:.500}")
        if self._failures >= self.most_failures and self.stopped is None:
            last = "" if outcome.error is None else f"; the last: {outcome.error.type}: {outcome.error.message}"
            self.monitor.state = "stopping"
            rollouts = "rollout" if self._failures == 1 else "rollouts in a row"
            self.stopped = f"{self._failures} {rollouts} failed{last:.500}"
            self.reporter.note(f"stopping: {self.stopped}")


def _lost(job: Job, error: WorkerLost) -> Outcome:
    return Outcome(
        key=job.key,
        attempt=job.attempt,
        trajectory_id="",
        status="failed",
        error=error_info(error),
        error_kinds=("WorkerLost", "RuntimeError", "Exception"),
    )
