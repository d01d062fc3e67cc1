"""The executor of this process: async agents in its event loop, others in threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.collection.calls import in_thread

if TYPE_CHECKING:
    from rollout_trace.collection.job import Job, Outcome
    from rollout_trace.collection.worker import Worker


class LocalExecutor:
    """Makes rollouts in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout; its trajectory is being written when this returns."""
        return await self._worker.attempt(job)

    async def close(self) -> None:
        """Waits until everything is written.

        Raises:
            WriteError: something could not be.
        """
        _, closed = in_thread(self._worker.close, "rollout_trace close")
        _, error = await closed
        if error is not None:
            raise error
