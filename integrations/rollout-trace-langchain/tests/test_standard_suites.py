"""langchain-tests' suites for chat models have the same outcome with the handler attached as without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import rollout_trace as rt

SUITES = Path(__file__).with_name("standard_suites.py")


def run_suites(folder: Path, **environment: str) -> tuple[dict[str, str], int]:
    """The outcome of every test, and the number of requests that were made."""
    report = folder / f"report-{len(environment)}.xml"
    options = [
        "-c",
        os.devnull,
        f"--benchmark-storage=file://{folder}",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-q",
        "-s",
    ]
    settings = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *settings, str(SUITES)]
    known = {**os.environ, "LANGSMITH_TRACING": "false", **environment}
    done = subprocess.run(command, capture_output=True, text=True, cwd=SUITES.parent, env=known)
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = min(kinds, default="passed")
    found = re.search(r"^requests: (\d+)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout + done.stderr
    return outcomes, int(found.group(1))


def test_the_outcome_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    without, asked = run_suites(tmp_path)
    with_handler, asked_with_handler = run_suites(tmp_path, ROLLOUTS=str(path))
    assert with_handler == without
    passed = [name for name, outcome in without.items() if outcome == "passed"]
    assert len(passed) >= 35
    assert asked_with_handler == asked
    steps = [step for own in rt.read(path) for step in own.steps]
    # One of the suite's tests makes a model of its own, which is not recorded and has no handler.
    assert len({step.call_id for step in steps}) == asked - 1
    assert all(step.completion_token_ids is not None for step in steps if step.status == "ok")
