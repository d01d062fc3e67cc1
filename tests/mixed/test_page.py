"""The framework's block of docs/which-way.md."""

from __future__ import annotations

from pathlib import Path

from page_programs import ROOT, run_page

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer


def test_the_block_records_the_agent(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    with ScriptedServer("It is 5.") as server:
        variables = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
        run_page(ROOT / "docs" / "which-way.md", folder, variables, only=("A framework",))
    (trajectory,) = rt.read(folder / "framework.jsonl")
    (step,) = trajectory.steps
    assert (step.agent, step.token_source, trajectory.reward) == ("solver", "engine", 1.0)
