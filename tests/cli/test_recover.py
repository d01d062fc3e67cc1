"""``rollout-trace recover``: shows what a dead process left, writes it when asked, and escapes what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rollout_trace as rt

from .command import command

pytest.importorskip("rollout_trace.record.recovery")

KILLED = r"""
import os
from pathlib import Path
import rollout_trace as rt
from rollout_trace.record.journal import Journal

trajectory = rt.Trajectory(id="dead\x1b[2J", name="agent\x1b[31m")
journal = Journal(Path("rollouts.jsonl")).trajectory(trajectory)
journal.steps([rt.Step(id="s", call_id="c", completion=rt.Completion(content="4"))])
os._exit(0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a process has ended in the middle of a trajectory."""
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=True)
    return tmp_path


def test_what_is_left_is_shown_and_stays(folder: Path) -> None:
    for _ in range(2):
        done = command(folder, "recover", "rollouts.jsonl")
        assert (done.code, done.err) == (1, "")
        assert done.out.startswith(
            "dead\\x1b[2J  aborted  steps: 1  agent\\x1b[31m\n1 trajectory recovered from 1 journal"
        )
        assert "\x1b" not in done.out
    assert not (folder / "rollouts.jsonl").exists()


def test_it_is_written_once(folder: Path) -> None:
    done = command(folder, "recover", "rollouts.jsonl", "--write", "--json")
    assert done.code == 0
    assert done.json["trajectories"] == [
        {"id": "dead\x1b[2J", "name": "agent\x1b[31m", "status": "aborted", "steps": 1}
    ]
    assert (done.json["is_written"], done.json["problems"]) == (True, [])
    again = command(folder, "recover", "rollouts.jsonl", "--write", "--json")
    assert (again.code, again.json["trajectories"]) == (0, [])
    assert [run.id for run in rt.read(folder / "rollouts.jsonl")] == ["dead\x1b[2J"]


def test_a_folder_of_outputs_is_refused(folder: Path) -> None:
    done = command(folder, "recover", ".")
    assert (done.code, done.out) == (2, "")
    assert "is a folder: give the path of an output in it" in done.err


def test_a_path_that_names_nothing_is_wrong_use(tmp_path: Path) -> None:
    done = command(tmp_path, "recover", "no.jsonl")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("Error: there is no file no.jsonl, and no journal beside it. Check the path.\n")
