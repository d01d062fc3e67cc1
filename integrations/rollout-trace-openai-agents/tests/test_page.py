"""The examples of the page and of the README."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from oracle import assert_served

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

ROOT = Path(__file__).parents[3]
PAGES = ["docs/openai-agents.md", "integrations/rollout-trace-openai-agents/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_example_of(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    code = code.replace("=[...]", "=[]")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the one that `run_sync` uses
    with ScriptedServer("It is 391.") as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="none")
        names = {"client": client, "grade": lambda answer: float("391" in answer)}
        exec(code.replace("http://localhost:8000/v1", server.base_url), names)
        for one in {client, names["client"]}:
            loop.run_until_complete(one.close())  # type: ignore[attr-defined]
    asyncio.set_event_loop(None)
    loop.close()
    (trajectory,) = rt.read("rollouts.jsonl")
    assert (trajectory.reward, trajectory.task and trajectory.task.id) == (1.0, "gsm8k/17")
    assert_served(server, trajectory.steps)
