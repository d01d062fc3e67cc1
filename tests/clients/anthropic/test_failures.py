"""Answers that go wrong, attempts that are tried again, streams that end early, calls that are cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import anthropic
import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply
from tests.clients.either import Kind, done, each, entered, shown

from .harness import ASK, STREAM, Run, World, ask, both, numbered, run, seeds, streamed

QUICK = {"retry-after-ms": "1"}
TOLD = 3
# message_start, ping, content_block_start, "a", " ": the SDK hides the ping.
HELD = Fault("a longer answer", hold_after=TOLD + 1)


async def read_to_its_end(world: World) -> Any:
    """The events of a stream, and what ended it."""
    seen: list[Any] = []
    try:
        async for chunk in each(await done(world.client.messages.create(**STREAM))):
            seen.append(shown(chunk))
    except Exception as error:
        seen.append(shown(error))
    return seen


def content_of(step: rt.Step) -> Any:
    assert step.completion is not None
    return step.completion.content


def error_of(step: rt.Step) -> rt.ErrorInfo:
    assert step.error is not None
    return step.error


def test_the_server_disconnects(kind: Kind) -> None:
    """A stream that the server cuts is an error with what had come; the exception is the SDK's."""
    step = both(kind, Fault("a longer answer", cut_after=5), read_to_its_end).step
    assert (step.status, error_of(step).type, content_of(step)) == ("error", "RemoteProtocolError", "a ")


def test_an_error_inside_a_stream(kind: Kind) -> None:
    """An error event raises as it did; the step holds the server's words and what had come."""
    step = both(kind, Fault("a longer answer", error_event_after=5), read_to_its_end).step
    assert (step.status, content_of(step)) == ("error", "a ")
    assert (error_of(step).type, error_of(step).message) == ("api_error", "the script breaks this stream")


def test_a_stream_without_its_last_event(kind: Kind) -> None:
    """A stream that ends without message_stop after its stop reason is whole."""
    assert both(kind, Fault("fine", no_done=True), read_to_its_end).step.status == "ok"


@pytest.mark.parametrize("streams", [False, True])
def test_bad_json(kind: Kind, streams: bool) -> None:
    """An event or an answer with status 200 that is no JSON raises as it did; the step is an error."""

    async def scenario(world: World) -> Any:
        return await read_to_its_end(world) if streams else await ask(world.client)

    step = both(kind, Fault("fine", bad_json=True), scenario, raises=not streams).step
    assert step.status == "error"
    assert error_of(step).type in ("InvalidJSON", "JSONDecodeError", "APIResponseValidationError")


def test_an_answer_that_is_cut(kind: Kind) -> None:
    """An unstreamed answer that breaks off raises as it did."""

    async def scenario(world: World) -> Any:
        return await ask(world.client)

    step = both(kind, Fault("fine", cut_after=40), scenario, raises=True).step
    assert step.status == "error"
    assert step.attempts[0].error is not None
    assert step.attempts[0].error.type == "RemoteProtocolError"


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_call(kind: Kind, stream: bool) -> None:
    """An error status raises the SDK's exception with the server's body; the step holds it."""

    async def scenario(world: World) -> Any:
        return await done(world.client.messages.create(**ASK, stream=stream))

    step = both(kind, Fault(status=400, headers={"request-id": "req_2"}), scenario, raises=True).step
    assert (step.status, error_of(step).type, error_of(step).status) == ("error", "invalid_request_error", 400)
    assert (step.messages, step.completion, step.attempts[0].request_id) == (ASK["messages"], None, "req_2")


@pytest.mark.parametrize("body", ["", "<html>oops</html>", b"\xff\xfe", {"detail": "no"}])
def test_errors_of_another_shape(kind: Kind, body: Any) -> None:
    """Whatever the body of an error is, the exception is what it was."""

    async def scenario(world: World) -> Any:
        return await ask(world.client)

    assert error_of(both(kind, Fault(status=502, body=body), scenario, raises=True).step).status == 502


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("inside_except", [False, True])
def test_retried_until_it_works(kind: Kind, stream: bool, inside_except: bool) -> None:
    """A call that is answered 429 and then 200 is one step with two attempts, also while an exception is handled."""

    async def scenario(world: World) -> Any:
        call = streamed if stream else ask
        if not inside_except:
            return await call(world.client)
        try:
            raise KeyError("the caller's own")
        except KeyError:
            return await call(world.client)

    answers = [
        Fault(status=429, headers={**QUICK, "request-id": "r1"}),
        Reply("fine", headers={"request-id": "r2"}),
    ]
    step = both(kind, answers, scenario, max_retries=2).step
    assert (step.status, step.error) == ("ok", None)
    assert [(a.status, a.request_id, a.error is None) for a in step.attempts] == [(429, "r1", False), (200, "r2", True)]
    error = step.attempts[0].error
    assert error is not None
    assert (error.type, error.status) in (("rate_limit_error", 429), ("HTTPStatusError", 429))


def test_retried_in_vain(kind: Kind) -> None:
    """A call that fails every time is one step with all its attempts."""

    async def scenario(world: World) -> Any:
        return await ask(world.client)

    step = both(kind, Fault(status=500, headers=QUICK), scenario, raises=True, max_retries=2).step
    assert (step.status, error_of(step).status) == ("error", 500)
    assert [(a.status, a.error is not None, a.duration is not None) for a in step.attempts] == [(500, True, True)] * 3


def test_timeouts(kind: Kind) -> None:
    """Timeouts are tried again, and raised in the end; each is an attempt without a status."""

    async def scenario(world: World) -> Any:
        return await ask(world.client.with_options(timeout=anthropic.Timeout(60, read=0.2)))

    step = both(kind, Fault(hold=True), scenario, raises=True, max_retries=1).step
    assert (step.status, error_of(step).type) == ("error", "APITimeoutError")
    assert [(a.status, a.error and a.error.type) for a in step.attempts] == [(None, "ReadTimeout")] * 2


def test_two_connections_cut_and_then_an_answer(kind: Kind) -> None:
    """Connections that break before the answer are attempts too."""

    async def scenario(world: World) -> Any:
        return await ask(world.client)

    cut = Fault("fine", cut_after=0)
    step = both(kind, [cut, cut, "fine"], scenario, max_retries=2).step
    assert (step.status, [a.status for a in step.attempts]) == ("ok", [None, None, 200])
    assert step.attempts[0].error is not None
    assert step.attempts[0].error.type == "RemoteProtocolError"


def test_nobody_answers(kind: Kind) -> None:
    """A server that is not there: the attempts are recorded, though none arrived."""

    async def scenario(world: World) -> Any:
        client = world.client.with_options(base_url="http://127.0.0.1:9")
        try:
            return await ask(client)
        except Exception as error:
            return shown(error)

    step = both(kind, "fine", scenario, unreached=2, max_retries=1).step
    assert (step.status, error_of(step).type) == ("error", "APIConnectionError")
    assert [a.status for a in step.attempts] == [None, None]


async def begun(world: World) -> Any:
    return await done(world.client.messages.create(**STREAM))


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


async def break_of_the_helper(world: World) -> Any:
    seen: list[Any] = []
    async with entered(world.client.messages.stream(**ASK)) as events:
        async for event in each(events):
            seen += [shown(event)] if event.type != "text" else []
            if len(seen) == TOLD:
                break
    return seen


@pytest.mark.parametrize("end", [closed_early, break_in_with, break_and_drop, break_of_the_helper])
def test_a_stream_left_early(kind: Kind, end: Callable[[World], Any]) -> None:
    """A stream left early is abandoned, with all that had come; the next call goes on as without the wrapper."""

    async def scenario(world: World) -> Any:
        seen = await end(world)
        gc.collect()
        for _ in range(3 * (world.kind == "async")):
            await asyncio.sleep(0)
        return [seen, await ask(world.client, **numbered(1))]

    first, second = both(kind, lambda request: "next" if "metadata" in request else HELD, scenario).steps
    assert (first.status, first.error, second.status) == ("abandoned", None, "ok")
    assert content_of(first) == "a"


def test_a_stream_never_read(kind: Kind) -> None:
    """A stream that is dropped unread is an abandoned call with no completion."""

    async def scenario(world: World) -> Any:
        await begun(world)
        gc.collect()
        return await ask(world.client)

    run = both(kind, "fine", scenario)
    assert [(step.status, step.completion is None) for step in run.steps] == [("abandoned", True), ("ok", False)]


def cancelled(run: Run) -> bool:
    return run.step.status == "cancelled" and error_of(run.step).type == "CancelledError"


async def caught(task: asyncio.Task[Any]) -> Any:
    try:
        return await task
    except asyncio.CancelledError as error:
        return shown(error)


@pytest.mark.parametrize("options", [ASK, STREAM], ids=["unary", "stream"])
def test_cancelled_before_the_headers(options: dict[str, Any]) -> None:
    """A task cancelled before the answer begins is cancelled, and so is its step."""

    async def scenario(world: World) -> Any:
        task = asyncio.create_task(done(world.client.messages.create(**options)))
        await world.held()
        task.cancel()
        return [await caught(task), task.cancelled()]

    assert cancelled(both("async", Fault(hold=True), scenario))


def test_cancelled_in_the_middle_of_a_stream() -> None:
    """A task cancelled while it waits for an event keeps what had come."""

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
        await asyncio.sleep(0)
        task.cancel()
        return [seen, await caught(task)]

    run = both("async", HELD, scenario)
    assert cancelled(run)
    assert content_of(run.step) == "a"


def test_two_trajectories_at_once() -> None:
    """Concurrent calls of one client belong to the trajectories that they were begun in."""

    async def scenario(world: World) -> Any:
        async def agent(number: int) -> Any:
            async with rt.trajectory(f"agent {number}") as own:
                seen = [await streamed(world.client, **numbered(number)), await ask(world.client, **numbered(number))]
            kept[number] = own.steps
            return seen

        return await asyncio.gather(agent(0), agent(1))

    kept: dict[int, Any] = {}
    found = run("async", "fine", scenario)
    assert found.outcome[0] == "returned"
    assert {n: [s.sampling["metadata"]["user_id"] for s in steps] for n, steps in kept.items()} == {
        0: ["0", "0"],
        1: ["1", "1"],
    }
    assert seeds(found) == []
