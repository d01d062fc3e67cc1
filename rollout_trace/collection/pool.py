"""Workers of an executor, and which of them makes which rollout. All methods run in one event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from rollout_trace import guard
from rollout_trace.collection.items import Key
from rollout_trace.collection.job import Job, Outcome, Work, WorkerLost

MOST_STARTS = 3
"""So many workers may end in a row before they are ready; then no further ones are started."""


class PoolWorker(ABC):
    """A worker, and the account of the rollouts that it was given."""

    patience: float | None = None
    """Seconds that rollouts wait for it to be ready, once others are; None: as long as that takes."""

    def __init__(self, quota: int | None) -> None:
        self.quota = quota
        """Rollouts after which it is replaced; None for no limit."""
        self.load = 0
        """Rollouts that it makes now."""
        self.given = 0
        """Rollouts that it was given since its start."""
        self.is_retired = False
        """Whether it is given no more rollouts, and ends when it has none."""
        self.has_failed = False
        self.is_ending = False
        self.is_late = False
        """Whether its start takes longer than ``patience`` seconds. Others get its rollouts until it is ready."""
        self.kept_for: Job | None = None
        """A rollout that it is to make alone, or makes."""
        self._watches: set[asyncio.Task[None]] = set()

    @property
    def is_full(self) -> bool:
        """Whether the worker takes no more rollouts."""
        return self.is_retired or self.given == self.quota

    @abstractmethod
    async def open(self, work: Work) -> None:
        """Waits until it can make rollouts of a run. Raises WorkerLost where it ended, others if it never will."""

    @abstractmethod
    def begin(self, job: Job) -> asyncio.Future[Outcome]:
        """Starts a rollout in the worker."""

    @abstractmethod
    def stop(self, made: asyncio.Future[Outcome]) -> None:
        """Stops one of the worker's rollouts. The future is done when it has stopped."""

    @abstractmethod
    async def end(self) -> None:
        """Lets the worker finish its output and end; returns when it has ended. Never raises."""

    @abstractmethod
    def ask(self) -> asyncio.Future[None]:
        """A future that is done when its event loop has answered, or when it has ended."""

    @abstractmethod
    def kill(self, why: str) -> None:
        """Ends its process now. Does nothing where it has ended."""

    def watch(self, made: asyncio.Future[Outcome], timeout: float, grace: float) -> None:
        """Kills it if a rollout should long have ended and its event loop does not answer, as in C code."""
        watch = asyncio.ensure_future(self._watch(made, timeout, grace))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watch(self, made: asyncio.Future[Outcome], timeout: float, grace: float) -> None:
        await asyncio.wait([made], timeout=timeout + grace / 2)
        while not made.done():
            answer = self.ask()
            either: list[asyncio.Future[Any]] = [made, answer]
            done, _ = await asyncio.wait(either, timeout=grace / 2, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                answer.cancel()
                self.kill(f"it did not answer {grace:g} seconds after a rollout's time had ended")
                return
            await asyncio.wait([made], timeout=grace)


class RemoteWorker(PoolWorker):
    """A worker that jobs are sent to, each with the number of its run, which the worker has opened.

    ``load`` gives the number of a run and what its rollouts share. The worker is killed where it does not answer for
    ``grace`` seconds; ``on_lost`` is called when it has ended by itself.
    """

    place: str
    """What it is, for messages."""

    def __init__(
        self, quota: int | None, grace: float, load: Callable[[Work], tuple[int, Any]], on_lost: Callable[[Any], None]
    ) -> None:
        super().__init__(quota)
        self._grace, self._load, self._on_lost = grace, load, on_lost
        self._why: str | None = None
        """Why it was killed; None if it was not."""

    @abstractmethod
    def send(self, number: int, job: Job) -> asyncio.Future[Outcome]:
        """Sends a job without its work. Raises where that cannot be sent."""

    def begin(self, job: Job) -> asyncio.Future[Outcome]:
        number = self._load(job.work)[0]
        try:
            made = self.send(number, replace(job, work=None))  # type: ignore[arg-type]
        except Exception as error:
            made = asyncio.get_running_loop().create_future()
            made.set_exception(
                TypeError(
                    f"the task {guard.printable(job.task.id, 200)} cannot be sent to {self.place} "
                    f"({guard.describe(error)}). Give tasks of plain values (dicts, texts, numbers), or make the "
                    "rollouts in this process (executor=None)."
                )
            )
        if job.work.timeout is not None and not made.done():
            self.watch(made, job.work.timeout, self._grace)
        return made


Worker = TypeVar("Worker", bound=PoolWorker)


class Pool(Generic[Worker]):
    """Starts workers on demand, and gives each rollout to the least busy one.

    The first one has to be ready before others are started: what hinders one hinders all. ``start`` makes a worker, of
    the number of those made before, ``most`` at the same time.
    """

    def __init__(self, most: int, start: Callable[[int], Worker]) -> None:
        self._most = most
        self._start = start
        self._workers: list[Worker] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._suspects: set[Key] = set()
        """Rollouts whose worker was lost: they are made alone."""
        self._started = 0
        self._failed_starts = 0
        self._is_proven = False
        self._failure: Exception | None = None
        self._change = asyncio.Event()
        """Set, and replaced, when a worker may be free for those that wait."""

    async def make(self, job: Job) -> Outcome:
        """Makes a rollout in one of the workers. Raises WorkerLost where that ends, and why none can make it."""
        try:
            worker = await self._ready(job)
        except BaseException:
            self._let_go(job)
            raise
        made = worker.begin(job)
        made.add_done_callback(partial(self._ended, worker, job))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            if not made.done():
                worker.stop(made)
            raise

    async def close(self) -> None:
        """Ends all workers. A call that is cancelled has each kill its process, as ``end`` does then."""
        self._refuse(RuntimeError("the executor was closed while rollouts were made."))
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.end() for worker in workers), *self._ending)

    def lost(self, worker: Worker) -> None:
        """A worker has ended by itself."""
        worker.is_retired = True
        self._end_if_idle(worker)

    async def _ready(self, job: Job) -> Worker:
        """A worker that is ready for a rollout, which is in its account."""
        while True:
            if self._failure is not None:
                raise self._failure
            change = self._change
            worker = self._find(job, alone=job.key in self._suspects)
            if worker is None:
                await change.wait()
                continue
            worker.load += 1
            worker.given += 1
            try:
                is_ready = await self._opens(worker, job.work)
            except WorkerLost as error:
                is_ready = False
                self._lost_at_start(worker, error)
            except BaseException as error:
                if isinstance(error, Exception) and not self._is_proven:
                    self._refuse(error)
                self._give_back(worker)
                raise
            if is_ready:
                self._failed_starts = 0
                if not self._is_proven:
                    self._is_proven = True
                    self._changed()
                return worker
            self._give_back(worker)

    def _find(self, job: Job, *, alone: bool) -> Worker | None:
        """A worker for a rollout; None where it has to wait."""
        if self._workers and not self._is_proven:
            # Its first rollout may have been cancelled before it was ready.
            first = self._workers[0]
            return None if first.load or first.is_full else first
        free = [
            one
            for one in self._workers
            if not one.is_full and not one.is_late and (one.kept_for is None or one.kept_for is job)
        ]
        idlest = min(free, key=lambda one: one.load, default=None)
        if (idlest is None or idlest.load) and len(self._workers) < self._most:
            try:
                idlest = self._start(self._started)
            except Exception as error:
                self._refuse(error)
                raise
            self._started += 1
            self._workers.append(idlest)
        if idlest is None or not alone:
            return idlest
        if not idlest.load:
            self._let_go(job)
        elif any(one.kept_for is job for one in free):
            return None
        idlest.kept_for = job
        return None if idlest.load else idlest

    async def _opens(self, worker: Worker, work: Work) -> bool:
        """Waits until a worker is ready; False where that takes too long. Raises as ``open``."""
        opening = asyncio.ensure_future(worker.open(work))
        try:
            done, _ = await asyncio.wait([opening], timeout=worker.patience if self._is_proven else None)
        except asyncio.CancelledError:
            opening.cancel()
            raise
        if done:
            opening.result()
            return True
        worker.is_late = True
        worker.given -= 1
        opening.add_done_callback(partial(self._opened_late, worker))
        return False

    def _opened_late(self, worker: Worker, opening: asyncio.Future[None]) -> None:
        worker.is_late = False
        if opening.cancelled() or opening.exception() is not None:
            self.lost(worker)
        self._changed()

    def _lost_at_start(self, worker: Worker, error: WorkerLost) -> None:
        # Several rollouts may wait for it.
        if not worker.has_failed:
            worker.has_failed = worker.is_retired = True
            self._failed_starts += 1
            if not self._is_proven or self._failed_starts >= MOST_STARTS:
                self._refuse(RuntimeError(f"no worker process can be started: {error}"))

    def _refuse(self, error: Exception) -> None:
        """Gives no more rollouts to workers."""
        self._failure = error
        self._changed()

    def _changed(self) -> None:
        """Wakes the waiting callers, in their order."""
        self._change.set()
        self._change = asyncio.Event()

    def _ended(self, worker: Worker, job: Job, made: asyncio.Future[Outcome]) -> None:
        """Takes a rollout that a worker has ended, or was lost with, out of its account."""
        error = None if made.cancelled() else made.exception()
        if isinstance(error, WorkerLost):
            # Any of those that it made may be the reason. Made alone, one of them ends no other.
            self._suspects.add(job.key)
        elif error is None and not made.cancelled():
            self._suspects.discard(job.key)
            # The agent's thread ends with the process.
            worker.is_retired = worker.is_retired or made.result().is_left_behind
        self._let_go(job)
        self._give_back(worker)

    def _let_go(self, job: Job) -> None:
        """Keeps no worker for a rollout any more."""
        for worker in self._workers:
            if worker.kept_for is job:
                worker.kept_for = None
                self._changed()

    def _give_back(self, worker: Worker) -> None:
        worker.load -= 1
        self._end_if_idle(worker)
        self._changed()

    def _end_if_idle(self, worker: Worker) -> None:
        if worker.is_full and not worker.load and not worker.is_ending and worker in self._workers:
            worker.is_ending = True
            ending = asyncio.ensure_future(self._retire(worker))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _retire(self, worker: Worker) -> None:
        try:
            await worker.end()
        finally:
            if worker in self._workers:
                self._workers.remove(worker)
            self._changed()
