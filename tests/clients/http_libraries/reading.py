"""The ways to read a response, of each library: functions of a response that give all that was read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from tests.clients.either import done, each

Read: TypeAlias = Callable[[Any], Coroutine[Any, Any, Any]]


async def _pieces(values: Any) -> list[Any]:
    return [value async for value in each(values)]


def _httpx(name: str) -> Read:
    async def read(response: Any) -> Any:
        is_async = not hasattr(response.stream, "__iter__")
        found = getattr(response, f"a{name}" if is_async else name)()
        pieces = await done(found) if name == "read" else await _pieces(found)
        await done(response.aclose() if is_async else response.close())
        # The network decides how bytes are cut.
        return pieces if name == "iter_lines" or isinstance(pieces, bytes) else type(pieces[0])().join(pieces)

    return read


def _requests(function: Callable[[Any], Any]) -> Read:
    async def read(response: Any) -> Any:
        found = function(response)
        pieces = found if isinstance(found, (bytes, str, dict)) else list(found)
        response.close()
        return pieces

    return read


def _until_empty(read: Callable[[], bytes]) -> list[bytes]:
    return [*iter(read, b"")]


async def _aiohttp_until_empty(read: Callable[[], Coroutine[Any, Any, bytes]]) -> list[bytes]:
    found = []
    while piece := await read():
        found.append(piece)
    return found


async def _one(pieces: Coroutine[Any, Any, list[Any]]) -> bytes:
    """The pieces as one, where the network decides how they are cut."""
    return b"".join(piece[0] if isinstance(piece, tuple) else piece for piece in await pieces)


async def _exactly(response: Any) -> list[bytes]:
    return [await response.content.readexactly(9), await response.content.read()]


async def _nowait(response: Any) -> list[bytes]:
    found, content = [], response.content
    while piece := await content.read(3):
        found += [piece, b"" if content.at_eof() else content.read_nowait()]
    return found


def _read1(raw: Any) -> Any:
    # urllib3 before 2.0 has none.
    return raw.read1 if hasattr(raw, "read1") else functools.partial(raw.read, 64)


def _chunked(response: Any) -> Any:
    """By chunks, where the body comes in chunks; else in another way, after the exception."""
    try:
        pieces = [*response.raw.read_chunked(decode_content=True)]
    except Exception as error:
        pieces = [type(error).__name__.encode(), *response.raw.stream(decode_content=True)]
    # The server decides how the body is cut.
    return [b"".join(pieces)]


HTTPX: dict[str, Read] = {name: _httpx(name) for name in ("iter_bytes", "iter_raw", "iter_lines", "iter_text", "read")}
REQUESTS: dict[str, Read] = {
    "content": _requests(lambda response: response.content),
    "text": _requests(lambda response: response.text),
    "iteration": _requests(iter),
    "iter_content": _requests(lambda response: response.iter_content()),
    "iter_content_any": _requests(lambda response: response.iter_content(None)),
    "iter_content_7": _requests(lambda response: response.iter_content(7)),
    "iter_content_text": _requests(lambda response: response.iter_content(64, decode_unicode=True)),
    "iter_lines": _requests(lambda response: response.iter_lines()),
    "raw_read": _requests(lambda response: response.raw.read()),
    "raw_read_7": _requests(lambda response: _until_empty(lambda: response.raw.read(7))),
    "raw_read_unpacked": _requests(
        lambda response: b"".join(_until_empty(lambda: response.raw.read(99, decode_content=True)))
    ),
    "raw_stream": _requests(lambda response: response.raw.stream(decode_content=True)),
    "raw_stream_packed": _requests(lambda response: b"".join(response.raw.stream(decode_content=False))),
    "raw_lines": _requests(lambda response: response.raw),
    "raw_read1": _requests(lambda response: b"".join(_until_empty(_read1(response.raw)))),
    "raw_chunked": _requests(_chunked),
}
AIOHTTP: dict[str, Read] = {
    "read": lambda response: response.read(),
    "text": lambda response: response.text(),
    "content_read": lambda response: response.content.read(),
    "content_read_7": lambda response: _one(_aiohttp_until_empty(lambda: response.content.read(7))),
    "readany": lambda response: _one(_aiohttp_until_empty(response.content.readany)),
    "readline": lambda response: _aiohttp_until_empty(response.content.readline),
    "readuntil": lambda response: _aiohttp_until_empty(lambda: response.content.readuntil(b"}")),
    "readexactly": _exactly,
    "read_nowait": lambda response: _one(_nowait(response)),
    "lines": lambda response: _pieces(response.content),
    "iter_any": lambda response: _one(_pieces(response.content.iter_any())),
    "iter_chunked": lambda response: _one(_pieces(response.content.iter_chunked(7))),
    "iter_chunks": lambda response: _one(_pieces(response.content.iter_chunks())),
}
