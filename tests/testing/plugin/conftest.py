"""Tests that run pytest in a folder of their own, with an agent in it and a model server beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from rollout_trace.testing import Reply, ScriptedServer

from .project import AGENT, Project


def script(request: dict[str, Any]) -> str | Reply:
    """A model that asks for the weather of each city in the question, one after the other, and then answers."""
    messages = request["messages"]
    question = next(message["content"] for message in messages if message["role"] == "user")
    results = [message["content"] for message in messages if message["role"] == "tool"]
    cities = [word.strip("?,.") for word in question.split() if word[0].isupper()][1:]
    if len(results) == len(cities):
        return " ".join(f"{city}: {result}." for city, result in zip(cities, results, strict=True)) or "Hello."
    return Reply(tool_calls=[("weather", json.dumps({"city": cities[len(results)]}))])


@pytest.fixture(scope="session", autouse=True)
def everything_is_imported() -> None:
    """What a call imports on the way: pytester forgets what is first imported in one of its runs."""
    with ScriptedServer("hello") as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        list(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}], stream=True))
        asyncio.run(_call(server.base_url))


async def _call(url: str) -> None:
    async with AsyncOpenAI(base_url=url, api_key="x") as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    """The model server that is recorded."""
    with ScriptedServer(script, chunk_tokens=3) as server:
        yield server


@pytest.fixture
def project(pytester: pytest.Pytester, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A folder with an agent in it."""
    for name in ("CI", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n")
    pytester.makepyfile(agent=AGENT)
    return Project(pytester, model, monkeypatch)
