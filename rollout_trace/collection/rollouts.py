"""``rt.rollouts``."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from rollout_trace import _event_loop
from rollout_trace.collection import checks
from rollout_trace.collection.prepare import Streamed, prepare
from rollout_trace.collection.versions import Versions
from rollout_trace.data.user_values import brief

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterable, Mapping
    from concurrent.futures import Future

    from typing_extensions import Self, Unpack

    from rollout_trace.collection.collect import Agent, Limits, Retries, Reward, Timeouts
    from rollout_trace.collection.job import Executor
    from rollout_trace.collection.progress import Progress
    from rollout_trace.collection.session import Session
    from rollout_trace.collection.stream import Order, Stream
    from rollout_trace.collection.summary import CollectSummary
    from rollout_trace.train.groups import Group
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName

    class RolloutOptions(TypedDict, total=False):
        """Options that ``rt.rollouts`` shares with ``rt.collect``."""

        timeout: float | Timeouts | None
        retries: int | Retries
        limits: Limits | None
        seed: int | None
        resume: bool
        progress: bool | Callable[[Progress], object] | None
        executor: Literal["local", "process", "ray"] | Mapping[str, Any] | Executor | None
        name: str | None
        instrument: bool
        engine: EngineName | Engine | Mapping[str, Any] | None
        recording: Mapping[str, Any] | None
        logs: bool | str | os.PathLike[str]

    class TrainerOptions(RolloutOptions, total=False):
        """Options that a trainer's adapter shares with ``rt.rollouts``."""

        log: Callable[[dict[str, float]], object] | None


T = TypeVar("T")


def rollouts(
    agent: Agent,
    tasks: Iterable[Any] | AsyncIterable[Any] | str | os.PathLike[str],
    *,
    samples: int = 1,
    in_flight: int = 8,
    output: str | os.PathLike[str] | None = None,
    reward: Reward | None = None,
    policy_version: int | str | Callable[[], int | str] | None = None,
    max_lag: int | None = None,
    order: Order = "ready",
    log: Callable[[dict[str, float]], object] | None = None,
    **options: Unpack[RolloutOptions],
) -> Rollouts:
    """Runs an agent over tasks as ``rt.collect`` does, and yields each group as soon as it is complete.

    Use it in a trainer that takes groups while it trains: ``for group in rt.rollouts(...)``, or ``async for``. Asking
    for the first group starts the rollouts. No new rollouts start while ``in_flight`` of them wait in complete groups
    to be taken. Leaving the loop, ``close()``, ``await aclose()`` and Ctrl-C cancel running rollouts, which are written
    as ``aborted``; nothing else is lost. The same call on the same output continues from there: groups already taken do
    not come again, and rollouts in the output are not repeated.

    Args:
        agent: as for ``rt.collect``.
        tasks: as for ``rt.collect``. From an iterator, sync or async, each task is taken when there is room for it. The
            iterator may be endless and may repeat a task: the task's next group is then ``ID#2``, and its rollout
            indexes continue. A sync iterator must not block, because it would block the event loop.
        samples: rollouts of each task; they form a group.
        in_flight: number of rollouts running at the same time.
        output: where rollouts are recorded, as for ``rt.collect``; None: nowhere.
        reward: as for ``rt.collect``.
        policy_version: version of the weights that answers are sampled from: a number, a text, or a function that
            returns it and is called when a rollout, a call or a group begins or ends. Each step's ``policy_version`` is
            the version at the start of its call, unless the engine reports its own. With an executor that uses other
            processes, it is the version at the start of the rollout.
        max_lag: maximum number of versions between the start of a rollout and the moment its group is taken. An older
            rollout is repeated, at most three times; then its group is given up. So is one with a version above the
            present one, left by a trainer that went back to a checkpoint. While a group that one more version would
            make too old is being repeated, no other group is handed over, so that slow tasks get their groups too.
            Rollouts that were too old have ``metadata["collect"]["stale"]`` in the output; do not train on them.
        order: ``ready``: groups come as soon as they are complete; ``tasks``: in the order of the tasks.
        log: called for each group that is taken or given up, with a dict of figures: ``groups``, ``ready``,
            ``in_flight``, ``stale``, ``dropped``, ``reward`` (mean of the group), ``tokens_per_second``,
            ``exact_turns`` (share). Unknown figures are left out.
        options: the other arguments of ``rt.collect``, except ``concurrency``, which is called ``in_flight`` here.

    Returns:
        An iterator of ``rt.Group``, sync and async. ``trajectories`` of a group are its runs in sample order, including
        failed ones; trajectories opened inside them are in ``inside``.

    Raises:
        TypeError, ValueError, ImportError, OSError: an argument is wrong; before any rollout is made.
        FileExistsError: ``resume=False``, and the output holds something.
    """
    if "concurrency" in options:
        raise TypeError(
            "rollouts() has no argument 'concurrency'; give in_flight=, how many rollouts run at the same time."
        )
    if order not in ("ready", "tasks"):
        raise ValueError(f"order is {brief(order)}; give 'ready' or 'tasks'.")
    if log is not None and not callable(log):
        raise checks.refused(log, "log", "a function that takes a dict of figures")
    given = {"agent": agent, "tasks": tasks, "samples": samples, "concurrency": in_flight, "output": output}
    streamed = Streamed(order, Versions(policy_version, max_lag), log)
    session = prepare({**given, "reward": reward, **options}, streamed)
    if not session.resume:
        session.plan()  # Refuses an output that holds something.
    return Rollouts(session)


class Rollouts(Iterator["Group"], AsyncIterator["Group"]):
    """The groups of ``rt.rollouts``, for a single consumer that iterates either sync or async."""

    def __init__(self, session: Session) -> None:
        assert session.stream is not None
        self._session = session
        self._stream: Stream = session.stream
        self._task: asyncio.Task[None] | None = None
        self._thread: _Thread | None = None
        self._is_closed = False

    @property
    def summary(self) -> CollectSummary | None:
        """Summary of the rollouts once the stream has ended or is closed; None before."""
        return self._session.summary

    # Async

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        if self._thread is not None:
            raise RuntimeError("these rollouts are already used with `for`. Continue with `for`, not `async for`.")
        if self._is_closed:
            raise StopAsyncIteration
        if self._task is None:
            self._task = asyncio.ensure_future(_run(self._session))
            # Left without being closed: what runs is cut.
            weakref.finalize(self, _cancel, self._task, self._stream)
        try:
            group = await self._stream.take()
        except Exception:  # Of the run or the tasks.
            await self.aclose()
            raise
        if group is None:
            await self.aclose()
            raise StopAsyncIteration
        self._stream.was_taken(group)
        return group

    async def aclose(self) -> None:
        """Cancels the running rollouts and waits until everything is written."""
        self._is_closed = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._stream.left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Plain

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Group:
        if self._task is not None:
            raise RuntimeError("these rollouts are already used with `async for`. Continue with `async for`.")
        if self._is_closed:
            raise StopIteration
        if self._thread is None:
            self._thread = _Thread(self._session)
            weakref.finalize(self, self._thread.close)
        try:
            group = self._thread.ask(self._stream.take())
        except BaseException:  # Of the run or the tasks; or Ctrl-C.
            self.close()
            raise
        if group is None:
            self.close()
            raise StopIteration
        self._thread.ask(_taken(self._stream, group))
        return group

    def close(self) -> None:
        """Cancels the running rollouts and waits until everything is written; after ``async for`` it does not wait."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.close()
        if self._task is not None:
            _cancel(self._task, self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _run(session: Session) -> None:
    """Makes the rollouts; how that ends, the consumer is told by the stream."""
    stream = session.stream
    assert stream is not None
    failure: Exception | None = None
    try:
        summary = await session.run()
        if summary.stopped is not None:
            failure = RuntimeError(f"no more rollouts are made: {summary.stopped}.")
    except asyncio.CancelledError:
        raise
    except Exception as error:
        failure = error
    finally:
        stream.end(failure)


async def _taken(stream: Stream, group: Group) -> None:
    stream.was_taken(group)


def _cancel(task: asyncio.Task[None], stream: Stream) -> None:
    loop = task.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
        loop.call_soon_threadsafe(stream.left)


class _Thread:
    """A thread with the event loop that makes the rollouts, for a consumer without one."""

    def __init__(self, session: Session) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._left = asyncio.Event()
        name, context = "rollout_trace rollouts", contextvars.copy_context()
        target = (_event_loop.run, lambda: self._main(session), name)
        self._thread = threading.Thread(
            target=context.run, args=target, kwargs={"waits": False}, name=name, daemon=True
        )
        self._thread.start()
        self._begun.wait()

    async def _main(self, session: Session) -> None:
        self._loop, self._work = asyncio.get_running_loop(), asyncio.ensure_future(_run(session))
        self._begun.set()
        await asyncio.wait({self._work})
        # What is complete can be taken until the consumer has seen the end.
        await self._left.wait()
        if session.stream is not None:
            session.stream.left()

    def ask(self, what: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine in that loop."""
        assert self._loop is not None
        asked: Future[T] = asyncio.run_coroutine_threadsafe(what, self._loop)
        try:
            return asked.result()
        except BaseException:
            asked.cancel()
            raise

    def close(self) -> None:
        """Cuts what runs, and waits until all is written."""
        if self._thread.is_alive() and self._loop is not None and self._work is not None:
            self._loop.call_soon_threadsafe(self._work.cancel)
            self._loop.call_soon_threadsafe(self._left.set)
            # Python's garbage collector may call this in that thread.
            if self._thread is not threading.current_thread():
                self._thread.join()
