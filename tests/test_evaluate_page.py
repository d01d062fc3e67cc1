"""The page docs/evaluate.md: its blocks, in their order, and what it says they print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt

PAGE = (Path(__file__).parents[1] / "docs" / "evaluate.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
OLD = {"a": [0, 0, 0, 0], "b": [0, 1, 0, 0], "c": [1, 0, 0, 0], "d": [0, 1, 1, 0], "e": [1, 1, 1, 1], "f": [1, 1, 0, 1]}
NEW = {"a": [0, 0, 0, 0], "b": [0, 1, 0, 1], "c": [1, 1, 0, 1], "d": [1, 1, 1, 0], "e": [1, 1, 1, 1], "f": [1, 1, 1, 1]}


def write(path: Path, scores: dict[str, list[int]]) -> None:
    with rt.JSONLWriter(path) as writer:
        for task, rewards in scores.items():
            for index, reward in enumerate(rewards):
                run = rt.Trajectory(name="solve", task=rt.Task(id=task), group_id=task, rollout_index=index)
                run.metadata = {"collect": {"run": "r", "attempt": 1}}
                run.reward, run.metrics = float(reward), {"tests_failed": float(1 - reward)}
                writer.write(run)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    write(Path("runs/old.jsonl"), OLD)
    write(Path("runs/new.jsonl"), NEW)
    run = {"kind": "run", "started_at": "2026-11-20", "totals": {"mean_reward": 0.5}, "environment": {}}
    Path("runs/new.history.jsonl").write_text(json.dumps({"kind": "header"}) + "\n" + json.dumps(run) + "\n")
    space: dict[str, Any] = {}
    printed = {}
    for number, (kind, text) in enumerate(BLOCKS):
        if kind == "python":
            exec(compile(text, f"docs/evaluate.md, block {number}", "exec"), space)
            printed[number] = capsys.readouterr().out
        elif text.startswith("reward: "):
            assert printed[number - 1] == text
    assert space["worst"][0] == ("a", 0.0)
    assert len(space["runs"]) == 1
    assert "2026-11-20 0.5 None" in "".join(printed.values())
