"""Whatever way a response is read, its caller gets what it would, and the step has the server's bytes."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_trace.testing import Reply
from tests.amount import some
from tests.clients.http_libraries import reading

from .harness import AIOHTTP, CHAT, LIBRARIES, REQUESTS, Library, World, assert_recorded, both

_WAYS = {"httpx": reading.HTTPX, "httpx2": reading.HTTPX, "requests": reading.REQUESTS, "aiohttp": reading.AIOHTTP}
EVERY = [(library, name) for library in LIBRARIES for name in _WAYS[library.module]]
each_way = pytest.mark.parametrize(
    ("library", "way"), some(EVERY, *EVERY[::3]), ids=lambda one: getattr(one, "name", one)
)


def joined(outcome: Any) -> bytes:
    """All that was read, as one; lines without their ends."""
    found = outcome[1]
    pieces = found if isinstance(found, list) else [found]
    flat = [item for piece in pieces for item in (piece if isinstance(piece, (list, tuple)) else [piece])]
    texts = [item.encode() if isinstance(item, str) else item for item in flat if isinstance(item, (str, bytes))]
    return b"".join(texts).replace(b"\n", b"")


@each_way
@pytest.mark.parametrize("compress", some([None, "gzip"], "gzip"))
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "events"])
def test_each_way_to_read(library: Library, way: str, compress: Any, streamed: bool) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(streamed=True, json={**CHAT, "stream": streamed})
        return await _WAYS[library.module][way](response)

    ours = both(library, Reply("a few words é", compress=compress), scenario)
    assert_recorded(ours, compress=compress)
    packed = ("iter_raw", "raw_read", "raw_read_7", "raw_read1", "raw_stream_packed", "raw_lines")
    if not (compress and way in packed) and way != "raw_chunked":
        assert joined(ours.outcome) == (ours.step.response_bytes or b"").replace(b"\n", b"")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
@pytest.mark.parametrize("compress", [None, "gzip", "br", "zstd"])
def test_a_response_that_is_read_at_once(library: Library, compress: Any) -> None:
    if compress == "zstd" and library.module in ("aiohttp", "httpx2"):
        # They take another package for it than httpx and urllib3.
        return

    async def scenario(world: World) -> Any:
        response = await world.post()
        return response.status_code if hasattr(response, "status_code") else len(await response.read())

    ours = both(library, Reply("a few words", compress=compress), scenario)
    assert ours.step.completion is not None
    assert ours.step.completion.content == "a few words"
    assert (ours.step.status, ours.step.token_issue) == ("ok", None)


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_bytes_that_come_in_pieces(library: Library, size: int) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(streamed=True, json={**CHAT, "stream": True})
        way = {"requests": "iter_lines", "aiohttp": "lines"}.get(library.module, "iter_lines")
        return await _WAYS[library.module][way](response)

    assert_recorded(both(library, Reply("a few words", chunk_bytes=size), scenario))


def test_types_are_those_of_the_libraries() -> None:
    """A response has its own class, and its parts have it again once they have been read."""

    async def with_requests(world: World) -> Any:
        import requests

        response = await world.post(streamed=True)
        seen = [type(response) is requests.Response, type(response.raw).__name__, sorted(vars(response))]
        content = response.content
        return [*seen, content, type(response.raw), sorted(vars(response.raw)), sorted(vars(response))]

    async def with_aiohttp(world: World) -> Any:
        import aiohttp

        response = await world.post(streamed=True)
        seen = [type(response) is aiohttp.ClientResponse, isinstance(response.content, aiohttp.StreamReader)]
        content = await response.read()
        return [*seen, content, type(response.content) is aiohttp.StreamReader, repr(response.content)]

    assert_recorded(both(REQUESTS, "fine", with_requests))
    assert_recorded(both(AIOHTTP, "fine", with_aiohttp))
