"""Calls over loopback, with a proxy between client and server or without: the worker's side."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any

import openai

from benchmarks.payloads import Exchange
from benchmarks.peers.measure import KINDS, TASKS, arguments


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


def _passed(client: Any, exchange: Exchange) -> bool:
    """Whether prompt ids, completion ids and logprobs come to the client as the server sends them."""
    answer = client.chat.completions.create(**_asked(exchange, exchange.name))
    parts = list(answer) if exchange.streamed else [answer]
    found = _facts([part.to_dict(mode="json") for part in parts])
    return found == _facts(_sent(exchange))


def _sent(exchange: Exchange) -> list[dict[str, Any]]:
    if not exchange.streamed:
        return [json.loads(exchange.body)]
    return [json.loads(piece[6:]) for piece in exchange.pieces if piece.startswith(b"data: {")]


def _facts(parts: list[dict[str, Any]]) -> tuple[Any, list[int], list[float]]:
    prompt = next((part["prompt_token_ids"] for part in parts if part.get("prompt_token_ids")), None)
    choices = [choice for part in parts for choice in part["choices"]]
    ids = [number for choice in choices for number in choice.get("token_ids") or []]
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content") or []]
    return prompt, ids, [entry["logprob"] for entry in entries]
