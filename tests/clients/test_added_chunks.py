"""A program reads the chunks that it would read without the recorder, by any client, and the step has all tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Response, cut
from rollout_trace.testing import RequestRecord
from tests.amount import some
from tests.wire.engines.added_chunks import EVENTS, Recorded, bare, events, says_something, streams, without_tokens
from tests.wire.engines.engine_servers import on

from .either import Kind, done, each, entered
from .http_libraries import reading
from .http_libraries.harness import LIBRARIES, Library, World, run, settings_for
from .http_libraries.test_reading import EVERY

NAME = "vllm/tools_auto_hermes_two_stream"
ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
ANSWER = streams()[NAME][1]


async def created(client: Any, **options: Any) -> Any:
    return [chunk async for chunk in each(await done(client.chat.completions.create(**ASKED, **options)))]


async def raw(client: Any, **options: Any) -> Any:
    response = await done(client.chat.completions.with_raw_response.create(**ASKED, **options))
    return [chunk async for chunk in each(await done(response.parse()))]


async def lines(client: Any, **options: Any) -> Any:
    async with entered(client.chat.completions.with_streaming_response.create(**ASKED, **options)) as response:
        found = [line async for line in each(response.iter_lines())]
    return [json.loads(line[6:]) for line in found if line.startswith("data: {")]


async def pieces(client: Any, **options: Any) -> Any:
    async with entered(client.chat.completions.with_streaming_response.create(**ASKED, **options)) as response:
        found = b"".join([piece async for piece in each(response.iter_bytes(64))])
    return [json.loads(event[6:]) for event in events(found)[:-1]]


async def helper(client: Any, **options: Any) -> Any:
    asked = {name: ASKED[name] for name in ("model", "messages")}
    async with entered(client.chat.completions.stream(**asked, **options)) as stream:
        return [event.chunk async for event in each(stream) if event.type == "chunk"]


SURFACES = (created, raw, lines, pieces, helper)


def seen(chunks: list[Any]) -> list[Any]:
    return [without_tokens(one if isinstance(one, dict) else one.to_dict()) for one in chunks]


@pytest.mark.parametrize("surface", SURFACES, ids=lambda one: one.__name__)
def test_chunks_of_the_sdk(kind: Kind, surface: Any) -> None:
    """With the fields that are added they are those without, one by one."""
    found: list[Any] = []

    async def scenario(client: Any) -> None:
        found.append(seen(await surface(client)))

    with Recorded(NAME) as server:
        on(kind, server, scenario, None)
        _, (step,) = on(kind, server, scenario, {"engine": "vllm"})
        _, (every,) = on(kind, server, scenario, {"engine": rt.Engine("vllm", show_added=True)})
    plain, ours, every_chunk = found
    assert ours == plain
    # Without the event at the end, and the usage.
    assert (len(plain), len(every_chunk)) == (sum(map(says_something, events(ANSWER))) - 2, len(events(ANSWER)) - 1)
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert step.usage is not None
    assert len(step.completion_token_ids) == len(step.logprobs) == step.usage.output
    assert every.completion == step.completion
    assert every.completion_token_ids is not None
    assert every.completion_token_ids.tolist() == step.completion_token_ids.tolist()


@pytest.mark.parametrize("own", [{"logprobs": True}, {"extra_body": {"return_token_ids": True}}])
def test_what_the_caller_asked_for(kind: Kind, own: dict[str, Any]) -> None:
    found: list[Any] = []

    async def scenario(client: Any) -> None:
        found.append(await created(client, **own))

    with Recorded(NAME) as server:
        on(kind, server, scenario, {"engine": "vllm"})
    assert len(found[0]) == len(events(ANSWER)) - 2


WAYS = {"httpx": reading.HTTPX, "httpx2": reading.HTTPX, "requests": reading.REQUESTS, "aiohttp": reading.AIOHTTP}


class InPieces(Recorded):
    """Sends the stream in pieces that end anywhere, after a compression or none."""

    def answer(self, record: RequestRecord) -> Response:
        found = super().answer(record)
        body = b"".join(part for part in found.parts if isinstance(part, bytes))
        found.parts = [body[at : at + 700] for at in range(0, len(body), 700)]
        return found


@pytest.mark.parametrize(("library", "way"), some(EVERY, *EVERY[::3]), ids=lambda one: getattr(one, "name", one))
def test_each_way_to_read(library: Library, way: str) -> None:
    async def scenario(world: World) -> Any:
        found = await WAYS[library.module][way](await world.post(streamed=True, json=ASKED))
        return joined(found)

    plain = run(library, NAME, scenario, None, server=InPieces)
    ours = run(library, NAME, scenario, settings_for("vllm"), server=InPieces)
    assert ours.stats.recorder_errors == 0
    assert plain.outcome[0] == ours.outcome[0] == "returned"
    assert [*map(bare, events(ours.outcome[1]))] == [*map(bare, events(plain.outcome[1]))]
    assert ours.step.response_bytes == ANSWER
    assert ours.step.status == "ok"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_read_at_once(library: Library) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(json=ASKED)
        return await done(response.read()) if library.module == "aiohttp" else response.content

    plain = run(library, NAME, scenario, None, server=InPieces)
    ours = run(library, NAME, scenario, settings_for("vllm"), server=InPieces)
    assert [*map(bare, events(ours.outcome[1]))] == [*map(bare, events(plain.outcome[1]))]
    assert ours.step.response_bytes == ANSWER


SIZED: dict[str, Callable[[Any], list[bytes]]] = {
    "raw_read": lambda raw: [*iter(lambda: raw.read(50), b"")],
    "raw_readinto": lambda raw: [*_into(raw, 50)],
    "raw_lines": lambda raw: [*raw],
    "raw_stream": lambda raw: [*raw.stream(50)],
    "raw_read_and_rest": lambda raw: [raw.read(50), raw.read()],
}


def _into(raw: Any, size: int) -> Iterator[bytes]:
    buffer = memoryview(bytearray(size))
    while count := raw.readinto(buffer):
        yield bytes(buffer[:count])


@pytest.mark.parametrize("way", SIZED)
def test_not_more_than_was_asked_for(way: str) -> None:
    """Of requests: a program that reads 50 bytes gets 50, not the rest of an event that was held back."""

    async def scenario(world: World) -> Any:
        return SIZED[way]((await world.post(streamed=True, json=ASKED)).raw)

    (library,) = (one for one in LIBRARIES if one.module == "requests")
    plain = run(library, NAME, scenario, None, server=InPieces)
    ours = run(library, NAME, scenario, settings_for("vllm"), server=InPieces)
    read, expected = ours.outcome[1], plain.outcome[1]
    assert [*map(bare, events(b"".join(read)))] == [*map(bare, events(b"".join(expected)))]
    if way == "raw_lines":
        assert len(read) == len(expected)
    elif way != "raw_read_and_rest":
        assert max(map(len, read)) == 50
    assert ours.step.response_bytes == ANSWER


@pytest.mark.parametrize("way", ["raw_read", "raw_stream"])
def test_what_comes_before_a_break(way: str) -> None:
    """The beginning of an event, which is held back, and then the exception."""
    began = b'data: {"choices":[{"index":0,"delta":{"content":"he'

    class Breaks(Recorded):
        def answer(self, record: RequestRecord) -> Response:
            return Response(200, EVENTS, [began, cut], chunked=True)

    async def scenario(world: World) -> Any:
        raw, read = (await world.post(streamed=True, json=ASKED)).raw, b""
        pieces = raw.stream(7) if way == "raw_stream" else iter(lambda: raw.read(7), b"")
        try:
            for piece in pieces:
                read += piece
        except Exception as error:
            return read, type(error).__name__
        return read, None

    (library,) = (one for one in LIBRARIES if one.module == "requests")
    plain = run(library, NAME, scenario, None, server=Breaks)
    ours = run(library, NAME, scenario, settings_for("vllm"), server=Breaks)
    assert ours.outcome == plain.outcome
    assert ours.step.status == "error"


def joined(found: Any) -> bytes:
    """All that was read, as events: of ways that give lines, the ends are put back."""
    if isinstance(found, (bytes, str)):
        return found.encode() if isinstance(found, str) else found
    parts = [one.encode() if isinstance(one, str) else one for one in found]
    if any(part.endswith(b"\n") for part in parts) or not any(part == b"" for part in parts):
        return b"".join(parts)
    return b"\n".join(parts) + b"\n"
