"""Claude Code and Codex in a test of their user's: recorded once, then replayed, with what is known of each program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import rollout_trace as rt
from rollout_trace.testing import Reply, RequestRecord, ScriptedServer
from rollout_trace.testing.script import Answer

from . import claude_code
from .codex import Item, ItemServer, Model, said
from .installed import CLAUDE_CODE, CODEX, program

TEST = """
import asyncio
import os
import pytest
import rollout_trace as rt

COMMAND = {command!r}

@pytest.mark.replay("agent.jsonl", cli={cli!r})
def test_agent(rollout):
    (rollout.folder / "a.txt").write_text("hello\\n")
    (rollout.folder.parent / "home" / ".codex").mkdir()
    command = [one.replace("BASE_URL", rollout.base_url) for one in COMMAND]
    done = asyncio.run(rt.run_program(command, cli={cli!r}, cwd=rollout.folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert any("a.txt" in str(run.result) for run in rollout.tool_runs)
    rollout.assert_steps({steps})
"""


def script(request: Mapping[str, Any]) -> Answer:
    """The model of ``claude_code``, which begins one sub-agent: two at once end in an order that is the machine's."""
    answer = claude_code.script(request)
    agents = isinstance(answer, Reply) and [one for one in answer.tool_calls if "SUBTASK" in str(one)]
    return Reply(tool_calls=agents[:1]) if agents else answer


class NoAgent(Model):
    """The same of Codex, without: its requests depend on when an agent ends."""

    def __call__(self, request: Any, record: RequestRecord) -> list[Item] | int:
        """The items of an answer."""
        made = super().__call__(request, record)
        calls = made if isinstance(made, list) else []
        return [said("all done")] if any(one.get("name") == "spawn_agent" for one in calls) else made


def pytest_in(folder: Path, *options: str, **variables: str) -> CompletedProcess[str]:
    """Runs pytest in a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ROLLOUT_TRACE"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    return subprocess.run(command, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=170)


def test_a_session_of_claude_code_is_replayed(tmp_path: Path) -> None:
    command = [str(program(CLAUDE_CODE)), "--dangerously-skip-permissions", "-p", "list it"]
    (tmp_path / "test_agent.py").write_text(TEST.format(command=command, cli="claude-code", steps="at_least=6"))
    with ScriptedServer(script) as server:
        recorded = pytest_in(tmp_path, "--replay=record", ANTHROPIC_BASE_URL=server.url, **claude_code.VARIABLES)
        assert recorded.returncode == 0, recorded.stdout
        asked = len([one for one in server.requests if one.method == "POST"])
    assert sum(len(one.exchanges or ()) for one in rt.read(tmp_path / "agent.jsonl")) >= asked
    # Another day for whoever reads the clock of the place: what Claude Code says of it does not count.
    replayed = pytest_in(tmp_path, **claude_code.VARIABLES, TZ="Etc/GMT-14")
    assert replayed.returncode == 0, replayed.stdout


def test_a_session_of_codex_is_replayed(tmp_path: Path) -> None:
    own = ["-c", 'openai_base_url="BASE_URL"', "-c", 'model="some-model"', "--skip-git-repo-check"]
    command = [str(program(CODEX)), "exec", "--dangerously-bypass-approvals-and-sandbox", *own, "list it"]
    (tmp_path / "test_agent.py").write_text(TEST.format(command=command, cli="codex", steps="2"))
    with ItemServer(NoAgent()) as server:
        variables = {"OPENAI_BASE_URL": server.base_url, "CODEX_API_KEY": "none"}
        recorded = pytest_in(tmp_path, "--replay=record", **variables)
        assert recorded.returncode == 0, recorded.stdout
    replayed = pytest_in(tmp_path, CODEX_API_KEY="none")
    assert replayed.returncode == 0, replayed.stdout
