"""The examples of the page and of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_blocks import run_blocks
from strands import Agent
from strands.multiagent import GraphBuilder

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

from .harness import openai_model

PAGES = ["docs/strands.md", "integrations/rollout-trace-strands/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer("It is 391.") as server:
        builder = GraphBuilder().set_max_node_executions(10)
        builder.add_node(Agent(model=openai_model(server), callback_handler=None), "solver")
        names: dict[str, Any] = {"model": openai_model(server), "tools": [], "builder": builder}
        run_blocks(page, server=server.url, grade=lambda result: float("391" in str(result)), **names)
    (trajectory,) = rt.read("rollouts.jsonl")
    assert (trajectory.reward, len(trajectory.steps)) == (1.0, 1)
    assert trajectory.steps[0].completion_token_ids is not None
