"""README.md and the welcome page: their code records, their links lead somewhere, README fits on a screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from page_programs import ROOT, page_blocks

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

PAGES = ("README.md", "docs/index.md")


def solve(client: Any) -> str:
    answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "How much is 2 + 3?"}])
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_records(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in page_blocks(ROOT / page) if block.kind == "python"]
    with ScriptedServer("It is 5.") as server:
        code = block.text.replace("http://localhost:8000/v1", server.base_url)
        names: dict[str, Any] = {"solve": solve, "grade": lambda answer: "5" in answer}
        exec(compile(code, page, "exec"), names)
        names["client"].close()
    (trajectory,) = rt.read("rollouts.jsonl")
    (row,) = trajectory.sequences()
    assert (trajectory.reward, trajectory.task and trajectory.task.id) == (1.0, "gsm8k/17")
    assert row.loss_mask.sum() == trajectory.n_output_tokens


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    path = ROOT / page
    for name in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / name).exists(), name


def test_readme_names_each_integration() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").lower().replace(" ", "-")
    for folder in (ROOT / "integrations").glob("rollout-trace-*"):
        assert folder.name.removeprefix("rollout-trace-") in text, folder.name
