"""Raw and streaming responses give what they gave, when they gave it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from openai._response import APIResponse

from rollout_trace.testing import Fault, Reply
from tests.clients.either import Kind, done, each, entered, kind_of

from .harness import IDS, STREAM, World, both, chunks

NAMED = Reply("fine", headers={"x-request-id": "req_1", "x-other": "2"})


async def facts(raw: Any) -> list[Any]:
    """What a raw response says about itself."""
    request = raw.http_request
    seen = [kind_of(raw), raw.status_code, raw.request_id, dict(raw.headers), request.method, request.content]
    return [*seen, raw.retries_taken, raw.is_closed, kind_of(raw.http_response), kind_of(raw.http_response.stream)]


def test_raw_response(kind: Kind) -> None:
    """A raw response has its headers, text, bytes and time, and parses to one object however often it is asked."""

    async def scenario(world: World) -> Any:
        raw = await done(world.client.chat.completions.with_raw_response.create(**IDS))
        parsed = raw.parse()
        assert raw.parse() is parsed
        assert isinstance(raw.elapsed, timedelta)
        return [await facts(raw), parsed, raw.text, raw.content]

    run = both(kind, NAMED, scenario)
    assert run.step.attempts[0].request_id == "req_1"
    assert (run.step.attempts[0].status, run.step.attempts[0].content_type) == (200, "application/json")


def test_raw_response_at_the_root_of_the_client(kind: Kind) -> None:
    """`client.with_raw_response` gives the same."""

    async def scenario(world: World) -> Any:
        raw = await done(world.client.with_raw_response.chat.completions.create(**IDS))
        return [await facts(raw), raw.parse()]

    assert both(kind, NAMED, scenario).step.status == "ok"


def test_raw_stream(kind: Kind) -> None:
    """A raw response of a stream parses to the SDK's own stream, once; its time is there when it is read."""

    async def scenario(world: World) -> Any:
        raw = await done(world.client.chat.completions.with_raw_response.create(**STREAM))
        seen = [raw.status_code, raw.request_id, dict(raw.headers), raw.is_closed]
        with pytest.raises(RuntimeError, match="elapsed"):
            _ = raw.elapsed
        stream = raw.parse()
        assert raw.parse() is stream
        seen += [kind_of(stream), await chunks(stream), raw.is_closed]
        assert isinstance(raw.elapsed, timedelta)
        return seen

    run = both(kind, NAMED, scenario)
    assert (run.step.status, run.step.attempts[0].request_id) == ("ok", "req_1")


async def read_lines(response: Any) -> Any:
    return [line async for line in each(response.iter_lines())]


async def read_bytes(response: Any) -> Any:
    return b"".join([part async for part in each(response.iter_bytes())])


async def read_text(response: Any) -> Any:
    return "".join([part async for part in each(response.iter_text(5))])


async def read_raw_bytes(response: Any) -> Any:
    plain = response.http_response
    parts = plain.iter_raw() if isinstance(response, APIResponse) else plain.aiter_raw()
    return b"".join([part async for part in each(parts)])


async def read_whole(response: Any) -> Any:
    return [await done(response.read()), await done(response.text()), response.is_closed]


async def parse(response: Any) -> Any:
    parsed = await done(response.parse())
    assert await done(response.parse()) is parsed
    return parsed


async def read_json(response: Any) -> Any:
    return await done(response.json())


async def parse_stream(response: Any) -> Any:
    return await chunks(await done(response.parse()))


READERS: dict[str, tuple[bool, Callable[[Any], Awaitable[Any]]]] = {
    "lines": (False, read_lines),
    "bytes": (False, read_bytes),
    "text": (False, read_text),
    "raw bytes": (False, read_raw_bytes),
    "read": (False, read_whole),
    "json": (False, read_json),
    "parse": (False, parse),
    "lines of a stream": (True, read_lines),
    "bytes of a stream": (True, read_bytes),
    "raw bytes of a stream": (True, read_raw_bytes),
    "stream": (True, parse_stream),
}


@pytest.mark.parametrize("reader", READERS)
def test_streaming_response(kind: Kind, reader: str) -> None:
    """A streaming response reads nothing before it is asked to, and gives the body as lines, bytes, text or parsed."""
    streams, read = READERS[reader]

    async def scenario(world: World) -> Any:
        options = STREAM if streams else IDS
        async with entered(world.client.chat.completions.with_streaming_response.create(**options)) as response:
            await world.held()
            head = [response.status_code, response.headers["x-other"], response.is_closed]
            assert len(world.server.requests[0].response_body) < 400
            assert not response.http_response.is_stream_consumed
            world.server.release()
            return [head, kind_of(response), await read(response)]

    held = Fault(NAMED, hold_after=1 if streams else 10)
    run = both(kind, held, scenario)
    assert (run.step.status, run.step.token_source) == ("ok", "engine")


@pytest.mark.parametrize("streams", [False, True])
def test_streaming_response_that_nobody_reads(kind: Kind, streams: bool) -> None:
    """A streaming response that is left unread is an abandoned call."""

    async def scenario(world: World) -> Any:
        options = STREAM if streams else IDS
        manager = world.client.chat.completions.with_streaming_response.create(**options)
        async with entered(manager) as response:
            head = [response.status_code, response.is_closed]
        return [head, response.is_closed, await done(world.client.chat.completions.create(**IDS, seed=1))]

    run = both(kind, "fine", scenario)
    assert [step.status for step in run.steps] == ["abandoned", "ok"]
    assert run.steps[0].completion is None
    assert run.steps[0].error is None


def test_streaming_response_that_is_read_in_part(kind: Kind) -> None:
    """What has been read of a streaming response is kept."""

    async def scenario(world: World) -> Any:
        create = world.client.chat.completions.with_streaming_response.create
        async with entered(create(**STREAM)) as response:
            async for line in each(response.iter_lines()):
                return line

    run = both(kind, Fault("fine", hold_after=3), scenario)
    assert run.step.status == "abandoned"
    assert run.step.prompt_token_ids is not None


def test_a_raw_error(kind: Kind) -> None:
    """A raw call that fails raises the same error with the same response."""

    async def scenario(world: World) -> Any:
        return await done(world.client.chat.completions.with_raw_response.create(**IDS))

    run = both(kind, Fault(status=400, headers={"x-request-id": "r"}), scenario, raises=True)
    assert (run.step.status, run.step.attempts[0].status, run.step.attempts[0].request_id) == ("error", 400, "r")


def test_a_streaming_response_that_fails(kind: Kind) -> None:
    """The same for a streaming response, whose error is raised on entering."""

    async def scenario(world: World) -> Any:
        async with entered(world.client.chat.completions.with_streaming_response.create(**IDS)) as response:
            return response

    run = both(kind, Fault(status=404, body={"error": {"message": "no such model"}}), scenario, raises=True)
    assert run.step.error is not None
    assert (run.step.error.message, run.step.error.status) == ("no such model", 404)
