"""The example runs without a model, and prints what it recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rollout_trace as rt

EXAMPLE = Path(__file__).parents[1] / "example.py"


def test_the_example_prints_what_was_recorded(tmp_path: Path) -> None:
    """Of its own run alone, though the file holds others."""
    path = tmp_path / "rollouts.jsonl"
    for run in (1, 2):
        command = [sys.executable, str(EXAMPLE), "--out", str(path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        recorded = list(rt.read(path))
        assert len(recorded) == 2 * run
        mine = recorded[-2:]
        heads = [line for line in said.splitlines() if line and not line.startswith(" ")]
        assert heads == [
            "answer: 2.62 million",
            *(f"{one.name}: completed, reward {one.reward}, parent {one.parent_id}" for one in mine),
            f"written to {path}",
        ]
        steps = [step for one in mine for step in one.steps]
        ids = [0 if step.completion_token_ids is None else len(step.completion_token_ids) for step in steps]
        printed = [line.rsplit(", ", 1)[1] for line in said.splitlines() if line.startswith("  step ")]
        assert printed == [f"{count} sampled ids" for count in ids]
        rows = sum(len(one.sequences()) for one in mine)
        assert sum(line.startswith("  training row: ") for line in said.splitlines()) == rows
