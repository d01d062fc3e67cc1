"""The page docs/pydantic-ai.md: its blocks, in their order."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from oracle import assert_served

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

PAGE = (Path(__file__).parents[3] / "docs" / "pydantic-ai.md").read_text(encoding="utf-8")


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the one that `run_sync` uses
    space: dict[str, object] = {}
    with ScriptedServer("It is 391.") as server:
        assert "http://localhost:8000/v1" in first
        exec(first.replace("http://localhost:8000/v1", server.base_url), space)
        exec(second, space)
        with rt.recording("rollouts.jsonl"), rt.trajectory(task="gsm8k/18"):
            space["agent"].run_sync("And again?")  # type: ignore[attr-defined]
        loop.run_until_complete(space["model"].client.close())  # type: ignore[attr-defined]
    asyncio.set_event_loop(None)
    loop.close()
    found = list(rt.read("rollouts.jsonl"))
    assert [(one.reward, one.task and one.task.id) for one in found] == [(1.0, "gsm8k/17"), (None, "gsm8k/18")]
    assert_served(server, [step for one in found for step in one.steps])
