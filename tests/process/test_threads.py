"""Which trajectory the calls of threads and pools belong to in an instrumented process."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import gc
import queue
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.pool import ThreadPool
from typing import Any

import anyio.to_thread
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.process.instrument import instrument
from rollout_trace.testing import ScriptedServer
from tests.amount import amount

Ask = Callable[[int], str]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Makes a model call, marked by a number, and returns the answer."""
    with ScriptedServer("fine") as server, OpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client:

        def call(seed: int) -> str:
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            answer = client.chat.completions.create(model="m", messages=messages, seed=seed)
            return str(answer.choices[0].message.content)

        yield call


@pytest.fixture
def instrumented() -> Iterator[None]:
    """An instrumented process."""
    with instrument():
        yield


def seeds(trajectory: rt.Trajectory) -> list[Any]:
    return sorted((step.sampling or {}).get("seed") for step in trajectory.steps)


def orphans_since(before: int) -> int:
    return rt.stats().orphans - before


def in_thread(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


class Worker(threading.Thread):
    """A thread with a ``run`` of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        self.work()


def timer(work: Callable[[], object]) -> None:
    in_thread(threading.Timer(0, work))


def executor(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def mapped(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(lambda _: work(), [0]))


def run_in_executor(work: Callable[[], object]) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, work)

    asyncio.run(main())


def to_thread(work: Callable[[], object]) -> None:
    asyncio.run(asyncio.to_thread(work))


def anyio_thread(work: Callable[[], object]) -> None:
    anyio.run(anyio.to_thread.run_sync, work)


def thread_pool(work: Callable[[], object]) -> None:
    with ThreadPool(1) as pool:
        pool.apply(work)


def callback(work: Callable[[], object]) -> None:
    future: Future[None] = Future()
    future.add_done_callback(lambda _: work())
    in_thread(threading.Thread(target=contextvars.Context().run, args=(future.set_result, None)))


def pool_callback(work: Callable[[], object]) -> None:
    with ThreadPool(1) as pool:
        pool.apply_async(int, (), {}, lambda _: work()).get()
        pool.close()
        pool.join()


WAYS: dict[str, Callable[[Callable[[], object]], None]] = {
    "thread": lambda work: in_thread(threading.Thread(target=work)),
    "daemon": lambda work: in_thread(threading.Thread(target=work, daemon=True)),
    "subclass": lambda work: in_thread(Worker(work)),
    "timer": timer,
    "executor": executor,
    "executor map": mapped,
    "run_in_executor": run_in_executor,
    "asyncio.to_thread": to_thread,
    "anyio": anyio_thread,
    "ThreadPool": thread_pool,
    "callback of a future": callback,
    "callback of a ThreadPool": pool_callback,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("instrumented")
def test_a_call_belongs_to_where_its_thread_was_started(way: str, ask: Ask) -> None:
    """Whatever starts the thread; two trajectories, one after the other, each have their own."""
    before = rt.stats().orphans
    with rt.trajectory("one") as one:
        WAYS[way](lambda: ask(1))
    with rt.trajectory("two") as two:
        WAYS[way](lambda: ask(2))
    assert (seeds(one), seeds(two), orphans_since(before)) == ([1], [2], 0)


@pytest.mark.usefixtures("instrumented")
def test_joblib(ask: Ask) -> None:
    """Its threading backend submits the first tasks from the caller's thread, the others from callbacks."""
    joblib = pytest.importorskip("joblib")
    with rt.trajectory() as trajectory:
        joblib.Parallel(2, backend="threading", pre_dispatch=2)(joblib.delayed(ask)(seed) for seed in range(20))
    assert seeds(trajectory) == list(range(20))


@pytest.mark.parametrize("method", ["apply", "apply_async", "map", "starmap", "imap", "imap_unordered", "map_async"])
@pytest.mark.usefixtures("instrumented")
def test_every_method_of_a_thread_pool(method: str, ask: Ask) -> None:
    """In chunks and one by one."""
    calls: dict[str, Callable[[ThreadPool], object]] = {
        "apply": lambda pool: [pool.apply(ask, (seed,)) for seed in range(4)],
        "apply_async": lambda pool: [pool.apply_async(func=ask, args=(seed,)).get() for seed in range(4)],
        "map": lambda pool: pool.map(ask, range(4), chunksize=2),
        "starmap": lambda pool: pool.starmap(ask, [(seed,) for seed in range(4)]),
        "imap": lambda pool: list(pool.imap(ask, range(4), 3)),
        "imap_unordered": lambda pool: list(pool.imap_unordered(ask, range(4))),
        "map_async": lambda pool: pool.map_async(ask, range(4)).get(),
    }
    with ThreadPool(2) as pool, rt.trajectory() as trajectory:
        calls[method](pool)
    assert seeds(trajectory) == [0, 1, 2, 3]


@pytest.mark.usefixtures("instrumented")
@pytest.mark.amount
def test_many_threads(ask: Ask) -> None:
    """Five calls each, all at once, each in the trajectory that was open where the thread was started."""
    threads = amount(50, 200, 200)
    everyone = threading.Barrier(threads)

    def work(number: int) -> None:
        everyone.wait()
        for turn in range(5):
            ask(5 * number + turn)

    with ExitStack() as stack:
        trajectories = []
        for number in range(threads):
            context = contextvars.copy_context()
            trajectories.append(context.run(stack.enter_context, rt.trajectory()))
            thread = threading.Thread(target=work, args=(number,))
            context.run(thread.start)
            # Before the trajectories close.
            stack.callback(thread.join)
    assert [seeds(one) for one in trajectories] == [
        [5 * number + turn for turn in range(5)] for number in range(threads)
    ]


def test_pools_of_before_and_after(ask: Ask) -> None:
    """A pool's threads serve the tasks of all: each task is its submitter's, one from outside is nobody's."""
    with ThreadPoolExecutor(2) as early, ThreadPool(2) as early_pool:
        list(early.map(int, range(8)))
        with instrument(), rt.trajectory("maker") as maker:
            late, late_pool = ThreadPoolExecutor(2), ThreadPool(2)
            late.submit(ask, 0).result()
            with rt.trajectory("user") as user:
                for pool in (early, late):
                    list(pool.map(ask, (1, 2)))
                for one in (early_pool, late_pool):
                    one.map(ask, (3, 4))
            before = rt.stats().orphans
            # Nothing is current in this context.
            contextvars.Context().run(lambda: [late.submit(ask, 5).result(), late_pool.apply(ask, (6,))])
            assert orphans_since(before) == 2
        late.shutdown()
        late_pool.close()
        late_pool.join()
    assert (seeds(maker), seeds(user)) == ([0], [1, 1, 2, 2, 3, 3, 4, 4])


@pytest.mark.usefixtures("instrumented")
def test_a_thread_has_the_recording_too(ask: Ask) -> None:
    """A trajectory opened in a thread is written to the recording of its starter, though two are open."""
    written: dict[str, list[str]] = {"outer": [], "inner": []}

    class Kept:
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self, trajectory: rt.Trajectory) -> None:
            written[self.name].append(trajectory.name)

    def work(name: str) -> None:
        with rt.trajectory(name):
            ask(1)

    with rt.recording(Kept("outer")):
        with rt.recording(Kept("inner")):
            in_thread(threading.Thread(target=work, args=("in a thread",)))
            executor(lambda: work("in a pool"))
    assert written == {"outer": [], "inner": ["in a thread", "in a pool"]}


@pytest.mark.usefixtures("instrumented")
def test_nothing_else_of_the_context_is_carried() -> None:
    """Not the precision of decimals, nor a variable of the program's."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")
    seen: list[Any] = []

    def look() -> None:
        seen.append((decimal.getcontext().prec, variable.get(), rt.current()))

    with rt.trajectory() as trajectory, decimal.localcontext() as context:
        context.prec = 5
        variable.set("mine")
        in_thread(threading.Thread(target=look))
        executor(look)
    assert seen == [(28, "default", trajectory)] * 2


@pytest.mark.usefixtures("instrumented")
def test_a_tasks_own_variables_stay_in_its_thread() -> None:
    """A task runs in its thread's context, as it would: what one sets, the next one finds."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    with rt.trajectory(), ThreadPoolExecutor(1) as pool:
        pool.submit(variable.set, 7).result()
        assert pool.submit(variable.get).result() == 7


@pytest.mark.usefixtures("instrumented")
def test_idle_pools_hold_no_trajectory() -> None:
    """Neither the executor's thread nor the pool's, made and used inside it; nor threads that have ended."""
    with ThreadPoolExecutor(1) as executor, ThreadPool(1) as pool:
        thread = threading.Thread(target=int)

        def one() -> weakref.ref[rt.Trajectory]:
            with rt.trajectory() as trajectory:
                executor.submit(int).result()
                pool.apply(int)
                in_thread(thread)
                return weakref.ref(trajectory)

        held = one()
        # The threads have let go of the tasks when they have done the next ones.
        executor.submit(int).result()
        executor.submit(int).result()
        pool.apply(int)
        pool.apply(int)
        gc.collect()
        assert held() is None
        assert "run" not in vars(thread)


@pytest.mark.usefixtures("instrumented")
def test_no_cycle_is_left() -> None:
    """Threads go when they are no more referred to, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        with rt.trajectory():
            threads = [threading.Thread(target=int) for _ in range(3)]
            for thread in threads:
                in_thread(thread)
            held = [weakref.ref(one) for one in threads]
            del thread
            threads.clear()
        assert [one() for one in held] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.usefixtures("instrumented")
def test_a_thread_keeps_a_run_that_was_set_on_it() -> None:
    """``run`` is what it was when the thread runs, and after."""
    ran: list[object] = []
    thread = threading.Thread()
    own = lambda: ran.append(thread.__dict__["run"])  # noqa: E731
    thread.run = own  # type: ignore[method-assign]
    with rt.trajectory():
        in_thread(thread)
    assert ran == [own]
    assert thread.run is own


@pytest.mark.usefixtures("instrumented")
def test_a_thread_that_cannot_start_is_as_it_was() -> None:
    """Started twice, or never initialised: the program's exception, and nothing of ours left."""
    thread = threading.Thread(target=int)

    class Bare(threading.Thread):
        def __init__(self) -> None:
            pass

    with rt.trajectory():
        in_thread(thread)
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
        with pytest.raises(RuntimeError, match="__init__"):
            Bare().start()
    assert "run" not in vars(thread)


def failing() -> None:
    raise ValueError("of the program")


def traced(start: Callable[[], None]) -> str:
    """What the process prints of a thread's exception."""
    printed: list[str] = []

    def hook(args: Any) -> None:
        printed.append("".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)))

    before, threading.excepthook = threading.excepthook, hook
    try:
        start()
    finally:
        threading.excepthook = before
    return printed[0]


def tracebacks() -> list[str]:
    """The tracebacks of what fails in threads and pools, and where they refuse a task."""
    found = [traced(lambda: in_thread(threading.Thread(target=failing))), traced(lambda: in_thread(Worker(failing)))]
    executor, pool = ThreadPoolExecutor(1), ThreadPool(1)
    failures: list[Callable[[], object]] = [
        lambda: executor.submit(failing).result(),
        lambda: pool.apply(failing),
        lambda: pool.map(lambda _: failing(), [0]),
    ]
    for fail in failures:
        with pytest.raises(ValueError, match="of the program") as caught:
            fail()
        found.append("".join(traceback.format_exception(caught.value)))
    executor.shutdown()
    pool.close()
    pool.join()
    refusals: list[Callable[[], object]] = [
        lambda: executor.submit(failing), lambda: pool.apply(failing), lambda: ThreadPool(0),
    ]  # fmt: skip
    for refuse in refusals:
        with pytest.raises((RuntimeError, ValueError)) as refused:
            refuse()
        found.append("".join(traceback.format_exception(refused.value)))
    return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="`raise` puts our frame back there")
def test_tracebacks_are_the_programs() -> None:
    """Line by line what they are without us."""
    bare = tracebacks()
    with instrument(), rt.trajectory():
        found = tracebacks()
    assert found == bare


@pytest.mark.usefixtures("instrumented")
def test_results_and_exceptions_pass() -> None:
    """StopIteration too, which an iterator may raise in a pool."""
    with rt.trajectory(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(divmod, 7, 3).result() == (2, 1)
        assert pool.submit(dict, a=1, self=2, fn=3).result() == {"a": 1, "self": 2, "fn": 3}
        assert isinstance(pool.submit(next, iter(())).exception(), StopIteration)


def test_undone_while_tasks_wait() -> None:
    """Tasks that were submitted run, in the trajectory they were submitted in; later ones are nobody's."""
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool, rt.trajectory() as trajectory:
        with instrument() as handle:
            blocker = pool.submit(release.wait)
            waiting = pool.submit(rt.current)
            handle.undo()
        later = pool.submit(rt.current)
        release.set()
        assert blocker.result()
        assert (waiting.result(), later.result()) == (trajectory, None)


def test_a_patch_that_was_taken_over_steps_aside() -> None:
    """Another tool has wrapped the methods since: undone, they do what they did."""
    with instrument() as handle:
        ours = threading.Thread.start
        # As another tool does.
        threading.Thread.start = lambda self: ours(self)  # type: ignore[method-assign]
        try:
            handle.undo()
            seen: list[object] = []
            with rt.trajectory():
                in_thread(threading.Thread(target=lambda: seen.append(rt.current())))
        finally:
            threading.Thread.start = ours.__wrapped__  # type: ignore[attr-defined, method-assign]
    assert seen == [None]


def test_all_is_put_back() -> None:
    """The classes are as they were, inherited methods inherited again."""
    classes = (threading.Thread, ThreadPoolExecutor, Future, ThreadPool)
    before = [dict(vars(one)) for one in classes]
    for _ in range(50):
        instrument().undo()
    assert [dict(vars(one)) for one in classes] == before


def test_without_threads(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """A thread's calls are nobody's, and the warning has the line that would mend it; once."""
    with instrument(threads=False), rt.trajectory() as trajectory:
        for seed in range(2):
            in_thread(threading.Thread(target=ask, args=(seed,), name="my thread"))
    assert trajectory.steps == []
    lines = [record.getMessage() for record in caplog.records if "outside every open trajectory" in record.message]
    assert len(lines) == 1
    assert all(part in lines[0] for part in ("'my thread'", "rt.instrument(threads=True)", "rt.propagate(function)"))


@pytest.mark.usefixtures("instrumented")
def test_a_closed_trajectory_takes_no_late_calls(ask: Ask) -> None:
    """A thread that goes on, and one that works off a queue."""
    jobs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    before = rt.stats().orphans

    def work() -> None:
        while (job := jobs.get()) is not None:
            ask(job)

    with rt.trajectory("first") as first:
        thread = threading.Thread(target=work)
        thread.start()
    with rt.trajectory("second") as second:
        jobs.put(1)
        jobs.put(None)
        thread.join()
    assert (first.steps, second.steps, orphans_since(before)) == ([], [], 1)


@pytest.mark.usefixtures("instrumented")
def test_trajectories_opened_in_threads_are_children(ask: Ask) -> None:
    """Of the one that is open where the thread was started."""
    found: list[rt.Trajectory] = []

    def work() -> None:
        with rt.trajectory("child") as child:
            ask(1)
            found.append(child)

    with rt.trajectory("parent") as parent:
        in_thread(threading.Thread(target=work))
        executor(work)
    assert [(one.parent_id, one.episode_id, seeds(one)) for one in found] == [(parent.id, parent.episode_id, [1])] * 2
    assert parent.steps == []


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the pool itself is tested there")
def test_a_function_for_another_interpreter_is_the_programs_own() -> None:
    """Python 3.14's pool of interpreters is a pool of threads, and pickles its functions."""
    functions = []

    class Noting(queue.SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            functions.append(getattr(item, "fn", None))
            super().put(item, block, timeout)

    class Pool(ThreadPoolExecutor):
        __module__ = "concurrent.futures.interpreter"

    with rt.instrument(), rt.trajectory(), Pool(1) as pool:
        pool._work_queue = Noting()
        assert pool.submit(len, [1]).result() == 1
    assert functions[0] is len


@pytest.mark.skipif(sys.version_info < (3, 14), reason="there are no such pools before Python 3.14")
def test_a_pool_of_interpreters() -> None:
    from concurrent import futures

    with rt.instrument(), rt.trajectory(), futures.InterpreterPoolExecutor(1) as pool:  # type: ignore[attr-defined]
        assert pool.submit(len, [1]).result() == 1
