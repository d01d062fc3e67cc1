"""The examples of the page and of the README."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from oracle import assert_served
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

PAGES = ["docs/openai-agents.md", "integrations/rollout-trace-openai-agents/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_example_of(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the one that `run_sync` uses
    with ScriptedServer("It is 391.") as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="none")
        found = run_blocks(
            page,
            server=server.url,
            client=client,
            grade=lambda answer: float("391" in answer),
            tools=[],
            handoffs=[],
        )
        for one in {client, found["client"]}:
            loop.run_until_complete(one.close())
    asyncio.set_event_loop(None)
    loop.close()
    (trajectory,) = rt.read("rollouts.jsonl")
    assert (trajectory.reward, trajectory.task and trajectory.task.id) == (1.0, "gsm8k/17")
    assert_served(server, trajectory.steps)
