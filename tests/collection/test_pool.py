"""Which worker makes which rollout, for any rollouts: some end their worker, some stay behind, some are cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.collection.job import Job, Outcome, Work, WorkerLost
from rollout_trace.collection.pool import MOST_STARTS, Pool, PoolWorker
from tests.collection.jobs import job, outcome, work


class Imagined(PoolWorker):
    """A worker without a process: a rollout takes as many turns of the event loop as its task says, and ends so."""

    def __init__(self, house: House, quota: int | None) -> None:
        super().__init__(quota)
        self.house = house
        self.running: dict[asyncio.Future[Outcome], asyncio.Task[None]] = {}
        self.error: WorkerLost | None = None
        house.workers.append(self)
        house.most = max(house.most, len(house.workers))

    async def open(self, work: Work) -> None:
        await asyncio.sleep(0)
        if self.house.failing_starts > 0:
            self.house.failing_starts -= 1
            self.die()
        if self.error is not None:
            raise self.error

    def begin(self, job: Job) -> asyncio.Future[Outcome]:
        made: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        assert not self.is_ending
        if self.house.losses[job.index]:
            assert not self.running, "a rollout that was lost before is made beside others"
        assert not any(self.house.losses[index] for index in self.indices()), "another is made beside such a one"
        self.running[made] = asyncio.ensure_future(self.make(job, made))
        self.running[made].set_name(str(job.index))
        return made

    def indices(self) -> list[int]:
        return [int(task.get_name()) for task in self.running.values()]

    async def make(self, job: Job, made: asyncio.Future[Outcome]) -> None:
        how, turns = job.task.value
        for _ in range(turns):
            await asyncio.sleep(0)
        if how == "dies":
            self.die()
        else:
            del self.running[made]
            made.set_result(outcome(job, "made", is_left_behind=how == "stays"))

    def die(self) -> None:
        self.error = WorkerLost("it died")
        for made, task in list(self.running.items()):
            self.house.losses[int(task.get_name())] += 1
            if task is not asyncio.current_task():
                task.cancel()
            made.set_exception(self.error)
        self.running.clear()
        self.house.pool.lost(self)

    def stop(self, made: asyncio.Future[Outcome]) -> None:
        self.running.pop(made).cancel()
        made.cancel()

    async def end(self) -> None:
        await asyncio.sleep(0)
        assert not self.running
        self.house.workers.remove(self)

    def ask(self) -> asyncio.Future[None]:
        raise AssertionError("no rollout has a timeout")

    def kill(self, why: str) -> None:
        raise AssertionError("no rollout has a timeout")


class House:
    """A pool, and what has been seen of it."""

    def __init__(self, most: int, quota: int | None, failing_starts: int) -> None:
        self.workers: list[Imagined] = []
        self.most = 0
        self.losses: Counter[int] = Counter()
        self.failing_starts = failing_starts
        self.pool: Pool[Imagined] = Pool(most, lambda number: Imagined(self, quota))


HOWS = st.sampled_from(["ends", "ends", "ends", "stays", "dies", "cancelled"])


@given(
    tasks=st.lists(st.tuples(HOWS, st.integers(0, 6)), min_size=1, max_size=12),
    most=st.integers(1, 4),
    quota=st.sampled_from([None, 1, 3]),
)
def test_every_rollout_is_made(tasks: list[tuple[str, int]], most: int, quota: int | None) -> None:
    """By at most so many workers; one that ends no worker is lost at most once, beside one that does."""

    async def one(house: House, shared: Work, index: int) -> str:
        how, turns = tasks[index]
        making = asyncio.ensure_future(_until_made(house, job(shared, index, how, turns)))
        if how == "cancelled":
            for _ in range(turns):
                await asyncio.sleep(0)
            making.cancel()
        try:
            return await making
        except asyncio.CancelledError:
            return "cancelled"

    async def main() -> None:
        house, shared = House(most, quota, 0), work()
        ends = await asyncio.gather(*(one(house, shared, index) for index in range(len(tasks))))
        for index, (how, _) in enumerate(tasks):
            assert ends[index] == {"dies": "lost", "cancelled": ends[index]}.get(how, "made")
            assert how == "dies" or house.losses[index] <= 1
        await house.pool.close()
        assert house.most <= most
        assert not house.workers

    asyncio.run(asyncio.wait_for(main(), 60))


async def _until_made(house: House, one: Job) -> str:
    for _ in range(4):
        try:
            await house.pool.make(one)
        except WorkerLost:
            continue
        return "made"
    return "lost"


@pytest.mark.parametrize(("failing", "is_made"), [(0, True), (1, False)])
def test_the_first_worker_shows_whether_any_can_be_started(failing: int, is_made: bool) -> None:
    """If it cannot, no other is tried."""

    async def main() -> None:
        house, shared = House(4, None, failing), work()
        made = await asyncio.gather(
            *(house.pool.make(job(shared, n, "ends", 1)) for n in range(6)), return_exceptions=True
        )
        assert [isinstance(one, Outcome) for one in made] == [is_made] * 6
        assert house.most == (4 if is_made else 1)
        await house.pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(("failing", "is_made"), [(MOST_STARTS - 1, True), (MOST_STARTS, False)])
def test_later_workers_that_cannot_be_started(failing: int, is_made: bool) -> None:
    """Are tried again, so many times in a row."""

    async def main() -> None:
        house, shared = House(1, 1, 0), work()
        await house.pool.make(job(shared, 0, "ends", 1))
        house.failing_starts = failing
        (made,) = await asyncio.gather(house.pool.make(job(shared, 1, "ends", 1)), return_exceptions=True)
        assert isinstance(made, Outcome) is is_made
        assert is_made or "no worker process can be started: it died" in str(made)
        await house.pool.close()

    asyncio.run(main())
