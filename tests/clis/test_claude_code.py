"""Transcripts of Claude Code as it is installed from npm: their steps are what its server was asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.testing import ScriptedServer

from .claude_code import run, script
from .installed import CLAUDE_CODE, CLAUDE_CODE_BEFORE, Package, Place, program
from .served import Served, is_summary, plain, served


@pytest.fixture(scope="module", params=[CLAUDE_CODE, CLAUDE_CODE_BEFORE], ids=lambda one: one.version)
def ran(request: Any, tmp_path_factory: Any) -> Iterator[tuple[Package, list[rt.Trajectory], list[Served]]]:
    binary = program(request.param)
    with ScriptedServer(script) as server:
        folder = run(binary, Place(tmp_path_factory.mktemp("clis") / "place"), server)
        found = importing.claude_code(folder)
        yield request.param, list(found), served("anthropic.messages", server.requests)


def test_each_request_is_a_step_or_an_attempt(ran: Any) -> None:
    package, trajectories, asked = ran
    steps = [step for one in trajectories for step in one.steps]
    answered = {one.step.response_id: one for one in asked if one.status == 200 and one.is_whole}
    # The call that sums up is in no file.
    missing = {one for one in answered if one not in {step.response_id for step in steps}}
    assert all(is_summary(answered[one].step) for one in missing)
    assert len(missing) == 1
    given = [step for step in steps if step.status == "ok"]
    assert len({step.response_id for step in given}) == len(given)
    for step in given:
        sent = answered[step.response_id].step
        assert step.completion == sent.completion
        assert plain(step.messages) == plain(sent.messages)
        assert (step.finish_reason, step.model) == (sent.finish_reason, sent.model)
    if package is CLAUDE_CODE:
        attempts = sum(len(step.attempts) for step in steps)
        assert attempts == len(asked) - 1


def test_what_was_sent_is_there_as_it_was_sent(ran: Any) -> None:
    package, trajectories, asked = ran
    if package is not CLAUDE_CODE:
        pytest.skip("older releases do not write what they send")
    for step in (step for one in trajectories for step in one.steps):
        sent = [
            one.step for one in asked if one.step.response_id == step.response_id and one.step.status == step.status
        ]
        assert _request(step) in [_request(one) for one in sent]


def _request(step: rt.Step) -> Any:
    return [list(step.messages or ()), list(step.tools or ()), step.sampling, step.model]


def test_failures_have_their_status_and_type(ran: Any) -> None:
    package, trajectories, asked = ran
    failed = [step for one in trajectories for step in one.steps if step.status == "error"]
    (bad,) = (step for step in failed if step.error.status == 400)
    # Older releases give up where the connection is lost.
    assert len(failed) == (1 if package is CLAUDE_CODE else 2)
    if package is CLAUDE_CODE:
        assert bad.error.type == "invalid_request_error"
        assert len(bad.attempts) == sum(one.status == 400 for one in asked)
        again = next(step for one in trajectories for step in one.steps if "retry" in (step.completion.content or ""))
        assert [one.status for one in again.attempts] == [529, 200]


def test_sub_agents_are_children_of_the_step_that_called_them(ran: Any) -> None:
    trajectories = ran[1]
    (caller,) = {one.parent_step_id for one in trajectories if one.parent_step_id}
    children = [one for one in trajectories if one.parent_step_id == caller]
    assert [len(one.steps) for one in children] == [2, 2]
    (step,) = (step for one in trajectories for step in one.steps if step.id == caller)
    assert len(step.completion.tool_calls) == 2


def test_a_failing_tool_has_its_error(ran: Any) -> None:
    runs = [run for one in ran[1] for run in one.tool_runs if (run.arguments or {}).get("command") == "exit 3"]
    assert [run.error is not None for run in runs] == [True]
