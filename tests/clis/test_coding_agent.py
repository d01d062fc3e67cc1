"""``examples/coding_agent`` with Claude Code: recorded, and rewarded by the tests of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer

from . import claude_code
from .installed import CLAUDE_CODE, program

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "coding_agent"


def model(request: Mapping[str, Any]) -> Reply | str:
    """Runs the tests, leaves a file, and is content."""
    if '"tool_result"' in str(request["messages"]).replace("'", '"'):
        return "Repaired."
    command = '{"command": "echo seen > note.txt; python3 -m unittest", "description": "tests"}'
    return Reply(tool_calls=[("Bash", command)])


def test_claude_code_works_on_a_task(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(program(CLAUDE_CODE))
    output = tmp_path / "rollouts.jsonl"
    command = [sys.executable, "-m", "rollout_trace", "collect", "cli_agent.py:claude_code", "--tasks", "tasks.jsonl"]
    command += ["--reward", "grading.py:grade", "--limit", "1", "-o", str(output)]
    with ScriptedServer(model) as server:
        own = {
            **claude_code.VARIABLES,
            "ANTHROPIC_BASE_URL": server.url,
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        }
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(command, cwd=EXAMPLE, env={**environ, **own}, capture_output=True, text=True, timeout=170)
        asked = len([one for one in server.requests if one.method == "POST"])
    assert done.returncode == 0, done.stderr
    (one,) = rt.read(output)
    assert (one.status, one.reward, one.stop_reason) == ("completed", 0.0, "stop")
    assert 0 < (one.metrics or {})["tests_passed"] < 1
    assert "note.txt" in (one.metadata or {})["patch"]
    assert [step.status for step in one.steps] == ["ok"] * asked
    assert [run.name for run in one.tool_runs] == ["Bash"]
