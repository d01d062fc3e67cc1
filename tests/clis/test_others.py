"""Coding agents beside Claude Code and Codex through ``rollout-trace run``: make test-clis-more."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_trace.testing import ScriptedServer

from .installed import program
from .others import CLIS, Model
from .test_run import Ran, ran

pytestmark = pytest.mark.by_hand


def ran_by(name: str, place: Path, is_recorded: bool) -> Ran:
    """Runs a program on a task whose calls fail, and are cut, on their way."""
    cli = CLIS[name]
    with ScriptedServer(Model()) as server:
        command = [str(program(cli.package)), *cli.words, "list it"]
        return ran(place, server, command, is_recorded, cli.files(server), **cli.own(server))


@pytest.mark.parametrize("name", CLIS)
def test_each_exchange_is_one_attempt_of_one_step(tmp_path: Path, name: str) -> None:
    recorded, bare = ran_by(name, tmp_path / "recorded", True), ran_by(name, tmp_path / "bare", False)
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
