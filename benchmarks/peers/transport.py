"""Clients of the openai SDK over httpx's own transport, in which a function stands in for the network.

The transport is the real one, since some peers patch it: only its connection pool is replaced. An openai client before
3 is on httpx, later ones are on httpx2.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import openai

from benchmarks.payloads import Exchange

_SUFFIX = "2" if int(openai.__version__.partition(".")[0]) >= 3 else ""
httpx: Any = importlib.import_module(f"httpx{_SUFFIX}")
httpcore: Any = importlib.import_module(f"httpcore{_SUFFIX}")
Next = Callable[[], Exchange]


def sync_client(next_exchange: Next) -> Any:
    """A client whose calls are answered by the next exchange."""
    transport = httpx.HTTPTransport()
    transport._pool = _Pool(next_exchange)
    http_client = httpx.Client(transport=transport)
    return openai.OpenAI(api_key="-", base_url="http://bench/v1", http_client=http_client, max_retries=0)


def async_client(next_exchange: Next) -> Any:
    """The same for asyncio; each answer, and each piece of a stream, lets other tasks run first."""
    transport = httpx.AsyncHTTPTransport()
    transport._pool = _Pool(next_exchange)
    http_client = httpx.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(api_key="-", base_url="http://bench/v1", http_client=http_client, max_retries=0)


class _Pool:
    def __init__(self, next_exchange: Next) -> None:
        self._next = next_exchange

    def handle_request(self, request: Any) -> Any:
        _consume(request)
        exchange = self._next()
        return httpcore.Response(200, headers=_headers(exchange), content=_Pieces(exchange))

    async def handle_async_request(self, request: Any) -> Any:
        await asyncio.sleep(0)
        exchange = self._next()
        return httpcore.Response(200, headers=_headers(exchange), content=_AsyncPieces(exchange))

    def close(self) -> None:
        """As the real one's."""

    async def aclose(self) -> None:
        """As the real one's."""


def _consume(request: Any) -> None:
    for _ in request.stream:
        pass


class _Pieces:
    def __init__(self, exchange: Exchange) -> None:
        self._pieces = exchange.pieces

    def __iter__(self) -> Iterator[bytes]:
        return (bytes(memoryview(piece)) for piece in self._pieces)  # a copy, as from a socket

    def close(self) -> None:
        """As a connection's."""


class _AsyncPieces:
    def __init__(self, exchange: Exchange) -> None:
        self._pieces = exchange.pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            yield bytes(memoryview(piece))

    async def aclose(self) -> None:
        """As a connection's."""


def _headers(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    kind = exchange.content_type.encode()
    return [(b"date", b"Sat, 21 Nov 2026 00:31:30 GMT"), (b"server", b"uvicorn"), (b"content-type", kind)]
