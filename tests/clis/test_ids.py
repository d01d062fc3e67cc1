"""Claude Code and Codex on an engine that gives token ids on chat alone: every sampled token has its id."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer

from . import claude_code
from .installed import CLAUDE_CODE, CODEX, Place, program

# Not imported here: without a network that takes ten seconds.
pytestmark = pytest.mark.skipif(find_spec("litellm") is None, reason="litellm is not installed")
SHELL = {"Bash": "command", "exec_command": "cmd"}
"""The tools of the programs that run a command, and the argument with it."""


def model(request: Mapping[str, Any]) -> Reply | str:
    """Two tools of which one fails, then one sub-agent, which looks at a file, then an answer."""
    names = [tool["function"]["name"] for tool in request["tools"]]
    shell = next(name for name in names if name in SHELL)
    asked = json.dumps([one for one in request["messages"] if one["role"] == "user"])
    results = [one for one in request["messages"] if one["role"] == "tool"]
    if "SUBTASK" in asked and "list it" not in asked:
        return "seen" if results else Reply("looking", tool_calls=[_shell(shell, "cat a.txt")])
    if not results:
        return Reply("listing", reasoning="both", tool_calls=[_shell(shell, "ls"), _shell(shell, "exit 3")])
    if len(results) == 2:
        return Reply(tool_calls=[_spawned(names)])
    waits = next((name for name in names if name.endswith("wait_agent")), None)
    if waits is not None and len(results) == 3:
        agent = json.loads(results[-1]["content"])["agent_id"]
        return Reply(tool_calls=[_call(waits, targets=[agent], timeout_ms=30_000)])
    return "all done"


def _call(name: str, **arguments: Any) -> tuple[str, str]:
    return name, json.dumps(arguments)


def _shell(name: str, command: str) -> tuple[str, str]:
    more = {"description": "x"} if name == "Bash" else {}
    return _call(name, **{SHELL[name]: command}, **more)


def _spawned(names: Sequence[str]) -> tuple[str, str]:
    if "Agent" in names:
        return _call("Agent", description="one", prompt="SUBTASK one", subagent_type="general-purpose")
    return _call(next(name for name in names if name.endswith("spawn_agent")), message="SUBTASK one")


def ran(folder: Path, server: ScriptedServer, command: Sequence[str], **variables: str) -> list[rt.Trajectory]:
    """The trajectories of a program that ran with ``--engine vllm``."""
    place, output = Place(folder / "place"), folder / "out.jsonl"
    (place.home / ".codex").mkdir()
    run = [sys.executable, "-m", "rollout_trace", "run", "-o", str(output), "--engine", "vllm", "--"]
    done = place.run(*run, *command, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "all done"
    assert done.stderr.count("are translated to chat") == 1
    return list(rt.read(output))


@pytest.mark.parametrize("cli", ["claude", "codex"])
def test_every_sampled_token_has_its_id_and_logprob(tmp_path: Path, cli: str) -> None:
    with ScriptedServer(model) as server:
        if cli == "claude":
            command = [str(program(CLAUDE_CODE)), "--dangerously-skip-permissions", "-p", "list it"]
            found = ran(tmp_path, server, command, ANTHROPIC_BASE_URL=server.url, **claude_code.VARIABLES)
        else:
            own = ["-c", f'openai_base_url="{server.base_url}"', "-c", 'model="m"', "--skip-git-repo-check"]
            command = [str(program(CODEX)), "exec", "--dangerously-bypass-approvals-and-sandbox", *own, "list it"]
            found = ran(tmp_path, server, command, CODEX_API_KEY="none")
        asked = [record for record in server.requests if record.method == "POST"]
    assert {record.path for record in asked} == {"/v1/chat/completions"}
    parent, child = found
    assert child.parent_id == parent.id
    steps = [step for one in found for step in one.steps]
    assert len(steps) == len(asked)
    sampled = 0
    for step in steps:
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert len(step.logprobs) == len(step.completion_token_ids)
        sampled += len(step.completion_token_ids)
    rows = [one.sequences() for one in found]
    assert all(1 <= len(one) <= 2 for one in rows)
    assert sum(int(row.loss_mask.sum()) for one in rows for row in one) == sampled
    # The tools were run with the arguments that the model gave, and their results are the tools' own.
    runs = {str(run.arguments.get(SHELL.get(run.name or "", ""))): run for one in found for run in one.tool_runs}
    assert "a.txt" in str(runs["ls"].result)
    assert "hello" in str(runs["cat a.txt"].result)
    assert "3" in str(runs["exit 3"].result)
