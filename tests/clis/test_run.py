"""Claude Code and Codex through ``rollout-trace run``: what their server was asked is what is recorded, once each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import LoopbackServer, ScriptedServer

from . import claude_code
from .codex import OWN_MODEL, ItemServer, Model
from .installed import CLAUDE_CODE, CODEX, Place, program

Run = Callable[..., CompletedProcess[str]]


@dataclass
class Ran:
    """One run of a program, recorded or not."""

    done: CompletedProcess[str]
    found: list[rt.Trajectory]
    server: LoopbackServer
    files: dict[str, bytes]

    @property
    def asked(self) -> list[tuple[int | None, bool]]:
        """What the server answered to each call: its status, and whether the answer was sent whole."""
        return [(one.status, one.completed) for one in self.server.requests if one.method == "POST"]

    @property
    def attempts(self) -> list[int | None]:
        return [attempt.status for one in self.found for step in one.steps for attempt in step.attempts]


def ran(place: Path, server: LoopbackServer, command: Sequence[str], is_recorded: bool, **variables: str) -> Ran:
    """Runs a program in a folder of its own."""
    own = Place(place)
    (own.home / ".codex").mkdir()
    output = place / "out.jsonl"
    run = [sys.executable, "-m", "rollout_trace", "run", "-q", "-o", str(output), "--"] if is_recorded else []
    done = own.run(*run, *command, **variables)
    files = {path.name: path.read_bytes() for path in own.work.iterdir() if path.is_file()}
    return Ran(done, list(rt.read(output)) if output.exists() else [], server, files)


def claude(place: Path, prompt: str, is_recorded: bool = True) -> Ran:
    with ScriptedServer(claude_code.script) as server:
        command = [str(program(CLAUDE_CODE)), "--dangerously-skip-permissions", "-p", prompt]
        return ran(place, server, command, is_recorded, ANTHROPIC_BASE_URL=server.url, **claude_code.VARIABLES)


def codex(place: Path, prompt: str, model: str = "some-model", is_recorded: bool = True) -> Ran:
    with ItemServer(Model()) as server:
        own = ["-c", f'openai_base_url="{server.base_url}"', "-c", f'model="{model}"', "--skip-git-repo-check"]
        command = [str(program(CODEX)), "exec", "--dangerously-bypass-approvals-and-sandbox", *own, prompt]
        return ran(place, server, command, is_recorded, CODEX_API_KEY="sk-test-0123456789abcdef")


@pytest.mark.parametrize("model", ["claude", "some-model", OWN_MODEL])
def test_a_task_with_tools_and_sub_agents(tmp_path: Path, model: str) -> None:
    def start(name: str, is_recorded: bool) -> Ran:
        place = tmp_path / name
        if model == "claude":
            return claude(place, "list it", is_recorded)
        return codex(place, "list it", model, is_recorded)

    recorded, bare = start("recorded", True), start("bare", False)
    assert recorded.done.returncode == bare.done.returncode == 0, recorded.done.stderr
    assert last_line(recorded) == last_line(bare)
    assert recorded.files == bare.files
    parent, *children = recorded.found
    assert sorted(recorded.attempts, key=str) == sorted((status for status, _ in recorded.asked), key=str)
    by_id = {step.response_id for one in recorded.found for step in one.steps}
    assert len(by_id) == len(recorded.asked)
    assert [len(one.steps) for one in children] == [2, 2]
    (caller,) = {one.parent_step_id for one in children}
    (answer,) = (step.completion for step in parent.steps if step.id == caller)
    assert answer is not None
    assert len(answer.tool_calls) == 2
    assert {one.parent_id for one in children} == {parent.id}
    assert all(step.trainable for one in recorded.found for step in one.steps)
    runs = [run for one in recorded.found for run in one.tool_runs]
    assert len(runs) >= 6
    if model == "claude":
        assert [run.error is not None for run in runs if run.arguments.get("command") == "exit 3"] == [True]
    facts = parent.metadata or {}
    name, version = ("claude-code", CLAUDE_CODE.version) if model == "claude" else ("codex", CODEX.version)
    assert (facts["cli"], facts["cli_version"]) == (name, version)
    assert len(facts["session_id"]) == 36
    assert "sk-test" not in (tmp_path / "recorded" / "out.jsonl").read_text()


def last_line(one: Ran) -> str:
    """What the program answered."""
    return one.done.stdout.strip().splitlines()[-1]


def test_retries_of_claude_code(tmp_path: Path) -> None:
    again = claude(tmp_path / "again", "ASK AGAIN")
    (step,) = again.found[0].steps
    assert [attempt.status for attempt in step.attempts] == [529, 200]
    assert last_line(again) == "after a retry"
    cut = claude(tmp_path / "cut", "CUT IT")
    assert cut.asked == [(200, False), (200, True)]
    assert [step.status for step in cut.found[0].steps] == ["error", "ok"]
    assert last_line(cut) == "whole"
    bad = claude(tmp_path / "bad", "ASK BADLY")
    assert bad.attempts == [status for status, _ in bad.asked] == [400] * len(bad.asked)


def test_retries_of_codex(tmp_path: Path) -> None:
    again = codex(tmp_path / "again", "ASK AGAIN")
    (step,) = again.found[0].steps
    assert [attempt.status for attempt in step.attempts] == [503, 200]
    assert last_line(again) == "after a retry"


def test_rollouts_of_claude_code_do_not_mix(tmp_path: Path) -> None:
    binary = str(program(CLAUDE_CODE))

    async def agent(task: str, rollout: Any) -> str:
        home = Path(rollout.folder, "home")
        home.mkdir()
        own = {"PATH": "/usr/bin:/bin", "HOME": str(home), "ANTHROPIC_BASE_URL": server.url, **claude_code.VARIABLES}
        command = [binary, "--dangerously-skip-permissions", "-p", f"task {task}"]
        return (await rt.run_program(command, cwd=rollout.folder, env=own)).stdout

    def answer(request: Any) -> Any:
        said = str(request["messages"][0]["content"])
        return said[said.index("task ") :][:6]

    with ScriptedServer(answer) as server:
        rt.collect(agent, list("0123"), output=tmp_path / "out.jsonl", concurrency=4, timeout=60, progress=False)
        assert len(server.requests) >= 4
    found = list(rt.read(tmp_path / "out.jsonl"))
    assert [one.status for one in found] == ["completed"] * 4
    said = {
        one.task and one.task.id: [step.completion and step.completion.content for step in one.steps] for one in found
    }
    assert said == {name: [f"task {name}"] for name in "0123"}
    assert len({(one.metadata or {})["session_id"] for one in found}) == 4
