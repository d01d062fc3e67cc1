"""The rewards of the coding agent: what each kind of attempt earns, and what no attempt can do to its grading."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from grading import Attempt, grade
from sandbox import Limits
from scripted_model import PLANS, SAMPLES, TASKS, Edit
from tests.examples.coding_agent.example import EXAMPLE
from workspace import Workspace, files

pytestmark = pytest.mark.processes

BY_REPO = {task["repo"]: task for task in TASKS}
QUICK = Limits(seconds=60.0, cpu_seconds=1)


def graded(repo: str, *edits: Edit, program: str = "", limits: Limits = QUICK) -> dict[str, Any]:
    """What the reward function gives for these edits, and this program run in the working folder."""
    with Workspace(repo) as workspace:
        for edit in edits:
            workspace.edit_file(*edit)
        if program:
            exec(compile(program, "program", "exec"), {"folder": workspace.folder})
        attempt = Attempt(files(workspace.folder), "stop")
    return grade(BY_REPO[repo], attempt, rt.Trajectory(), limits)


@pytest.mark.parametrize("repo", list(SAMPLES))
def test_the_repositories_need_the_repair_that_they_are_given(repo: str) -> None:
    task = BY_REPO[repo]
    untouched, part, whole = (graded(repo, *PLANS[repo].edits[:count]) for count in (0, 1, 2))

    assert [one["reward"] for one in (untouched, part, whole)] == [0.0, 0.0, 1.0]
    assert untouched["metadata"] == {"patch": "", "failed_tests": task["FAIL_TO_PASS"]}
    assert (untouched["metrics"]["fail_to_pass"], untouched["metrics"]["pass_to_pass"]) == (0.0, 1.0)
    assert 0.0 < part["metrics"]["fail_to_pass"] < 1.0
    assert all(name.startswith("tests.test_hidden.") for name in part["metadata"]["failed_tests"])
    assert whole["metrics"] == {"tests_passed": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0, "edited_tests": 0.0}
    assert {edit.path for edit in PLANS[repo].edits} == {
        line[4:] for line in whole["metadata"]["patch"].splitlines() if line.startswith("+++ ")
    }


CHEATS = {
    "the tests are edited": "(folder / 'tests' / 'test_slugs.py').write_text('')",
    "the tests are deleted": "import shutil; shutil.rmtree(folder / 'tests')",
    "the tests are a file": "import shutil; shutil.rmtree(folder / 'tests'); (folder / 'tests').write_text('')",
    "everything is deleted": "import shutil; shutil.rmtree(folder)",
    "the process ends itself": "(folder / 'slugs.py').write_text('import os; os._exit(0)')",
    "the program exits": "(folder / 'slugs.py').write_text('raise SystemExit(0)')",
    "unittest is another": "(folder / 'unittest.py').write_text('class TestCase: pass')",
    "os is another": "(folder / 'os.py').write_text('raise ImportError')",
}


@pytest.mark.parametrize("program", list(CHEATS.values()), ids=list(CHEATS))
def test_a_cheat_earns_nothing(program: str) -> None:
    assert graded("slugs", program=program)["reward"] == 0.0


def test_a_repair_counts_whatever_was_done_to_the_tests() -> None:
    found = graded("slugs", *PLANS["slugs"].edits, program=CHEATS["the tests are deleted"])
    assert found["reward"] == 1.0
    assert found["metrics"]["edited_tests"] == 1.0


@pytest.mark.more
def test_code_that_computes_for_ever_earns_nothing() -> None:
    """Its own CPU was used up, so it is the code's fault, and a trainer learns from it. What had passed counts."""
    edit = Edit("cache.py", "self._entries[key] = value", "self._entries[key] = value\n        while key == 'c': pass")
    found = graded("cache", edit)
    assert found["reward"] == 0.0
    assert 0.0 < found["metrics"]["tests_passed"] < 1.0


def test_time_that_is_over_is_no_reward(tmp_path: Path) -> None:
    """A wait, or a machine that is too busy: which of them is not known, so the reward is missing, not zero."""

    def waits(task: dict[str, Any]) -> Attempt:
        with Workspace(task["repo"]) as workspace:
            workspace.edit_file("slugs.py", "import re", "import re, time\ntime.sleep(1000)")
            return Attempt(files(workspace.folder), "stop")

    path = tmp_path / "rollouts.jsonl"
    rt.collect(
        waits, [BY_REPO["slugs"]], output=path, reward=partial(grade, limits=Limits(seconds=1.0)), progress=False
    )

    (found,) = rt.read(path)
    assert (found.status, found.reward, found.stop_reason) == ("completed", None, "stop")
    (error,) = (found.metadata or {})["reward_errors"].values()
    assert error == "TimeoutError: 0 of 6 tests had passed after 1 s"


def test_no_repository_shows_its_hidden_tests() -> None:
    assert {path.name for path in (EXAMPLE / "repositories").iterdir()} == set(BY_REPO) == set(SAMPLES)
    for repo in BY_REPO:
        hidden = {path.name for path in (EXAMPLE / "hidden_tests" / repo).glob("*.py")}
        assert hidden
        assert not hidden & {path.name for path in (EXAMPLE / "repositories" / repo / "tests").glob("*.py")}
