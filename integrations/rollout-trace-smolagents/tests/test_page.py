"""The examples of the page and of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

PAGES = ["docs/smolagents.md", "integrations/rollout-trace-smolagents/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer("<code>\nfinal_answer('391')\n</code>") as server:
        names: dict[str, Any] = {"tools": [], "question": "What is 17 * 23?", "tokenizer": server.tokenizer}
        run_blocks(page, server=server.url, grade=lambda answer: float(answer == "391"), **names)
    (trajectory,) = rt.read("rollouts.jsonl")
    assert (trajectory.reward, len(trajectory.steps)) == (1.0, 1)
    assert trajectory.steps[0].completion_token_ids is not None
