"""Streams that end early, and calls that are cancelled."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault
from tests.clients.either import Kind, done, each, entered, shown

from .harness import IDS, STREAM, Run, World, both, chat, parsing

TOLD = 2
HELD = Fault("a longer answer", hold_after=TOLD)  # the server sends two events: the role, and the first token


async def begun(world: World) -> Any:
    return await done(world.client.chat.completions.create(**STREAM))


async def take(world: World, stream: Any) -> Any:
    return shown(await anext(stream) if world.kind == "async" else next(stream))


async def closed_early(world: World) -> Any:
    stream = await begun(world)
    seen = [await take(world, stream) for _ in range(TOLD)]
    await done(stream.close())
    return seen


async def break_in_with(world: World) -> Any:
    seen = []
    async with entered(await begun(world)) as stream:
        async for chunk in each(stream):
            seen.append(shown(chunk))
            if len(seen) == TOLD:
                break
    return seen


async def break_and_drop(world: World) -> Any:
    seen = []
    async for chunk in each(await begun(world)):
        seen.append(shown(chunk))
        if len(seen) == TOLD:
            break
    return seen


async def exception_in_with(world: World) -> Any:
    seen = []
    try:
        async with entered(await begun(world)) as stream:
            for _ in range(TOLD):
                seen.append(await take(world, stream))
            raise KeyError("the agent's own")
    except KeyError as error:
        return [seen, shown(error)]


async def break_of_the_helper(world: World) -> Any:
    seen: list[Any] = []
    async with entered(parsing(world.client).stream(**IDS)) as events:
        async for event in each(events):
            seen += [shown(event)] if event.type == "chunk" else []
            if len(seen) == TOLD:
                break
    return seen


EARLY = (closed_early, break_in_with, break_and_drop, exception_in_with, break_of_the_helper)


@pytest.fixture(params=[True, False], ids=["gc on", "gc off"])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether garbage is collected while the scenario runs."""
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()
    gc.collect()


@pytest.mark.parametrize("end", EARLY)
def test_a_stream_left_early(kind: Kind, end: Callable[[World], Any], collecting: bool) -> None:
    """A stream left early is abandoned, with all that had come; the next call goes on as without the wrapper."""

    async def scenario(world: World) -> Any:
        seen = await end(world)
        if collecting:
            gc.collect()
            await settled(world)
        return [seen, await chat(world.client, seed=1)]

    run = both(kind, lambda request: "next" if request.get("seed") else HELD, scenario)
    first, second = run.steps
    assert (first.status, first.error, second.status) == ("abandoned", None, "ok")
    assert told_before_the_hold(run, first)


async def settled(world: World) -> None:
    """Lets the loop finalise what was dropped."""
    if world.kind == "async":
        for _ in range(3):
            await asyncio.sleep(0)


def told_before_the_hold(run: Run, step: rt.Step) -> bool:
    """Whether a step holds just the first token."""
    ids, logprobs = step.completion_token_ids, step.logprobs
    assert ids is not None
    assert logprobs is not None
    assert step.completion is not None
    assert step.prompt_token_ids is not None
    return (len(ids), len(logprobs), step.completion.content) == (1, 1, "a")


def test_a_stream_never_read(kind: Kind, collecting: bool) -> None:
    """A stream that is dropped unread is an abandoned call with no completion."""

    async def scenario(world: World) -> Any:
        await begun(world)
        if collecting:
            gc.collect()
            await settled(world)
        return await chat(world.client, seed=1)

    run = both(kind, "fine", scenario)
    assert [(step.status, step.completion is None) for step in run.steps] == [("abandoned", True), ("ok", False)]


def test_a_dropped_stream_is_over_before_its_trajectory() -> None:
    """A stream that was dropped and collected is no longer running. (The SDK keeps a dropped async stream alive.)"""

    async def scenario(world: World) -> Any:
        await break_and_drop(world)
        gc.collect()
        trajectory = rt.current()
        assert trajectory is not None
        seen.append([step.status for step in trajectory.steps])

    seen: list[Any] = []
    both("sync", HELD, scenario)
    assert seen == [[], ["abandoned"]]


def test_a_stream_left_after_its_last_chunk(kind: Kind) -> None:
    """A stream that is closed between its finish reason and [DONE] is whole."""

    async def scenario(world: World) -> Any:
        stream = await begun(world)
        while True:
            chunk = await anext(stream) if world.kind == "async" else next(stream)
            if chunk.choices[0].finish_reason is not None:
                await done(stream.close())
                return shown(chunk)

    assert both(kind, "fine", scenario).step.status == "ok"


def test_a_running_stream_can_be_looked_at(kind: Kind) -> None:
    """While a stream is read its step says so."""

    async def scenario(world: World) -> Any:
        stream = await begun(world)
        seen = [await take(world, stream)]
        trajectory = rt.current()
        assert trajectory is not None
        looked.append([(step.status, step.messages) for step in trajectory.steps])
        return [seen, [shown(chunk) async for chunk in each(stream)]]

    looked: list[Any] = []
    run = both(kind, "fine", scenario)
    assert looked == [[], [("running", IDS["messages"])]]
    assert run.step.status == "ok"


def cancelled(run: Run, cause: str = "CancelledError") -> bool:
    step = run.step
    return step.status == "cancelled" and step.error is not None and step.error.type == cause


async def caught(task: asyncio.Task[Any]) -> Any:
    try:
        return await task
    except asyncio.CancelledError as error:
        return shown(error)


@pytest.mark.parametrize("options", [IDS, STREAM], ids=["unary", "stream"])
def test_cancelled_before_the_headers(options: dict[str, Any]) -> None:
    """A task cancelled before the answer begins is cancelled, and so is its step; the client goes on."""

    async def scenario(world: World) -> Any:
        task = asyncio.create_task(done(world.client.chat.completions.create(**options)))
        await world.held()
        task.cancel()
        return [await caught(task), task.cancelled()]

    run = both("async", Fault(hold=True), scenario)
    assert cancelled(run)
    (attempt,) = run.step.attempts
    assert attempt.status is None
    assert attempt.error is not None
    assert attempt.error.type == "CancelledError"


def test_cancelled_in_the_middle_of_a_stream() -> None:
    """A task cancelled while it waits for a chunk keeps what had come."""

    async def scenario(world: World) -> Any:
        seen: list[Any] = []

        async def read() -> None:
            async for chunk in await begun(world):
                seen.append(shown(chunk))
                if len(seen) == TOLD:
                    waiting.set()

        waiting = asyncio.Event()
        task = asyncio.create_task(read())
        await waiting.wait()
        await settled(world)
        task.cancel()
        return [seen, await caught(task)]

    run = both("async", HELD, scenario)
    assert cancelled(run)
    assert told_before_the_hold(run, run.step)


@pytest.mark.parametrize("options", [IDS, STREAM], ids=["unary", "stream"])
def test_wait_for(options: dict[str, Any]) -> None:
    """`asyncio.wait_for` times out as it did, before the headers or in a stream."""

    async def scenario(world: World) -> Any:
        async def whole() -> Any:
            answer = await world.client.chat.completions.create(**options)
            return [chunk async for chunk in answer] if options is STREAM else answer

        try:
            return await asyncio.wait_for(whole(), 0.4)
        except asyncio.TimeoutError as error:
            return shown(error)

    held = Fault("a longer answer", hold_after=TOLD) if options is STREAM else Fault(hold=True)
    assert cancelled(both("async", held, scenario))


def test_interrupted() -> None:
    """Ctrl-C during a call reaches the caller; the step is cancelled."""

    def interrupt(world: World) -> None:
        world.server.wait_held()
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    async def scenario(world: World) -> Any:
        client = world.client
        thread = threading.Thread(target=interrupt, args=(world,))
        thread.start()
        try:
            return client.chat.completions.create(**IDS)
        except KeyboardInterrupt as error:
            return shown(error)
        finally:
            thread.join()

    # A process that was started in the background ignores the signal, and its children with it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = both("sync", Fault(hold=True), scenario)
    finally:
        signal.signal(signal.SIGINT, before)
    assert cancelled(run, "KeyboardInterrupt")
