"""The examples of the page and of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

from .agents import add, chat

PAGES = ["docs/langchain.md", "integrations/rollout-trace-langchain/README.md"]


# langgraph-supervisor builds on what langgraph has renamed.
@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's team, too: its supervisor answers without asking one of its agents."""
    pytest.importorskip("langgraph_supervisor")
    monkeypatch.chdir(tmp_path)
    with ScriptedServer("It is 391.") as server:
        researcher, writer = (create_agent(chat(server), name=name) for name in ("researcher", "writer"))
        names: dict[str, Any] = {
            "tools": [add],
            "question": "What is 17 * 23?",
            "grade": lambda state: float("391" in state["messages"][-1].content),
            "researcher": researcher,
            "writer": writer,
        }
        run_blocks(page, server=server.url, **names)
    (trajectory,) = rt.read("rollouts.jsonl")
    assert (trajectory.reward, len(trajectory.steps)) == (1.0, 1)
    assert trajectory.steps[0].completion_token_ids is not None
