"""The framework's block of docs/which-way.md."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer


def test_the_block_records_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer("It is 5.") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the client of the agent is not closed
            run_blocks("docs/which-way.md", "A framework")
            gc.collect()
    (trajectory,) = rt.read("framework.jsonl")
    (step,) = trajectory.steps
    assert (step.agent, step.token_source, trajectory.reward) == ("solver", "engine", 1.0)
