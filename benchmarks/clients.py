"""Clients of the openai SDK whose server is a function in this process, and the one way they are called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import cycle
from typing import Any

import httpx2
from openai import AsyncOpenAI, OpenAI

import rollout_trace as rt
from benchmarks.payloads import Exchange, arguments, ask


class Caller:
    """A client that goes through its exchanges, one a call."""

    def __init__(self, exchanges: Sequence[Exchange], *, recorded: bool = False) -> None:
        client = sync_client(cycle(exchanges))
        self._client = rt.wrap_openai(client) if recorded else client
        self._exchanges = cycle(exchanges)

    def __call__(self) -> None:
        ask(self._client, next(self._exchanges))


def ensure_recorded() -> None:
    """A recorder that fails is fast, and so is one outside every trajectory: their figures must not count."""
    stats = rt.stats()
    if not stats.calls or stats.recorder_errors or stats.orphans:
        raise RuntimeError(f"what was measured was not recorded: {stats}")


def post(client: Any, exchange: Exchange) -> Any:
    """One call past the SDK's own types, for workloads where they would take most of the time."""
    return client.post("/chat/completions", body=body(exchange), cast_to=httpx2.Response)


def body(exchange: Exchange) -> dict[str, Any]:
    """The same as the one body that ``post`` takes.

    With 400 messages ``create`` spends 30 ms on their types, and what it makes of the answer blurs the memory.
    """
    asked = arguments(exchange)
    return {**asked.pop("extra_body"), **asked}


def sync_client(answers: Iterator[Exchange]) -> OpenAI:
    """A client whose calls are answered by the exchanges in turn."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        exchange = next(answers)
        content = _chunks(exchange) if exchange.streamed else _fresh(exchange.pieces[0])
        return httpx2.Response(200, headers=_headers(exchange), content=content)

    transport = httpx2.MockTransport(answer)
    return OpenAI(
        api_key="-", base_url="http://bench/v1", http_client=httpx2.Client(transport=transport), max_retries=0
    )


def async_client(answers: Iterator[Exchange]) -> AsyncOpenAI:
    """The same for asyncio; each answer lets other tasks run first."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        exchange = next(answers)
        await asyncio.sleep(0)
        content = _async_chunks(exchange) if exchange.streamed else _fresh(exchange.pieces[0])
        return httpx2.Response(200, headers=_headers(exchange), content=content)

    transport = httpx2.MockTransport(answer)
    return AsyncOpenAI(
        api_key="-", base_url="http://bench/v1", http_client=httpx2.AsyncClient(transport=transport), max_retries=0
    )


def _headers(exchange: Exchange) -> dict[str, str]:
    return {"date": "Sat, 21 Nov 2026 00:31:30 GMT", "server": "uvicorn", "content-type": exchange.content_type}


def _fresh(data: bytes) -> bytes:
    """A copy, as from a socket: a recorder that keeps an answer must pay for its memory."""
    return bytes(memoryview(data))


def _chunks(exchange: Exchange) -> Iterator[bytes]:
    return (_fresh(piece) for piece in exchange.pieces)


async def _async_chunks(exchange: Exchange) -> AsyncIterator[bytes]:
    for piece in exchange.pieces:
        await asyncio.sleep(0)
        yield _fresh(piece)
