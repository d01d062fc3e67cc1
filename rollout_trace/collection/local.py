"""The executor of this process: async agents in its event loop, others in threads."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

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
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[BaseException | None] = loop.create_future()

        def close() -> None:
            error: BaseException | None = None
            try:
                self._worker.close()
            except BaseException as failure:
                error = failure
            try:
                loop.call_soon_threadsafe(_set, closed, error)
            except RuntimeError:  # Ctrl-C, twice: nobody waits any more.
                pass

        # A thread that neither the loop nor the interpreter waits for at its end.
        threading.Thread(target=close, name="rollout_trace close", daemon=True).start()
        error = await closed
        if error is not None:
            raise error


def _set(closed: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    if not closed.done():
        closed.set_result(error)
