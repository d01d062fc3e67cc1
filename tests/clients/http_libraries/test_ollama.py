"""Ollama's own endpoints, called as its clients call them: recorded by ``rt.instrument`` alone, with every library."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import rollout_trace as rt
from rollout_trace.clients.httpx import wrap_httpx
from rollout_trace.testing import Fault, Reply, ScriptedServer, ToolCall
from tests.clients.either import drive

from .harness import LIBRARIES, Library, World
from .test_ends import closed, next_of, pieces
from .test_requests_sent import _close, read

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "options": {"temperature": 0}}
REPLY = Reply("hé", reasoning="so", tool_calls=[ToolCall("add", '{"a":1}')])


def recorded(library: Library, script: Any, path: str, body: dict[str, Any], *, leaves: bool = False) -> rt.Step:
    """The step of one call; ``leaves``: of which one piece is read."""

    async def call() -> None:
        world = World(library, server)
        world.session = library.session()
        response = await world.post(server.url + path, streamed=True, json=body)
        if leaves:
            iterator = pieces(library, response)
            await next_of(iterator)
            await world.held()
            await closed(library, response)
            server.release()
        else:
            await read(world, response)
        await _close(world)

    with ScriptedServer(script) as server, rt.instrument(), rt.trajectory() as trajectory:
        drive(library.kind, call())
    (step,) = trajectory.steps
    (record,) = server.requests
    assert json.loads(record.body) == body
    return step


@each_library
@pytest.mark.parametrize("stream", [None, True, False])
def test_chat(library: Library, stream: bool | None) -> None:
    body = {**CHAT, **({} if stream is None else {"stream": stream})}
    step = recorded(library, REPLY, "/api/chat", body)
    assert (step.protocol, step.status, step.error, step.engine) == ("ollama.chat", "ok", None, None)
    assert step.completion is not None
    assert (step.completion.content, step.completion.reasoning) == ("hé", "so")
    assert [(call.name, call.arguments) for call in step.completion.tool_calls] == [("add", '{"a":1}')]
    assert step.usage is not None
    assert None not in (step.usage.input, step.usage.output)
    assert step.sampling == {"temperature": 0}
    assert (step.time_to_first_token is None) == (stream is False)


@each_library
@pytest.mark.parametrize("stream", [None, False])
def test_generate(library: Library, stream: bool | None) -> None:
    body = {"model": "m", "prompt": "hi", **({} if stream is None else {"stream": stream})}
    step = recorded(library, "fine", "/api/generate", body)
    assert step.completion is not None
    assert (step.protocol, step.status, step.completion.content) == ("ollama.generate", "ok", "fine")
    assert step.messages == ["hi"]


@each_library
def test_a_stream_that_is_left(library: Library) -> None:
    step = recorded(library, Fault("many words", hold_after=3), "/api/chat", CHAT, leaves=True)
    assert (step.status, step.error) == ("abandoned", None)
    assert step.completion is not None
    assert step.completion.content in ("m", "ma", "man")


@each_library
def test_errors(library: Library) -> None:
    refused = recorded(library, Fault(status=404), "/api/chat", CHAT)
    assert refused.error is not None
    assert (refused.status, refused.error.status) == ("error", 404)
    broken = recorded(library, Fault("many words", error_event_after=2), "/api/chat", CHAT)
    assert broken.error is not None
    assert (broken.status, broken.error.message) == ("error", "the script breaks this stream")


def test_wrap_httpx() -> None:
    """Without instrument, on one client."""
    with ScriptedServer("fine") as server, rt.trajectory() as trajectory:
        with wrap_httpx(httpx.Client(base_url=server.url)) as client:
            assert client.post("/api/chat", json=CHAT).status_code == 200
    (step,) = trajectory.steps
    assert (step.protocol, step.status) == ("ollama.chat", "ok")
