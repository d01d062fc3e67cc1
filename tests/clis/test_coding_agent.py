"""``examples/coding_agent`` with Claude Code and Codex: recorded, and rewarded by the tests of the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, RequestRecord, ScriptedServer

from . import claude_code
from .codex import Item, ItemServer, said
from .installed import CLAUDE_CODE, CODEX, program

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "coding_agent"


def model(request: Mapping[str, Any]) -> Reply | str:
    """Runs the tests, leaves a file, and is content."""
    if '"tool_result"' in str(request["messages"]).replace("'", '"'):
        return "Repaired."
    command = '{"command": "echo seen > note.txt; python3 -m unittest", "description": "tests"}'
    return Reply(tool_calls=[("Bash", command)])


def items(request: Any, record: RequestRecord) -> list[Item]:
    """The same for Codex."""
    if '"function_call_output"' in json.dumps(request["input"]):
        return [said("Repaired.")]
    arguments = json.dumps({"cmd": "echo seen > note.txt; python3 -m unittest"})
    return [{"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": arguments}]


@pytest.mark.parametrize("agent", ["claude_code", "codex"])
def test_a_program_works_on_a_task(tmp_path: Path, agent: str) -> None:
    is_codex = agent == "codex"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / ("codex" if is_codex else "claude")).symlink_to(program(CODEX if is_codex else CLAUDE_CODE))
    output = tmp_path / "rollouts.jsonl"
    command = [sys.executable, "-m", "rollout_trace", "collect", f"cli_agent.py:{agent}", "--tasks", "tasks.jsonl"]
    command += ["--reward", "grading.py:grade", "--limit", "1", "-o", str(output)]
    with ItemServer(items) if is_codex else ScriptedServer(model) as server:
        provider = f'[model_providers.x]\nname = "x"\nbase_url = "{server.base_url}"\nwire_api = "responses"\n'
        (tmp_path / "config.toml").write_text(f'model = "m"\nmodel_provider = "x"\n{provider}')
        own = {
            **claude_code.VARIABLES,
            "ANTHROPIC_BASE_URL": server.url,
            "CODEX_HOME": str(tmp_path),
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        }
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(command, cwd=EXAMPLE, env={**environ, **own}, capture_output=True, text=True, timeout=290)
        asked = len([one for one in server.requests if one.method == "POST"])
    assert done.returncode == 0, done.stderr
    (one,) = rt.read(output)
    assert (one.status, one.reward, one.stop_reason) == ("completed", 0.0, "stop")
    assert 0 < (one.metrics or {})["tests_passed"] < 1
    assert "note.txt" in (one.metadata or {})["patch"]
    assert [step.status for step in one.steps] == ["ok"] * asked
    assert [run.name for run in one.tool_runs] == ["exec_command" if is_codex else "Bash"]
