"""The reward: whether the tests of the repository pass with the files that the agent left."""

from __future__ import annotations

import difflib
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rollout_trace as rt
import sandbox
from workspace import HERE, Workspace, files

LIMITS = sandbox.Limits(seconds=60.0, cpu_seconds=10)
"""Of all tests of a task together. Code that never ends has used up its CPU long before the time is over."""
LONGEST_PATCH = 20_000
"""Characters of the patch that is kept with the trajectory."""


@dataclass(frozen=True)
class Attempt:
    """What an agent left behind."""

    files: Mapping[str, bytes]
    """All files of its working folder, by their paths."""
    stop_reason: str
    """``max_turns``, or why the model's last answer ended."""


def grade(
    task: Mapping[str, Any], attempt: Attempt, trajectory: rt.Trajectory, limits: sandbox.Limits = LIMITS
) -> dict[str, Any]:
    """1 if every test of the task passes, else 0; the part that passes is a metric.

    The tests run on a fresh copy of the repository with the agent's files, in which its tests are the original ones
    and the hidden ones. Code that ends its process, or uses up its CPU or memory, fails the tests that have not passed.

    Raises:
        TimeoutError: the time was over, and the CPU not used up: the machine was too busy, or the code waits. Which of
            them is not known, so there is no reward.
    """
    trajectory.stop_reason = attempt.stop_reason
    original = files(HERE / "repositories" / task["repo"])
    changed = sorted(name for name in {*original, *attempt.files} if original.get(name) != attempt.files.get(name))
    expected = {"pass_to_pass": task["PASS_TO_PASS"], "fail_to_pass": task["FAIL_TO_PASS"]}
    passed = passing(task["repo"], attempt.files, [name for names in expected.values() for name in names], limits)
    parts = {part: sum(name in passed for name in names) / len(names) for part, names in expected.items() if names}
    count = sum(map(len, expected.values()))
    return {
        "reward": float(len(passed) == count),
        "metrics": {
            "tests_passed": len(passed) / count,
            **parts,
            "edited_tests": float(any(is_test(name) for name in changed)),
        },
        "metadata": {
            "patch": patch(original, attempt.files, changed),
            "failed_tests": [name for names in expected.values() for name in names if name not in passed],
        },
    }


def passing(repo: str, contents: Mapping[str, bytes], names: list[str], limits: sandbox.Limits) -> set[str]:
    """Which of these tests pass with such files.

    Raises:
        TimeoutError: see ``grade``.
    """
    with Workspace(repo) as workspace, tempfile.TemporaryDirectory(prefix="coding-agent-report-") as place:
        shutil.rmtree(workspace.folder)
        for name, content in contents.items():
            if not is_test(name):
                path = workspace.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        shutil.copytree(workspace.repo / "tests", workspace.folder / "tests")
        shutil.copytree(HERE / "hidden_tests" / repo, workspace.folder / "tests", dirs_exist_ok=True)
        report = Path(place, "passed")
        command = [sys.executable, "-I", str(HERE / "report_tests.py"), str(report), *names]
        done = sandbox.run(command, workspace.folder, workspace.home, limits)
        passed = set(report.read_text().split()) & set(names) if report.exists() else set()
    if done.timed_out and len(passed) < len(names):
        raise TimeoutError(f"{len(passed)} of {len(names)} tests had passed after {limits.seconds:g} s")
    return passed


def is_test(name: str) -> bool:
    """Whether it is a file that grading puts back."""
    return name.split("/")[0] == "tests"


def patch(original: Mapping[str, bytes], now: Mapping[str, bytes], changed: list[str]) -> str:
    """The changes as a unified diff; of a long one, its beginning."""
    lines = [line for name in changed for line in _diff(name, original.get(name), now.get(name))]
    text = "\n".join(lines)
    return text if len(text) <= LONGEST_PATCH else f"{text[:LONGEST_PATCH]}\n[cut: {len(text)} characters]"


def _diff(name: str, before: bytes | None, after: bytes | None) -> list[str]:
    old, new = ([] if one is None else one.decode(errors="replace").splitlines() for one in (before, after))
    from_name, to_name = ("/dev/null" if one is None else name for one in (before, after))
    return list(difflib.unified_diff(old, new, from_name, to_name, lineterm=""))
