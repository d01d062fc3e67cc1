"""Recorded calls that are redirected: their steps are those that they would be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import httpx
import pytest

import rollout_trace as rt
from rollout_trace.process.redirect import CALL_HEADER, redirect
from rollout_trace.testing import ScriptedServer
from tests.clients.http_libraries.harness import CHAT, Library, World

from .redirected import PLAIN, each_library, facts, run, to


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


def steps_of(library: Library, server: ScriptedServer, url: str) -> list[dict[str, Any]]:
    """The steps of a call, without what differs between two runs."""

    async def scenario(world: World) -> Any:
        with rt.trajectory() as trajectory:
            await facts(await world.post(url, streamed=True, json={**CHAT, "stream": True}))
        return trajectory

    varying = {"id", "call_id", "started_at", "latency", "time_to_first_token", "attempts"}
    names = [item.name for item in fields(rt.Step) if item.name not in varying]
    return [
        {"statuses": [one.status for one in step.attempts], **{name: repr(getattr(step, name)) for name in names}}
        for step in run(library, server, scenario).steps
    ]


@each_library
@pytest.mark.parametrize("first", ["instrument", "redirect"])
def test_steps_are_those_of_the_callers_address(library: Library, first: str) -> None:
    with ScriptedServer("fine") as theirs, ScriptedServer("fine") as ours:
        url = f"{theirs.base_url}/chat/completions"
        with rt.instrument(engine={theirs.base_url: "vllm"}):
            plain = steps_of(library, theirs, url)
        makers: list[Callable[[], Any]] = [
            lambda: rt.instrument(engine={theirs.base_url: "vllm"}),
            lambda: redirect(to(ours)),
        ]
        handles = [make() for make in (makers if first == "instrument" else makers[::-1])]
        try:
            redirected = steps_of(library, theirs, url)
        finally:
            for handle in handles:
                handle.undo()
        assert redirected == plain
        assert len(plain) == len(ours.requests) == len(theirs.requests) == 1
        # The engine's ids were asked for, by the caller's address.
        assert ours.requests[0].body == theirs.requests[0].body


@each_library
def test_a_request_of_a_call_has_its_id(library: Library, server: ScriptedServer) -> None:
    async def scenario(world: World) -> Any:
        with rt.trajectory() as trajectory:
            await facts(await world.post(PLAIN))
        return trajectory

    with rt.instrument(), redirect(to(server)):
        (step,) = run(library, server, scenario).steps
    assert server.requests[0].headers[CALL_HEADER] == f"{os.getpid()}/{step.call_id}"


@pytest.mark.filterwarnings("ignore:Inheritance class Aiohttp:DeprecationWarning")
def test_the_requests_of_sdks_go_there_too(server: ScriptedServer) -> None:
    import anthropic
    import openai
    from google import genai

    ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    usual: dict[str, Any] = {"api_key": "none", "max_retries": 0}

    def synchronous() -> None:
        for legacy in (None, httpx.Client()):
            with openai.OpenAI(**usual, http_client=legacy) as client:  # type: ignore[arg-type]
                assert client.chat.completions.create(**ask).choices[0].message.content == "fine"
                with client.chat.completions.stream(**ask) as stream:
                    assert stream.get_final_completion().choices[0].message.content == "fine"
        with anthropic.Anthropic(**usual) as claude:
            assert claude.messages.create(**ask, max_tokens=9).content[0].text == "fine"
        gemini = genai.Client(api_key="none")
        assert gemini.models.generate_content(model="m", contents="hi").text == "fine"
        gemini.close()

    async def asynchronous() -> None:
        for legacy in (None, httpx.AsyncClient(), openai.DefaultAioHttpClient()):
            async with openai.AsyncOpenAI(**usual, http_client=legacy) as client:  # type: ignore[arg-type]
                assert (await client.chat.completions.create(**ask)).choices[0].message.content == "fine"
        async with anthropic.AsyncAnthropic(**usual) as claude:
            async with claude.messages.stream(**ask, max_tokens=9) as stream:
                assert await stream.get_final_text() == "fine"
        gemini = genai.Client(api_key="none")
        streamed = await gemini.aio.models.generate_content_stream(model="m", contents="hi")
        assert [part.text async for part in streamed if part.text]
        await gemini.aio.aclose()
        gemini.close()

    with redirect(to(server)), rt.instrument(), rt.trajectory() as trajectory:
        synchronous()
        asyncio.run(asynchronous())
    hosts = [record.headers["host"] for record in server.requests]
    assert hosts.count("api.openai.com") == 7
    assert hosts.count("api.anthropic.com") == 2
    assert hosts.count("generativelanguage.googleapis.com") == 2
    assert [record.headers[CALL_HEADER] for record in server.requests] == [
        f"{os.getpid()}/{step.call_id}" for step in trajectory.steps
    ]
    assert {step.status for step in trajectory.steps} == {"ok"}
