"""64 agents at the same time on a live engine: the account of `collect` equals the engine's own counters."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
import pytest

import rollout_trace as rt
from tests.live_engines.servers import MODEL, Server

AGENTS = 64
CALLS = 3


def counters(server: Server) -> tuple[int, int]:
    """Tokens of prompts and sampled tokens since the engine was started."""
    with urlopen(f"{server.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    prompt, sampled = (
        sum(
            float(value)
            for value in re.findall(rf"^vllm:{name}_tokens_total(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        )
        for name in ("prompt", "generation")
    )
    return int(prompt), int(sampled)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_totals_are_the_engines(server: Server, kind: str, tmp_path: Path) -> None:
    if server.engine != "vllm":
        pytest.skip("llama-server counts only where it was started with --metrics")
    before = counters(server)
    usual: dict[str, Any] = {"output": tmp_path / "rollouts.jsonl", "concurrency": AGENTS, "samples": 4, "seed": 5}
    summary = asyncio.run(_async(server, usual)) if kind == "async" else _sync(server, usual)
    counted = tuple(now - then for now, then in zip(counters(server), before, strict=True))
    trajectories = list(rt.read(tmp_path / "rollouts.jsonl"))
    steps = [step for one in trajectories for step in one.steps]
    assert len(trajectories) == AGENTS
    assert len(steps) == AGENTS * CALLS
    assert {step.status for step in steps} == {"ok"}
    assert {step.token_issue for step in steps} == {None}
    prompts = sum(len(step.prompt_token_ids) for step in steps if step.prompt_token_ids is not None)
    sampled = sum(len(step.completion_token_ids) for step in steps if step.completion_token_ids is not None)
    assert (prompts, sampled) == counted
    assert (summary.usage.input_tokens, summary.usage.output_tokens) == counted
    assert all(one.sequences() for one in trajectories)


def _tasks() -> list[dict[str, Any]]:
    return [
        {"id": f"t{number}", "question": f"Say something about {number} naïve cafés."} for number in range(AGENTS // 4)
    ]


def _asked(messages: list[Any]) -> dict[str, Any]:
    # Without a seed: several requests with one, at the same time, end vLLM 0.32 on a CPU.
    return {"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 1.0}


async def _async(server: Server, usual: dict[str, Any]) -> rt.CollectSummary:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=300) as client:

        async def agent(task: dict[str, Any]) -> None:
            messages: list[Any] = []
            for turn in range(CALLS):
                messages.append({"role": "user", "content": f"{task['question']} Turn {turn}."})
                text = ""
                if turn % 2:
                    async for chunk in await client.chat.completions.create(**_asked(messages), stream=True):
                        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                else:
                    answer = await client.chat.completions.create(**_asked(messages))
                    text = answer.choices[0].message.content
                messages.append({"role": "assistant", "content": text})

        return await rt.acollect(agent, _tasks(), engine="vllm", progress=False, **usual)


def _sync(server: Server, usual: dict[str, Any]) -> rt.CollectSummary:
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=300) as client:

        def agent(task: dict[str, Any]) -> None:
            messages: list[Any] = []
            for turn in range(CALLS):
                messages.append({"role": "user", "content": f"{task['question']} Turn {turn}."})
                answer = client.chat.completions.create(**_asked(messages))
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})

        return rt.collect(agent, _tasks(), engine="vllm", progress=False, **usual)
