"""Coding agents beside Claude Code and Codex through ``rollout-trace run``: make test-clis-more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rollout_trace.testing import ScriptedServer
from rollout_trace.testing.script import Answer

from .installed import program
from .others import AGENTS, CLIS, SUBTASK, Model, delegating, tools_in
from .test_run import Ran, last_line, ran

pytestmark = pytest.mark.by_hand


def ran_by(name: str, model: Callable[[Mapping[str, Any]], Answer], place: Path, is_recorded: bool) -> Ran:
    """Runs a program on a task."""
    cli = CLIS[name]
    with ScriptedServer(model) as server:
        command = [str(program(cli.package)), *cli.words, "list it"]
        return ran(place, server, command, is_recorded, cli.files(server), **cli.own(server))


@pytest.mark.parametrize("name", CLIS)
def test_each_exchange_is_one_attempt_of_one_step(tmp_path: Path, name: str) -> None:
    # Calls fail, and are cut, on their way.
    recorded, bare = (ran_by(name, Model(), tmp_path / one, one == "recorded") for one in ("recorded", "bare"))
    assert recorded.done.returncode == bare.done.returncode, recorded.done.stderr
    # Tools that run at the same time are told of in any order.
    assert sorted(recorded.done.stdout.splitlines()) == sorted(bare.done.stdout.splitlines())
    assert recorded.files == bare.files
    assert recorded.files["list.txt"] == b"a.txt\nlist.txt\n"
    assert sorted(recorded.asked, key=str) == sorted(bare.asked, key=str)
    assert {(529, True), (200, False)} < set(recorded.asked)
    (one,) = recorded.found
    assert sorted(recorded.attempts, key=str) == sorted((status for status, _ in recorded.asked), key=str)
    assert len({step.response_id for step in one.steps}) == len(one.steps)
    assert [step.status for step in one.steps].count("error") == recorded.asked.count((200, False))
    beside = [step for step in one.steps if (step.metadata or {}).get("auxiliary")]
    assert beside == [step for step in one.steps if not step.trainable] == [one for one in one.steps if not one.tools]
    assert len(beside) == CLIS[name].auxiliary
    assert next([attempt.status for attempt in step.attempts] for step in one.steps if step.tools) == [529, 200]
    assert [str((run.arguments or {}).get("command")) for run in one.tool_runs] == [
        "ls > list.txt; cat a.txt",
        "exit 3",
    ]
    assert "hello" in str(one.tool_runs[0].result)
    assert (one.metadata or {})["cli"].startswith(name)


@pytest.mark.parametrize("case", AGENTS)
def test_sub_agents_are_children_of_the_step_that_called_them(tmp_path: Path, case: str) -> None:
    name, kind, calls = AGENTS[case]
    recorded, bare = (
        ran_by(name, delegating(calls), tmp_path / one, one == "recorded") for one in ("recorded", "bare")
    )
    assert recorded.done.returncode == bare.done.returncode == 0, recorded.done.stderr
    assert last_line(recorded) == last_line(bare)
    assert recorded.files == bare.files == dict.fromkeys(("a.txt", "one.txt", "two.txt"), b"hello\n")
    # Forks report when they end, one by one or both at once.
    assert sorted(recorded.asked) == sorted(bare.asked) or case == "qwen-fork"
    parent, *children = recorded.found
    assert recorded.attempts == [200] * len(recorded.asked)
    (caller,) = (step for step in parent.steps if step.completion is not None and step.completion.tool_calls)
    assert len(caller.completion.tool_calls) == len(calls)  # type: ignore[union-attr]
    assert {(one.parent_id, one.parent_step_id, one.name) for one in children} == {(parent.id, caller.id, kind)}
    assert [len(one.steps) for one in children] == [2, 2]
    by_task = {word: one for one in children for word in SUBTASK.findall(str(one.steps[0].messages))}
    assert sorted(by_task) == ["one", "two"]
    assert all(len(one.tool_runs) >= 1 for one in children)
    assert len(parent.tool_runs) == len(calls)
    owners = {step.response_id: one for one in recorded.found for step in one.steps}
    for record in (one for one in recorded.server.requests if one.method == "POST"):
        (owner,) = (one for name, one in owners.items() if f'"{name}"'.encode() in record.response_body)
        tasks = set(SUBTASK.findall(record.body.decode()))
        # The program's own calls say both or none; one without tools is beside, whatever it is about.
        assert owner is (by_task[tasks.pop()] if len(tasks) == 1 and tools_in(record.json) else parent)
    beside = [step for step in parent.steps if not step.tools]
    assert beside == [step for one in recorded.found for step in one.steps if not step.trainable]


def test_an_agent_of_qwen_code_for_its_memory_is_beside(tmp_path: Path) -> None:
    one = ran_by("qwen", lambda request: "hello", tmp_path / "place", True)
    assert last_line(one) == "hello", one.done.stderr
    (found,) = one.found
    assert len(found.steps) == len(one.asked)
    assert [step.metadata for step in found.steps] == [None, {"auxiliary": True}]
    assert [step.trainable for step in found.steps] == [True, False]
    assert found.steps[1].tools
