"""The interface of executors: where rollouts are made."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rollout_trace.collection.job import Job, Outcome


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
