"""Exact turns of programs that call their server without an SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

from .agents import ENGINE, TOKENIZER, check_steps, exact, numbered, texts

FIRST = [{"role": "user", "content": "hi"}]


def turns(messages: list[Any]) -> Generator[dict[str, Any], Any, None]:
    """The bodies of four requests; each answer's text is sent in."""
    for turn in range(4):
        answer = yield {"model": "m", "messages": messages}
        text = answer["choices"][0]["message"]["content"]
        messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": f"go {turn}"}]


def _all(post: Any) -> None:
    bodies: Any = turns(FIRST)
    body = next(bodies)
    try:
        while True:
            body = bodies.send(post(body))
    except StopIteration:
        return


def by_httpx(url: str) -> None:
    httpx = pytest.importorskip("httpx")
    with httpx.Client() as client:
        _all(lambda body: client.post(url, json=body).json())


def by_requests(url: str) -> None:
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        _all(lambda body: session.post(url, json=body).json())


def by_async_httpx(url: str) -> None:
    httpx = pytest.importorskip("httpx")

    async def run() -> None:
        async with httpx.AsyncClient() as client:
            bodies: Any = turns(FIRST)
            body = next(bodies)
            for _ in range(4):
                answer = (await client.post(url, json=body)).json()
                try:
                    body = bodies.send(answer)
                except StopIteration:
                    return

    asyncio.run(run())


def by_aiohttp(url: str) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            bodies: Any = turns(FIRST)
            body = next(bodies)
            for _ in range(4):
                async with session.post(url, json=body) as response:
                    answer = await response.json()
                try:
                    body = bodies.send(answer)
                except StopIteration:
                    return

    asyncio.run(run())


@pytest.mark.parametrize("run", [by_httpx, by_requests, by_async_httpx, by_aiohttp])
def test_turns_are_one_row(run: Any) -> None:
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.instrument(engine=ENGINE, http=True):
        with rt.trajectory() as trajectory:
            run(f"{server.base_url}/chat/completions")
        paths = [one.path for one in server.requests]
    assert exact(trajectory.steps) == [False, True, True, True], texts(trajectory.steps)
    assert len(trajectory.sequences()) == 1
    check_steps(trajectory.steps)
    # What is asked of the tokenizer is no call.
    assert len(trajectory.steps) == 4
    assert paths.count("/tokenize") == 6
