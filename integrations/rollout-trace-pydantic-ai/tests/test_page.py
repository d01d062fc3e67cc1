"""The examples of the page and of the README."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from oracle import assert_all_served
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the one that `run_sync` uses
    with ScriptedServer("It is 391.") as server:
        space = run_blocks("docs/pydantic-ai.md", server=server.url)
        with rt.recording("rollouts.jsonl"), rt.trajectory(task="gsm8k/18"):
            space["agent"].run_sync("And again?")
        readme = "integrations/rollout-trace-pydantic-ai/README.md"
        run_blocks(readme, model=space["model"], tools=[], grade=lambda answer: float("391" in answer))
        loop.run_until_complete(space["model"].client.close())
    asyncio.set_event_loop(None)
    loop.close()
    found = list(rt.read("rollouts.jsonl"))
    assert [(one.reward, one.task and one.task.id) for one in found] == [
        (1.0, "gsm8k/17"),
        (None, "gsm8k/18"),
        (1.0, "gsm8k/17"),
    ]
    evaluated = list(rt.read("evaluated.jsonl"))
    assert [(one.reward, one.task and one.task.id) for one in evaluated] == [(1.0, "sum")] * 4
    assert_all_served(server, [*found, *evaluated])
