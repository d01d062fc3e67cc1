"""The coding agent's folder, and its program run as users run it: as a process, somewhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import rollout_trace as rt

EXAMPLE = Path(__file__).parents[3] / "examples" / "coding_agent"
REWARDS = {
    "cache/1": [0.0, 1.0, 0.0, 1.0],
    "intervals/1": [1.0, 1.0, 0.0, 0.0],
    "invoice/1": [0.0, 0.0, 0.0, 0.0],
    "slugs/1": [1.0, 0.0, 0.0, 0.0],
}
"""By task and sample: of the attempts that the scripted model makes, only those that repair everything."""


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Variables for a process whose temporary folders are in this one, and that finds no server or model in them."""
    folder.mkdir(exist_ok=True)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_", "CODING_"))
    }
    return {**kept, "TMPDIR": str(folder), **variables}


def run(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program in this folder, its temporary folders in ``temporary`` there."""
    command = [sys.executable, str(EXAMPLE / "collect_rollouts.py"), *options]
    variables = environment(folder / "temporary", **variables)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)


def recorded(path: Path) -> list[rt.Trajectory]:
    """The rollouts of a file by task and sample, as the data sets have them."""
    return sorted(rt.read(path), key=lambda one: (str(one.group_id), one.rollout_index or 0))
