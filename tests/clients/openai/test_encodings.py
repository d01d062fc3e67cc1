"""Compressed answers, and HTTP clients of the caller's own."""

from __future__ import annotations

from typing import Any, Literal

import httpx
import openai
import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply
from tests.amount import some
from tests.clients.either import Kind, done, each, entered, shown

from .harness import IDS, STREAM, World, bare, both, chat, run, streamed

Codec = Literal["gzip", "br", "zstd"]


def accepting(world: World, codec: Codec) -> Any:
    """A client that reads the codec. httpx2 does not read zstd with the `zstandard` package, as httpx does."""
    if codec != "zstd":
        return world.client
    return world.wrap(world.new_client(http_client=httpx.Client() if world.kind == "sync" else httpx.AsyncClient()))


@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("codec", ["gzip", "br", "zstd"])
def test_compressed_answers(kind: Kind, codec: Codec, size: int | None) -> None:
    """A compressed answer, streamed or not, is recorded as what it says."""

    async def scenario(world: World) -> Any:
        client = accepting(world, codec)
        return [await chat(client), await streamed(client), await streamed(client, n=2)]

    run = both(kind, Reply("fine", compress=codec), scenario, chunk_bytes=size)
    assert [step.status for step in run.steps] == ["ok"] * 4
    assert {step.token_source for step in run.steps} == {"engine"}
    for record in run.requests:
        assert dict(record.response_headers)["content-encoding"] == codec
        assert codec in record.headers["accept-encoding"]


@pytest.mark.parametrize("codec", some(["gzip", "br", "zstd"], "gzip"))
def test_a_long_compressed_stream(kind: Kind, codec: Codec) -> None:
    """A stream longer than its decoder gives at once, closed before its last bytes, is recorded whole."""

    async def scenario(world: World) -> Any:
        stream, seen = await done(accepting(world, codec).chat.completions.create(**STREAM)), []
        async for chunk in each(stream):
            seen.append(shown(chunk))
            if chunk.choices[0].finish_reason is not None:
                await done(stream.close())
                return seen

    run = both(kind, Fault(Reply("fine " * 40, compress=codec), hold_after=202), scenario)
    assert (run.step.status, run.step.token_source) == ("ok", "engine")


@pytest.mark.parametrize("codec", ["gzip", "br", "zstd"])
def test_a_compressed_stream_that_is_cut(kind: Kind, codec: Codec) -> None:
    """Of a compressed stream that breaks off, what had come is kept."""

    async def scenario(world: World) -> Any:
        seen: list[Any] = []
        try:
            async for chunk in each(await done(accepting(world, codec).chat.completions.create(**STREAM))):
                seen.append(shown(chunk))
        except Exception as error:
            seen.append(shown(error))
        return seen

    step = both(kind, Fault(Reply("fine", compress=codec), cut_after=3), scenario).step
    assert step.status == "error"
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == list(b"fi")


def test_compressed_bytes_read_raw(kind: Kind) -> None:
    """The caller that reads compressed bytes itself gets them compressed; the step is read all the same."""

    async def scenario(world: World) -> Any:
        async with entered(world.client.chat.completions.with_streaming_response.create(**IDS)) as response:
            plain = response.http_response
            parts = plain.iter_raw() if world.kind == "sync" else plain.aiter_raw()
            return b"".join([part async for part in each(parts)])

    assert both(kind, Reply("fine", compress="gzip"), scenario).step.status == "ok"


def test_a_compressed_error(kind: Kind) -> None:
    """An error with a compressed body says what it says."""
    import gzip

    body = gzip.compress(b'{"error": {"message": "squeezed", "type": "t"}}')

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    fault = Fault(status=400, body=body, headers={"content-encoding": "gzip"})
    step = both(kind, fault, scenario, raises=True).step
    assert step.error is not None
    assert (step.error.message, step.error.type) == ("squeezed", "t")


def test_bytes_that_are_not_in_their_encoding(kind: Kind) -> None:
    """A body that is not what its header says raises as it did; the step is an error."""

    async def scenario(world: World) -> Any:
        return await streamed(world.client)

    fault = Fault(Reply("fine", headers={"content-encoding": "gzip"}))
    step = both(kind, fault, scenario, raises=True).step
    assert step.status == "error"
    assert step.error is not None


def test_an_httpx_client(kind: Kind) -> None:
    """A client on an `httpx` client, also where the SDK itself is built on another library."""

    async def scenario(world: World) -> Any:
        made = httpx.Client() if world.kind == "sync" else httpx.AsyncClient()
        client = world.wrap(world.new_client(http_client=made))
        stream = await done(client.chat.completions.create(**STREAM, seed=1))
        assert isinstance(stream.response, httpx.Response)
        assert isinstance(
            stream.response.stream, httpx.SyncByteStream if world.kind == "sync" else httpx.AsyncByteStream
        )
        return [
            await chat(client),
            [shown(chunk) async for chunk in each(stream)],
            await chat(client.with_options(max_retries=1), seed=2),
        ]

    run = both(kind, "fine", scenario)
    assert [step.status for step in run.steps] == ["ok"] * 3


def test_an_httpx_client_that_fails(kind: Kind) -> None:
    """Its errors are what they were."""

    async def scenario(world: World) -> Any:
        made = httpx.Client() if world.kind == "sync" else httpx.AsyncClient()
        client, seen = world.wrap(world.new_client(http_client=made)), []
        try:
            async for chunk in each(await done(client.chat.completions.create(**STREAM))):
                seen.append(shown(chunk))
        except Exception as error:
            seen.append(shown(error))
        return seen

    step = both(kind, Fault("fine", cut_after=3), scenario).step
    assert step.status == "error"


def test_a_mock_transport(kind: Kind) -> None:
    """An HTTP client that answers itself, as in a user's own tests, is recorded too."""
    body = {"id": "1", "choices": [{"index": 0, "message": {"content": "mocked"}, "finish_reason": "stop"}]}
    events = b'data: {"id":"2","choices":[{"index":0,"delta":{"content":"mocked"},"finish_reason":"stop"}]}\n\n'

    def answer(request: httpx.Request) -> httpx.Response:
        if b'"stream":true' not in request.content.replace(b" ", b""):
            return httpx.Response(200, json=body)
        return httpx.Response(200, content=events, headers={"content-type": "text/event-stream"})

    async def scenario(world: World) -> Any:
        transport = httpx.MockTransport(answer)
        made = httpx.Client(transport=transport) if world.kind == "sync" else httpx.AsyncClient(transport=transport)
        client = world.wrap(world.new_client(http_client=made))
        return [await chat(client), await streamed(client)]

    plain, ours = run(kind, "never asked", scenario, wrap=bare), run(kind, "never asked", scenario)
    steps = ours.steps
    assert ours.outcome == plain.outcome
    assert ours.stats == rt.Stats(calls=2, attempts=2)
    assert [(step.status, step.completion and step.completion.content) for step in steps] == [("ok", "mocked")] * 2


def test_the_stream_stays_one_of_its_library(kind: Kind) -> None:
    """What the HTTP library checks its own streams for still holds."""

    async def scenario(world: World) -> Any:
        stream = await done(world.client.chat.completions.create(**STREAM))
        library = __import__(type(stream.response).__module__.partition(".")[0])
        expected = library.SyncByteStream if world.kind == "sync" else library.AsyncByteStream
        assert isinstance(stream.response.stream, expected)
        return [shown(chunk) async for chunk in each(stream)]

    both(kind, "fine", scenario)


def test_a_shared_http_client(kind: Kind) -> None:
    """Another client on the same HTTP client is not recorded, nor is what the HTTP client does itself."""

    async def scenario(world: World) -> Any:
        http = world.http_client()
        mine = world.wrap(world.new_client(http_client=http))
        other = world.new_client(http_client=http)
        url = f"{world.server.base_url}/chat/completions"
        body = {"model": "m", "messages": [{"role": "user", "content": "direct"}]}
        return [
            await chat(mine, seed=1),
            await chat(other, seed=2),
            await streamed(other, seed=3),
            await streamed(mine, seed=4),
            (await done(http.post(url, json=body))).content,
        ]

    run = both(kind, "fine", scenario, unrecorded=3)
    assert [(step.sampling or {})["seed"] for step in run.steps] == [1, 4]
    assert run.server.connections <= 3


def test_an_unrelated_client(kind: Kind) -> None:
    """Classes are not patched: a client that is not wrapped is not recorded."""

    async def scenario(world: World) -> Any:
        mine, other = world.client, world.new_client()
        assert type(other) in (openai.OpenAI, openai.AsyncOpenAI)
        assert rt.current() is not None
        return [await chat(other, seed=1), await chat(mine, seed=2)]

    run = both(kind, "fine", scenario, unrecorded=1)
    assert [(step.sampling or {})["seed"] for step in run.steps] == [2]
