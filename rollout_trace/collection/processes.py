"""``ProcessExecutor``: rollouts in processes of their own, for agents that block, leak or crash."""

from __future__ import annotations

import asyncio
import os
import pickle

from rollout_trace import guard
from rollout_trace.collection import checks
from rollout_trace.collection.job import Job, Outcome, Work
from rollout_trace.collection.pool import Pool
from rollout_trace.collection.process_main import leave_if_preparing
from rollout_trace.collection.process_worker import WorkerProcess


class ProcessExecutor:
    """Makes rollouts in worker processes, for ``rt.collect(executor=rt.ProcessExecutor())``.

    Each process makes several rollouts at once if ``concurrency`` is larger than ``processes``. A process that crashes
    or runs out of memory is replaced, and its rollouts are made again, each alone in a process. A process in which a
    timed-out rollout could not be stopped is replaced when its other rollouts have ended.

    The agent and the reward functions are pickled: define them at the top level of a module, and call ``collect`` under
    ``if __name__ == "__main__":``.

    Args:
        processes: maximum number of processes. None: the number of cores.
        rollouts_per_process: number of rollouts after which a process is replaced. None: it is used until the end.
        grace: seconds to wait before killing a process that does not respond to the timeout of a rollout, or that does
            not end when told to.

    Raises:
        TypeError, ValueError: an argument is not a number of the right kind, or is too small.
    """

    def __init__(
        self, processes: int | None = None, *, rollouts_per_process: int | None = None, grace: float = 30.0
    ) -> None:
        leave_if_preparing()
        self.processes = cores() if processes is None else checks.whole(processes, "processes", least=1)
        quota = rollouts_per_process
        self.rollouts_per_process = None if quota is None else checks.whole(quota, "rollouts_per_process", least=1)
        self.grace = checks.seconds(grace, "grace")
        self._pool: Pool[WorkerProcess] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._works: dict[int, tuple[Work, int, bytes]] = {}

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout in one of the processes.

        Raises:
            WorkerLost: the process has ended.
            TypeError: the agent, a reward or the task cannot be pickled.
            RuntimeError: no process can be started, or the executor is used in two event loops at once.
        """
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool, self._loop = Pool(self.processes, self._start), loop
        if self._loop is not loop:
            raise RuntimeError("a ProcessExecutor is used in two event loops at once: give each collect its own.")
        # Before a process is started.
        self._load(job.work)
        return await self._pool.make(job)

    def check(self, work: Work) -> None:
        """Raises TypeError if the agent or a reward cannot be sent to a process, before any rollout is made."""
        self._load(work)

    async def close(self) -> None:
        """Lets each process finish its output, and ends it. The executor can be used again."""
        pool, self._pool = self._pool, None
        self._works.clear()
        if pool is not None:
            await pool.close()

    def _start(self, number: int) -> WorkerProcess:
        quota = self.rollouts_per_process
        if quota is not None and number < self.processes:
            # Not all of the first ones are to be replaced at the same time.
            quota = max(1, quota * (number + 1) // self.processes)
        assert self._pool is not None
        return WorkerProcess(number, quota, self.grace, self._load, self._pool.lost)

    def _load(self, work: Work) -> tuple[int, bytes]:
        """Number of a run, and what its rollouts share, pickled once."""
        if id(work) not in self._works:
            self._works[id(work)] = (work, len(self._works), _pickled(work))
        _, number, payload = self._works[id(work)]
        return number, payload


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pickled(work: Work) -> bytes:
    """What the rollouts of a run share. Raises TypeError where a part of it cannot be pickled, with its name."""
    try:
        return pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        reason = error
    parts = {"the agent": work.agent, "the reward": work.rewards, "engine": work.engine}
    parts.update((f"recording={{{name!r}: ...}}", value) for name, value in work.recording.items())
    named = "what collect was given"
    for name, value in parts.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            named, reason = name, error
            break
    raise TypeError(
        f"{named} cannot be sent to another process ({guard.describe(reason)}). Define it at the top level of a "
        "module, not as a lambda or inside a function. Or give agents and rewards by their place, "
        '"module:name", or make the rollouts in this process (executor=None).'
    ) from None
