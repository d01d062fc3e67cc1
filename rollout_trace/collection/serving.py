"""The workers of this process: of its own executor, and by run of others, whose jobs come in any thread."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from rollout_trace._threads import lock_for, renew_after_fork
from rollout_trace.collection.calls import in_thread
from rollout_trace.collection.worker import Worker

if TYPE_CHECKING:
    from rollout_trace.collection.facts import Facts
    from rollout_trace.collection.job import Job, Outcome, Work
    from rollout_trace.collection.worker import Family
    from rollout_trace.data.trajectory import Trajectory

_PATIENCE = 5.0
"""Seconds for an event loop to end."""


class LocalExecutor:
    """Makes rollouts in this process: async agents in its event loop, others in threads."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.flush = worker.flush

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout; its trajectory is being written when this returns."""
        return await self._worker.attempt(job)

    async def close(self) -> None:
        """Waits until everything is written. Raises WriteError where something could not be."""
        _, closed = in_thread(self._worker.close, "rollout_trace close")
        _, error = await closed
        if error is not None:
            raise error


class _Served:
    """The worker of one run of ``collect`` in a process that an executor started, with an event loop on a thread."""

    def __init__(self, work: Work) -> None:
        self._hands_over = work.hands_over
        self._written: dict[str, tuple[Facts | None, list[Trajectory]]] = {}
        """What is in the output, by the id of the rollout's trajectory."""
        self.worker = Worker(work, self._keep)
        self.worker.open()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _keep(self, family: Family, facts: Facts | None) -> None:
        self._written[family.id] = facts, family.written if self._hands_over else []

    def run(self, job: Job) -> Outcome:
        """Makes a rollout on the event loop's thread."""
        with _lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "rollout_trace worker"
                self._thread = threading.Thread(target=_drive, args=(self._loop,), name=name, daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(self.arun(job), self._loop).result()

    async def arun(self, job: Job) -> Outcome:
        """Makes a rollout, and waits until it is in the output."""
        outcome = await self.worker.attempt(job)
        await self.worker.flush()
        outcome.facts, outcome.trajectories = self._written.pop(outcome.trajectory_id, (None, ()))
        return outcome

    def close(self) -> None:
        """Completes the output and ends the event loop."""
        try:
            self.worker.close()
        finally:
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                # An agent that blocks the loop keeps it.
                self._thread.join(_PATIENCE)


def _drive(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is stopped, and frees what it holds."""
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def run_job(job: Job) -> Outcome:
    """Makes a rollout in this process; see ``Job.run``."""
    return _served(job.work).run(job)


async def arun_job(job: Job) -> Outcome:
    """Makes a rollout in this event loop; see ``Job.arun``."""
    return await _served(job.work).arun(job)


def finish(work: Work) -> None:
    """Completes what this process wrote in a run, and closes its output; see ``Work.finish``."""
    with _lock:
        served = _workers.pop(work.run_id, None)
    if served is not None:
        served.close()


def _served(work: Work) -> _Served:
    with _lock:
        if work.run_id not in _workers:
            _workers[work.run_id] = _Served(work)
        return _workers[work.run_id]


_lock = lock_for(__name__)
_workers: dict[str, _Served] = {}
"""By the id of their run. A forked process has none: their threads are not in it."""
renew_after_fork(_served, lambda _: _workers.clear())
