"""Claude Code and Codex through ``rollout-trace run``: what their server was asked is what is recorded, once each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.testing import LoopbackServer, RequestRecord, ScriptedServer

from . import claude_code
from .codex import OWN_MODEL, Item, ItemServer, Model, said
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


def ran(
    place: Path,
    server: LoopbackServer,
    command: Sequence[str],
    is_recorded: bool,
    given: Mapping[str, str] | None = None,
    **variables: str,
) -> Ran:
    """Runs a program in a folder of its own, with the files that are given in its home."""
    own = Place(place)
    for name, text in {".codex/config.toml": "", **(given or {})}.items():
        (own.home / name).parent.mkdir(parents=True, exist_ok=True)
        (own.home / name).write_text(text)
    output = place / "out.jsonl"
    run = [sys.executable, "-m", "rollout_trace", "run", "-q", "-o", str(output), "--"] if is_recorded else []
    done = own.run(*run, *command, **variables)
    files = {path.name: path.read_bytes() for path in own.work.iterdir() if path.is_file()}
    return Ran(done, list(rt.read(output)) if output.exists() else [], server, files)


def claude(place: Path, prompt: str, is_recorded: bool = True) -> Ran:
    with ScriptedServer(claude_code.script) as server:
        command = [str(program(CLAUDE_CODE)), "--dangerously-skip-permissions", "-p", prompt]
        return ran(place, server, command, is_recorded, None, ANTHROPIC_BASE_URL=server.url, **claude_code.VARIABLES)


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


def test_a_compaction_of_claude_code_is_named_and_its_transcript_found(tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    recorded = [sys.executable, "-m", "rollout_trace", "run", "-q", "-o", str(tmp_path / "out.jsonl"), "--"]
    command = [*recorded, str(program(CLAUDE_CODE)), "--dangerously-skip-permissions", "-p"]
    with ScriptedServer(claude_code.script) as server:
        for words in (["list it"], ["/compact", "--continue"], ["COMPACTED", "--continue"]):
            done = place.run(*command, *words, ANTHROPIC_BASE_URL=server.url, **claude_code.VARIABLES)
            assert done.returncode == 0, done.stderr
    found = [one for one in rt.read(tmp_path / "out.jsonl") if one.parent_id is None]
    named = [[step.metadata == {"compaction": True} for step in one.steps] for one in found]
    assert [sum(one) for one in named] == [0, 1, 0]
    assert named[1] == [True]
    assert found[1].steps[0].trainable
    (path,) = {(one.metadata or {})["transcript"] for one in found}
    session = next(one for one in importing.claude_code(path) if one.parent_id is None)
    # What the session says of a tool is joined by the id of its call.
    ours = {run.tool_call_id: run for run in found[0].tool_runs}
    theirs = {run.tool_call_id: run for run in session.tool_runs}
    assert ours.keys() == theirs.keys()


def test_a_compaction_of_codex_is_named(tmp_path: Path) -> None:
    def script(request: Any, record: RequestRecord) -> list[Item] | int:
        if '"request_kind":"compaction"' in record.headers["x-codex-turn-metadata"]:
            return [said("It was listed, all of it.")]
        if "It was listed" in json.dumps(request["input"]):
            return [said("all done")]
        return [{"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": '{"cmd": "ls"}'}]

    with ItemServer(script) as server:
        own = (
            'model = "m"\nmodel_provider = "x"\nmodel_auto_compact_token_limit = 50\n[model_providers.x]\nname = "x"\n'
        )
        config = f'{own}base_url = "{server.base_url}"\nwire_api = "responses"\n'
        command = [str(program(CODEX)), "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
        one = ran(tmp_path / "place", server, [*command, "list it"], True, {".codex/config.toml": config})
    assert last_line(one) == "all done", one.done.stderr
    (found,) = one.found
    named = [
        step.completion and step.completion.content for step in found.steps if step.metadata == {"compaction": True}
    ]
    assert named == ["It was listed, all of it."]
    (session,) = importing.codex((found.metadata or {})["transcript"])
    assert [run.tool_call_id for run in session.tool_runs] == [run.tool_call_id for run in found.tool_runs] == ["c"]


def test_codex_goes_by_its_profile(tmp_path: Path) -> None:
    with ItemServer(lambda request, record: [said("hello")]) as server:
        provider = f'[model_providers.x]\nname = "x"\nbase_url = "{server.base_url}"\nwire_api = "responses"\n'
        files = {".codex/config.toml": f'model = "m"\n{provider}', ".codex/other.config.toml": 'model_provider = "x"'}
        command = [str(program(CODEX)), "exec", "--skip-git-repo-check", "-p", "other", "hi"]
        one = ran(tmp_path / "place", server, command, True, files)
    assert last_line(one) == "hello", one.done.stderr
    assert one.attempts == [status for status, _ in one.asked] == [200]


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
