"""Requests to Google in an instrumented process: of the SDK, and of an HTTP library alone."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from google import genai

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from tests.clients.either import Kind, drive

from .harness import ask, streamed

BODY = {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"seed": 1}}


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_client_is_recorded_once(kind: Kind, is_wrapped: bool) -> None:
    """Wrapped or not, each call is one step, and a retry an attempt of it."""

    async def calls(client: Any) -> None:
        await ask(client)
        await streamed(client)
        await ask(client, config={"seed": 1})
        if kind == "async":
            await client.aclose()

    def script(request: Any) -> Any:
        return [Fault(status=503), "again"] if "generationConfig" in request else "fine"

    retries: Any = {"attempts": 2, "initial_delay": 0.001, "jitter": 0}
    with ScriptedServer(script) as server, rt.instrument(), rt.trajectory() as trajectory:
        options: Any = {"base_url": server.url, "retry_options": retries}
        client = genai.Client(api_key="none", http_options=options)
        made = rt.wrap_google(client) if is_wrapped else client
        drive(kind, calls(made if kind == "sync" else made.aio))
    assert len(server.requests) == 4
    found = [(s.model, s.status, s.completion and s.completion.content, len(s.attempts)) for s in trajectory.steps]
    name = "gemini-2.5-flash"
    assert found == [(name, "ok", "fine", 1), (name, "ok", "fine", 1), (name, "ok", "again", 2)]


@pytest.mark.parametrize("ending", [":generateContent", ":streamGenerateContent", ":streamGenerateContent?alt=sse"])
def test_requests_without_an_sdk(ending: str) -> None:
    """Whole answers, arrays and events that nobody's SDK asked for give the same step."""
    library = sys.modules.get("httpx2") or sys.modules["httpx"]
    reply = Reply("It is 4.", [("add", '{"a": 2}')], "two and two")
    with ScriptedServer(reply) as server, rt.instrument(), rt.trajectory() as trajectory:
        address = f"{server.url}/v1beta/models/gemini-2.5-flash{ending}"
        with library.Client(headers={"x-goog-api-key": "AIza-secret-4711"}) as client:
            client.post(address, content=json.dumps(BODY))
    (step,) = trajectory.steps
    assert (step.protocol, step.model, step.status) == ("google.generate_content", "gemini-2.5-flash", "ok")
    assert step.completion is not None
    assert (step.completion.content, step.completion.reasoning) == ("It is 4.", "two and two")
    assert [call.name for call in step.completion.tool_calls] == ["add"]
    assert (step.sampling, step.finish_reason) == ({"seed": 1}, "STOP")
