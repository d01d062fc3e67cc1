"""Raw and streaming responses, and streams, give what they gave, when they gave it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import pytest

from rollout_trace.testing import Fault, Reply
from tests.clients.either import Kind, done, each, entered, kind_of, shown

from .harness import ASK, STREAM, World, ask, both, chunks, streamed

NAMED = Reply("fine", headers={"request-id": "req_1", "x-other": "2"})


async def facts(raw: Any) -> list[Any]:
    """What a raw response says about itself."""
    request = raw.http_request
    seen = [kind_of(raw), raw.status_code, raw.request_id, dict(raw.headers), request.method, request.content]
    return [*seen, raw.retries_taken, raw.is_closed, kind_of(raw.http_response)]


@pytest.mark.parametrize("root", [False, True])
def test_raw_response(kind: Kind, root: bool) -> None:
    """A raw response has its headers, text and bytes, and parses to one object however often it is asked."""

    async def scenario(world: World) -> Any:
        owner = world.client.with_raw_response.messages if root else world.client.messages.with_raw_response
        raw = await done(owner.create(**ASK))
        parsed = await done(raw.parse())
        assert await done(raw.parse()) is parsed
        return [await facts(raw), parsed]

    run = both(kind, NAMED, scenario)
    assert run.step.attempts[0].request_id == "req_1"
    assert (run.step.attempts[0].status, run.step.attempts[0].content_type) == (200, "application/json")


def test_raw_stream(kind: Kind) -> None:
    """A raw response of a stream parses to the SDK's own stream, once."""

    async def scenario(world: World) -> Any:
        raw = await done(world.client.messages.with_raw_response.create(**STREAM))
        seen = [raw.status_code, raw.request_id, dict(raw.headers), raw.is_closed]
        stream = await done(raw.parse())
        assert await done(raw.parse()) is stream
        return [*seen, kind_of(stream), await chunks(stream), raw.is_closed]

    run = both(kind, NAMED, scenario)
    assert (run.step.status, run.step.attempts[0].request_id) == ("ok", "req_1")


async def read_lines(response: Any) -> Any:
    return [line async for line in each(response.iter_lines())]


async def read_bytes(response: Any) -> Any:
    return b"".join([part async for part in each(response.iter_bytes())])


async def read_whole(response: Any) -> Any:
    return [await done(response.read()), await done(response.text()), response.is_closed]


async def parse(response: Any) -> Any:
    return await done(response.parse())


async def parse_stream(response: Any) -> Any:
    return await chunks(await done(response.parse()))


READERS: dict[str, tuple[bool, Callable[[Any], Awaitable[Any]]]] = {
    "lines": (False, read_lines),
    "bytes": (False, read_bytes),
    "read": (False, read_whole),
    "parse": (False, parse),
    "lines of a stream": (True, read_lines),
    "bytes of a stream": (True, read_bytes),
    "stream": (True, parse_stream),
}


@pytest.mark.parametrize("reader", READERS)
def test_streaming_response(kind: Kind, reader: str) -> None:
    """A streaming response reads nothing before it is asked to, and gives the body as lines, bytes, text or parsed."""
    streams, read = READERS[reader]

    async def scenario(world: World) -> Any:
        options = STREAM if streams else ASK
        async with entered(world.client.messages.with_streaming_response.create(**options)) as response:
            await world.held()
            head = [response.status_code, response.headers["x-other"], response.is_closed]
            assert not response.http_response.is_stream_consumed
            world.server.release()
            return [head, kind_of(response), await read(response)]

    held = Fault(NAMED, hold_after=1 if streams else 10)
    assert both(kind, held, scenario).step.status == "ok"


@pytest.mark.parametrize("streams", [False, True])
def test_streaming_response_that_nobody_reads(kind: Kind, streams: bool) -> None:
    """A streaming response that is left unread is an abandoned call."""

    async def scenario(world: World) -> Any:
        options = STREAM if streams else ASK
        async with entered(world.client.messages.with_streaming_response.create(**options)) as response:
            head = [response.status_code, response.is_closed]
        return [head, response.is_closed, await ask(world.client)]

    run = both(kind, "fine", scenario)
    assert [step.status for step in run.steps] == ["abandoned", "ok"]
    assert (run.steps[0].completion, run.steps[0].error) == (None, None)


def test_a_stream_is_what_it_was(kind: Kind) -> None:
    """A stream has the SDK's type, works as iterator and context manager, and closes."""

    async def scenario(world: World) -> Any:
        expected: Any = anthropic.Stream if world.kind == "sync" else anthropic.AsyncStream
        stream = await done(world.client.messages.create(**STREAM))
        assert type(stream) is expected
        seen = [kind_of(stream.response), stream.response.status_code, stream.response.is_closed]
        async with entered(stream) as inside:
            assert inside is stream
            first = await stream.__anext__() if world.kind == "async" else next(stream)
            seen += [shown(first), await chunks(stream), stream.response.is_closed]
        assert await done(stream.close()) is None
        return [*seen, stream.response.is_closed]

    assert both(kind, "fine", scenario).step.status == "ok"


@pytest.mark.parametrize("held", [1, 4])
def test_the_first_token_is_not_held_back(kind: Kind, held: int) -> None:
    """The caller has each event while the server still holds the next. (The SDK hides pings.)"""

    async def scenario(world: World) -> Any:
        stream, seen = await done(world.client.messages.create(**STREAM)), []
        for _ in range(held - (held > 1)):
            seen.append(shown(await anext(stream) if world.kind == "async" else next(stream)))
        await world.held()
        assert len(world.server.requests[0].response_chunks) == held
        world.server.release()
        return [seen, await chunks(stream)]

    step = both(kind, Fault("fine", hold_after=held), scenario).step
    assert step.time_to_first_token is not None
    assert step.latency is not None
    assert 0 < step.time_to_first_token < step.latency


def test_connections_are_used_again(kind: Kind) -> None:
    """Streams and calls in turn use as many connections as without the wrapper."""

    async def scenario(world: World) -> Any:
        return [[await streamed(world.client), await ask(world.client)] for _ in range(4)]

    assert len(both(kind, "fine", scenario).steps) == 8


@pytest.mark.parametrize("size", [None, 5])
def test_compressed_answers(kind: Kind, size: int | None) -> None:
    """A compressed answer, streamed or not, is recorded as what it says."""

    async def scenario(world: World) -> Any:
        return [await ask(world.client), await streamed(world.client)]

    run = both(kind, Reply("fine", compress="gzip"), scenario, chunk_bytes=size)
    assert [step.status for step in run.steps] == ["ok"] * 2
