"""The interface of executors, which make rollouts somewhere; and the executor of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rollout_trace.collection.calls import in_thread
from rollout_trace.collection.job import Job, Outcome

if TYPE_CHECKING:
    from rollout_trace.collection.worker import Worker


@runtime_checkable
class Executor(Protocol):
    """Makes rollouts somewhere: in this process, in others, on other machines."""

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout: has ``job.run()`` or ``job.arun()`` called somewhere, and returns what it returns.

        Called for as many jobs at the same time as ``concurrency`` allows. A cancelled call stops the rollout, if that
        is possible.

        Raises:
            WorkerLost: the process that was making it has ended. The rollout is made again.
        """

    async def close(self) -> None:
        """Ends the workers, when no rollout is left. In each that made one, what it wrote is complete first.

        A worker that ends by itself (its interpreter exits) completes what it wrote; one that is killed leaves its
        journal.
        """


class LocalExecutor:
    """Makes rollouts in this process: async agents in its event loop, others in threads."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout; its trajectory is being written when this returns."""
        return await self._worker.attempt(job)

    async def close(self) -> None:
        """Waits until everything is written. Raises WriteError where something could not be."""
        _, closed = in_thread(self._worker.close, "rollout_trace close")
        _, error = await closed
        if error is not None:
            raise error
