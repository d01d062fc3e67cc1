"""Streams of litellm: what it makes of vLLM's chunks does not depend on the fields that were added to its request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer

litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own
MESSAGES = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
ANSWER = Reply("I look.", [("Bash", '{"command": "ls"}'), ("Bash", '{"command": "pwd"}')], "There is a folder.")


async def chat(options: dict[str, Any]) -> Any:
    tool = {"type": "function", "function": {"name": "Bash", "parameters": PARAMETERS}}
    chunks = [
        chunk async for chunk in await litellm.acompletion(**options, messages=MESSAGES, tools=[tool], stream=True)
    ]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    return [(one.content, [call.function.arguments for call in one.tool_calls or ()]) for one in deltas]


async def messages(options: dict[str, Any]) -> Any:
    tool = {"name": "Bash", "input_schema": PARAMETERS}
    answer = await litellm.anthropic_messages(
        **options, messages=MESSAGES, tools=[tool], stream=True, max_tokens=500, thinking={"type": "adaptive"}
    )
    text = "".join([one.decode() if isinstance(one, bytes) else str(one) async for one in answer])
    events = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
    return [
        (event["type"], event.get("content_block", {}).get("type"), event.get("delta", {}).get("partial_json"))
        for event in events
    ]


async def responses(options: dict[str, Any]) -> Any:
    tool = {"type": "function", "name": "Bash", "parameters": PARAMETERS}
    answer = await litellm.aresponses(**options, input="hi", tools=[tool], stream=True)
    return [event.type async for event in answer]


@pytest.mark.parametrize("surface", [chat, messages, responses])
def test_a_stream_is_the_same(surface: Callable[[dict[str, Any]], Any]) -> None:
    found, trajectories = [], []
    for engine in (None, "vllm"):
        recording = contextlib.nullcontext() if engine is None else rt.instrument(engine=engine)
        with ScriptedServer(ANSWER) as server, recording, rt.trajectory() as trajectory:
            options = {"model": "hosted_vllm/m", "api_base": server.base_url, "api_key": "none"}
            found.append(asyncio.run(surface(options)))
            trajectories.append(trajectory)
    plain, ours = found
    assert ours == plain
    (step,) = trajectories[1].steps
    assert (step.status, step.token_source) == ("ok", "engine")
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert len(step.completion_token_ids) == len(step.logprobs) > 50
