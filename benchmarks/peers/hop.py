"""Calls over loopback, with a proxy between client and server or without: the worker's side."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any

import openai

from benchmarks.payloads import Exchange, arguments
from benchmarks.peers.checks import Recorded, sent
from benchmarks.peers.measure import KINDS, TASKS


def block(kind: str, base_url: str, times: int) -> dict[str, Any]:
    """Median wall time of a call, this process's CPU for each, and whether the answer had its ids and logprobs."""
    exchange = exchange_of(kind)
    wall = []
    with openai.OpenAI(base_url=base_url, api_key="-", max_retries=0) as client:
        passed = _passed(client, exchange)
        began_process = time.process_time()
        for _ in range(times):
            began = time.perf_counter()
            answer = client.chat.completions.create(**_asked(exchange, kind))
            if exchange.streamed:
                for _ in answer:
                    pass
            wall.append(time.perf_counter() - began)
        process = (time.process_time() - began_process) / times
    return {"wall": median(wall), "process": process, "passed": passed}


def crowd(kind: str, base_url: str, calls: int) -> dict[str, Any]:
    """Calls a second of 64 tasks."""
    exchange = exchange_of(kind)

    async def agent(client: Any) -> None:
        for _ in range(calls):
            await client.chat.completions.create(**_asked(exchange, kind))

    async def everyone() -> float:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="-", max_retries=0, timeout=120) as client:
            began = time.perf_counter()
            await asyncio.gather(*(agent(client) for _ in range(TASKS)))
            return time.perf_counter() - began

    return {"rate": TASKS * calls / asyncio.run(everyone())}


def exchange_of(kind: str) -> Exchange:
    """The exchange of that kind, the same in all processes."""
    made: Exchange = replace(KINDS[kind][0](1), name=kind)
    return made


def _asked(exchange: Exchange, kind: str) -> dict[str, Any]:
    return {**arguments(exchange), "model": kind}


def _passed(client: Any, exchange: Exchange) -> str:
    """Whether prompt ids, completion ids and logprobs come to the client as they are sent; if not, what is lost."""
    answer = client.chat.completions.create(**_asked(exchange, exchange.name))
    parts = list(answer) if exchange.streamed else [answer]
    text = json.dumps([part.to_dict(mode="json") for part in parts])
    expected = sent(exchange.body, streamed=exchange.streamed)
    if sent(_body(text, exchange.streamed), streamed=exchange.streamed) == expected:
        return "yes"
    found = Recorded([{"text": text}])
    cells = {
        "prompt ids": found.ids(expected.prompt),
        "completion ids": found.ids(expected.completion, expected.pieces),
        "logprobs": found.logprobs(expected.logprobs),
    }
    lost = [name for name, (kept, _) in cells.items() if kept == "no"]
    return f"no {' and no '.join(lost)}" if lost else "in other fields"


def _body(text: str, streamed: bool) -> bytes:
    """The bytes that such an answer has, from what the client made of it."""
    parts = json.loads(text)
    if not streamed:
        return json.dumps(parts[0]).encode()
    return b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)
