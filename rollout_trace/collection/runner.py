"""Makes the rollouts of a plan with limited concurrency, including retries, stopping and bookkeeping."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rollout_trace.collection.items import Key
from rollout_trace.collection.job import Job, Outcome, WorkerLost
from rollout_trace.collection.resume import Plan, after
from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.data.model import error_info

if TYPE_CHECKING:
    from rollout_trace.collection.job import Executor
    from rollout_trace.collection.progress import Monitor, Progress
    from rollout_trace.collection.reporters import Reporters
    from rollout_trace.collection.stream import Stream
    from rollout_trace.collection.tally import Tally

TICK = 0.25
"""Seconds between two looks at the progress."""
LOSSES = 3
"""How often a rollout is made again whose worker was lost."""


class Jobs:
    """The jobs of an iterator, each as soon as there is a place for it. Of a stream, ``Stream`` has these methods."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs

    async def next(self) -> Job | None:
        """The next job."""
        return next(self._jobs, None)

    def begun(self, job: Job) -> Job:
        """The job of an attempt that begins: as it is."""
        return job

    def ended(self, outcome: Outcome) -> None:
        """Takes the outcome of each last attempt; does nothing."""

    def stop(self) -> None:
        """Gives no further job."""
        self._jobs = iter(())


@dataclass(slots=True, kw_only=True)
class Runner:
    """Makes the rollouts of one plan. All methods run in one event loop."""

    plan: Plan
    executor: Executor
    source: Jobs | Stream
    tally: Tally
    monitor: Monitor
    reporter: Reporters
    concurrency: int
    most_failures: float
    """Stops after so many rollouts in a row have failed."""
    keeps_outcomes: bool = False
    """Whether workers can be lost with what they wrote, and its rollouts are to be made again at the end."""
    stopped: str | None = None
    is_interrupted: bool = False
    lost: int = 0
    made: dict[Key, Outcome] = field(default_factory=dict)
    """What came of the rollouts, where ``keeps_outcomes``."""
    _running: int = 0
    _failures: int = 0
    _slots: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, source: Jobs | None = None) -> None:
        """Makes the rollouts of a source, and returns when all have ended. Closes nothing.

        Where the task is cancelled, or an executor fails, the rollouts that ran are cut, and the exception is raised.
        """
        self.source = self.source if source is None else source
        self.lost = 0
        self._slots = [asyncio.ensure_future(self._fill()) for _ in range(self.concurrency)]
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
        self.source.stop()
        for slot in self._slots:
            slot.cancel()

    def progress(self) -> Progress:
        """Returns the current progress."""
        return self.monitor.progress(self._running)

    def report(self) -> None:
        """Shows the progress now."""
        self.reporter.update(self.progress())

    async def _tick(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(TICK)

    async def _fill(self) -> None:
        """One of the places for a running rollout: makes one after the other."""
        while self.stopped is None and (job := await self.source.next()) is not None:
            self._running += 1
            try:
                outcome = await self._make(job)
                # Without a trajectory, or to be tried again, it is not expected in the output.
                is_final = outcome.trajectory_id and not outcome.will_retry
                if is_final and self.keeps_outcomes:
                    self.made[outcome.key] = replace(outcome, facts=None)
                self._count(outcome)
                self.source.ended(outcome)
            finally:
                self._running -= 1
            self.report()

    async def _make(self, job: Job) -> Outcome:
        """Makes a rollout, with retries, and returns the outcome of the last attempt."""
        losses = 0
        while True:
            job = self.source.begun(job)
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
            self.source.stop()
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
