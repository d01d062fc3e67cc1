"""The example of rollouts in sandboxes, run as its user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rollout_trace as rt
from examples import collect_subprocess

SCRIPT = Path(collect_subprocess.__file__)


@pytest.mark.more
@pytest.mark.parametrize("output", ["x.jsonl", "runs/"])
def test_programs_are_recorded_inside_the_rollouts(output: str, tmp_path: Path) -> None:
    """Each rollout has one trajectory inside, with the calls of its program and the ids of the engine."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", output],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if "sampled tokens" in line]
    assert len(shown) == 6
    found = list(rt.read(tmp_path / output))
    rollouts = {one.id: one for one in found if one.parent_id is None}
    inside = [one for one in found if one.parent_id is not None]
    assert sorted((one.group_id, one.rollout_index, one.reward) for one in rollouts.values()) == [
        (f"sum/{n}", index, float(n != 3)) for n in (1, 2, 3) for index in (0, 1)
    ]
    assert sorted(one.parent_id for one in inside if one.parent_id) == sorted(rollouts)
    assert [len(one.steps) for one in inside] == [2] * 6
    assert {step.token_source for one in inside for step in one.steps} == {"engine"}
