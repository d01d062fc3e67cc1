"""Streams are the SDK's own, and nothing of them is held back."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply
from tests.clients.either import Kind, done, each, entered, kind_of, shown

from .harness import STREAM, World, both, chat, chunks, inside, parsing, streamed


async def stream_of(world: World, **options: Any) -> Any:
    return await done(world.client.chat.completions.create(**{**STREAM, **options}))


def test_a_stream_is_what_it_was(kind: Kind) -> None:
    """A stream has the SDK's type, works as iterator and context manager, and closes."""

    async def scenario(world: World) -> Any:
        expected = openai.Stream if world.kind == "sync" else openai.AsyncStream
        stream = await stream_of(world)
        assert type(stream) is expected
        seen = [kind_of(stream.response), stream.response.status_code, stream.response.is_closed]
        async with entered(stream) as inside:
            assert inside is stream
            first = await stream.__anext__() if world.kind == "async" else next(stream)
            seen += [shown(first), await chunks(stream), stream.response.is_closed]
        assert await done(stream.close()) is None
        return [*seen, stream.response.is_closed, hasattr(stream.response, "elapsed")]

    assert both(kind, "fine", scenario).step.status == "ok"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/octet-stream", ""])
@pytest.mark.parametrize("resource", ["chat", "completions", "responses"])
def test_a_wrong_content_type(kind: Kind, resource: str, content_type: str) -> None:
    """The SDK reads a stream whatever its type says; so does the step."""

    async def scenario(world: World) -> Any:
        if resource == "chat":
            return await streamed(world.client)
        prompts: dict[str, dict[str, Any]] = {
            "completions": {"prompt": "hi", "logprobs": 0},
            "responses": {"input": "hi"},
        }
        ids = {"extra_body": {"return_token_ids": True, "enable_response_messages": True}}
        call = getattr(world.client, resource).create
        return await chunks(await done(call(model="m", stream=True, **prompts[resource], **ids)))

    ours = both(kind, Reply("fine", headers={"content-type": content_type}), scenario)
    right = both(kind, "fine", scenario)
    step, expected = ours.step, right.step
    assert (step.status, step.error, step.token_issue) == ("ok", None, expected.token_issue)
    assert step.completion == expected.completion
    for name in ("completion_token_ids", "logprobs"):
        found, wanted = getattr(step, name), getattr(expected, name)
        assert (found is None) == (wanted is None)
        assert found is None or found.tolist() == wanted.tolist()
    assert resource == "responses" or step.completion_token_ids is not None
    assert step.time_to_first_token is not None


def test_next_past_the_end(kind: Kind) -> None:
    """`next` and `anext` give every chunk, then end as iterators do, and again."""

    async def scenario(world: World) -> Any:
        stream, seen, ends = await stream_of(world), [], 0
        while ends < 2:
            try:
                seen.append(shown(await anext(stream) if world.kind == "async" else next(stream)))
            except (StopIteration, StopAsyncIteration):
                ends += 1
        return [seen, await chunks(stream)]

    assert both(kind, "fine", scenario).step.status == "ok"


def test_await_close(kind: Kind) -> None:
    """`close` of an async stream can be awaited, twice; nothing comes after it."""

    async def scenario(world: World) -> Any:
        stream = await stream_of(world)
        await done(stream.close())
        await done(stream.close())
        return [stream.response.is_closed, await rest(stream)]

    async def rest(stream: Any) -> Any:
        try:
            return await chunks(stream)
        except Exception as error:
            return shown(error)

    assert both(kind, "fine", scenario).step.status == "abandoned"


@pytest.mark.parametrize("held", [1, 2, 4])
def test_the_first_token_is_not_held_back(kind: Kind, held: int) -> None:
    """The caller has each chunk while the server still holds the next."""

    async def scenario(world: World) -> Any:
        stream, seen = await stream_of(world), []
        for _ in range(held):
            seen.append(shown(await anext(stream) if world.kind == "async" else next(stream)))
        await world.held()
        assert len(world.server.requests[0].response_chunks) == held
        world.server.release()
        return [seen, await chunks(stream)]

    run = both(kind, Fault("fine", hold_after=held), scenario)
    assert run.step.time_to_first_token is not None
    assert run.step.latency is not None
    assert 0 < run.step.time_to_first_token < run.step.latency


def test_the_first_event_of_the_helper_is_not_held_back(kind: Kind) -> None:
    """The same through `.stream()`."""

    async def scenario(world: World) -> Any:
        async with entered(
            parsing(world.client).stream(**{k: v for k, v in STREAM.items() if k != "stream"})
        ) as events:
            seen = []
            async for event in each(events):
                seen.append(shown(event))
                if len(seen) == 1:
                    await world.held()
                    assert len(world.server.requests[0].response_chunks) == 1
                    world.server.release()
            return seen

    assert both(kind, Fault("fine", hold_after=1), scenario).step.status == "ok"


def test_connections_are_used_again(kind: Kind) -> None:
    """Streams and calls in turn use as many connections as without the wrapper."""

    async def scenario(world: World) -> Any:
        seen: list[Any] = []
        for number in range(5):
            seen.append(await chunks(await stream_of(world, seed=number)))
            seen.append(await chat(world.client, seed=number))
        return seen

    run = both(kind, "fine", scenario)
    assert len(run.steps) == 10


def in_another_thread(stream: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(shown(chunk) for chunk in stream))
    thread.start()
    thread.join()
    return found


def in_another_context(stream: Any) -> Any:
    return contextvars.Context().run(lambda: [shown(chunk) for chunk in stream])


@pytest.mark.parametrize("read", [in_another_thread, in_another_context])
def test_a_stream_read_elsewhere(read: Callable[[Any], Any]) -> None:
    """A stream read in another thread or context belongs to the trajectory it was begun in."""

    async def scenario(world: World) -> Any:
        stream = await stream_of(world)
        with rt.trajectory("other") as other:
            seen = read(stream)
        assert other.steps == []
        return seen

    run = both("sync", "fine", scenario)
    assert (run.step.status, run.step.agent) == ("ok", "agent")


def test_a_stream_read_in_another_task() -> None:
    """An async stream read in another task, inside another trajectory, belongs to the one it was begun in."""

    async def scenario(world: World) -> Any:
        stream = await stream_of(world)

        async def read() -> Any:
            async with rt.trajectory("other") as other:
                seen = await chunks(stream)
            assert other.steps == []
            return seen

        return await asyncio.create_task(read())

    run = both("async", "fine", scenario)
    assert (run.step.status, run.step.agent) == ("ok", "agent")


def test_a_stream_read_after_its_trajectory(kind: Kind) -> None:
    """A stream that outlives its trajectory is recorded to its end, in the trajectory that it began in."""

    async def scenario(world: World) -> Any:
        with rt.trajectory("short") as short:
            stream = await stream_of(world)
            seen = [shown(await anext(stream) if world.kind == "async" else next(stream))]
        recorded.append(short)
        looked.append([step.status for step in short.steps])
        world.server.release()
        return [seen, await chunks(stream)]

    recorded: list[rt.Trajectory] = []
    looked: list[list[str]] = []
    run = inside(kind, Fault("fine", hold_after=1), scenario)
    assert run.steps == []
    (step,) = recorded[-1].steps
    assert (step.status, step.completion.content if step.completion else None) == ("ok", "fine")
    assert looked == [[], ["running"]]


def test_two_streams_in_turn(kind: Kind) -> None:
    """Two streams of one client that are read in turn are two steps, each with its own chunks."""

    async def scenario(world: World) -> Any:
        first, second = await stream_of(world, seed=1), await stream_of(world, seed=2)
        seen = []
        for stream in (first, second) * 4:
            seen.append(shown(await anext(stream) if world.kind == "async" else next(stream)))
        seen += [await chat(world.client, seed=3), await chunks(second), await chunks(first)]
        return seen

    run = both(kind, lambda request: f"answer {request['seed']}", scenario)
    assert [step.completion.content for step in run.steps if step.completion] == ["answer 1", "answer 2", "answer 3"]
