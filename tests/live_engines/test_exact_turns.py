"""Exact turns on a live vLLM: one row where there were eight, and the engine's own logprobs for each of its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import openai
import pytest

import rollout_trace as rt
from tests.clients.either import done, drive, each, entered
from tests.live_engines.servers import MODEL, Server
from tests.live_engines.test_collect import counters

EXACT, BY_TEXT = rt.Engine("vllm", exact_turns=True), rt.Engine("vllm")
TURNS = 8
TOOL = {
    "name": "add",
    "description": "adds",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
USUAL: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 120}
Agent = Callable[[Any], Coroutine[Any, Any, None]]


async def chat(client: Any, *, stream: bool = False) -> None:
    """Forced calls of a tool, whose results are sent back."""
    messages: list[Any] = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Begin."}]
    for turn in range(TURNS):
        answer = await done(client.chat.completions.create(
            model=MODEL, messages=messages, tools=[{"type": "function", "function": TOOL}], tool_choice="required",
            max_tokens=64, seed=turn, stream=stream))  # fmt: skip
        calls: Any = await _calls(answer) if stream else answer.choices[0].message.tool_calls or []
        said: list[Any] = [call if stream else call.model_dump() for call in calls]
        text = "" if stream else answer.choices[0].message.content
        messages.append({"role": "assistant", "content": text, **({"tool_calls": said} if said else {})})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": f"sum {turn}"} for call in said]
        messages += [] if said else [{"role": "user", "content": "go on"}]


async def _calls(answer: Any) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    async for chunk in each(answer):
        for delta in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            call = calls.setdefault(
                delta.index, {"id": delta.id, "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["function"]["name"] += delta.function.name or ""
            call["function"]["arguments"] += delta.function.arguments or ""
    return list(calls.values())


async def streamed(client: Any) -> None:
    """``chat``, streamed."""
    await chat(client, stream=True)


async def talk(client: Any) -> None:
    """Free text, cut at a limit: its ids are seldom those of its text."""
    messages: list[Any] = [{"role": "user", "content": "Begin."}]
    for turn in range(TURNS):
        answer = await done(client.chat.completions.create(model=MODEL, messages=messages, max_tokens=24, seed=turn))
        messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                     {"role": "user", "content": f"go on {turn}"}]  # fmt: skip


async def responses(client: Any) -> None:
    """``talk`` by the Responses API."""
    items: list[Any] = [{"role": "user", "content": "Begin."}]
    for turn in range(TURNS):
        answer = await done(client.responses.create(model=MODEL, input=items, max_output_tokens=24, temperature=1.0))
        items += [
            *(one.model_dump(exclude_none=True) for one in answer.output),
            {"role": "user", "content": f"go {turn}"},
        ]


AGENTS: dict[str, Agent] = {"chat": chat, "streamed": streamed, "talk": talk, "responses": responses}


def run(server: Server, agent: Agent, engine: rt.Engine, kind: Any = "sync") -> rt.Trajectory:
    """The trajectory of one run."""
    plain = openai.OpenAI if kind == "sync" else openai.AsyncOpenAI

    async def scenario() -> rt.Trajectory:
        async with entered(plain(base_url=server.base_url, **USUAL)) as client:
            rt.wrap_openai(client, engine=engine)
            with rt.trajectory() as trajectory:
                await agent(client)
        return trajectory

    trajectory: rt.Trajectory = drive(kind, scenario())
    return trajectory


def scored(server: Server, ids: list[int]) -> np.ndarray[Any, Any]:
    """The engine's logprobs of a row, by one pass over it; NaN for the first id."""
    with openai.OpenAI(base_url=server.base_url, **USUAL) as client:
        answer = client.completions.create(
            model=MODEL, prompt=ids, max_tokens=1, extra_body={"prompt_logprobs": 0}, temperature=0
        )
    found = answer.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    return np.array([np.nan, *(one[str(token)]["logprob"] for one, token in zip(found[1:], ids[1:], strict=True))])


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("name", AGENTS)
def test_eight_turns_are_one_row(server: Server, name: str, kind: str) -> None:
    if server.engine != "vllm":
        pytest.skip("llama-server takes no ids beside messages")
    by_text, by_ids = (run(server, AGENTS[name], engine, kind) for engine in (BY_TEXT, EXACT))
    turns = [step.exact_turn for step in by_ids.steps]
    assert [turn is not None and turn.is_exact for turn in turns] == [False, *[True] * (TURNS - 1)], turns
    rows = by_ids.sequences()
    assert len(rows) == 1
    assert len(by_text.sequences()) > 1
    for row in rows:
        sampled = row.loss_mask.astype(bool)
        assert row.logprobs is not None
        again = scored(server, row.token_ids.tolist())
        ratio = np.exp(again[sampled] - row.logprobs[sampled])
        # A grammar leaves fewer tokens to choose from than a pass over the row has.
        if name in ("talk", "responses"):
            assert np.abs(ratio - 1).max() < 1e-3


def test_sixty_four_agents_at_once(server: Server) -> None:
    if server.engine != "vllm":
        pytest.skip("llama-server takes no ids beside messages")

    async def one(client: Any, name: str) -> rt.Trajectory:
        with rt.trajectory() as trajectory:
            messages: list[Any] = [{"role": "user", "content": name}]
            for turn in range(3):
                answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
                messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                             {"role": "user", "content": f"go on {turn}"}]  # fmt: skip
        return trajectory

    async def all_of_them() -> list[rt.Trajectory]:
        async with openai.AsyncOpenAI(base_url=server.base_url, **USUAL) as client:
            rt.wrap_openai(client, engine=EXACT)
            return await asyncio.gather(*(one(client, f"agent {at % 8}") for at in range(64)))

    before = counters(server)
    found = asyncio.run(all_of_them())
    assert [len(one.sequences()) for one in found] == [1] * 64
    counted = tuple(now - then for now, then in zip(counters(server), before, strict=True))
    steps = [step for one in found for step in one.steps]
    prompts = sum(len(step.prompt_token_ids) for step in steps if step.prompt_token_ids is not None)
    sampled = sum(len(step.completion_token_ids) for step in steps if step.completion_token_ids is not None)
    assert (prompts, sampled) == counted
