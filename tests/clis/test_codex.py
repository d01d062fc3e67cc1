"""Sessions of Codex as it is installed from npm: their steps are what its server was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.importing.imported import Imported

from .codex import OWN_MODEL, ItemServer, Model, run
from .installed import CODEX, Place, program
from .served import Served, served


@pytest.fixture(scope="module", params=["some-model", OWN_MODEL])
def ran(request: Any, tmp_path_factory: Any) -> Iterator[tuple[Imported, list[rt.Trajectory], list[Served]]]:
    binary = program(CODEX)
    with ItemServer(Model()) as server:
        folder = run(binary, Place(tmp_path_factory.mktemp("clis") / "place"), server, request.param)
        found = importing.codex(folder)
        yield found, list(found), served("openai.responses", server.requests)


def _plain(items: Any) -> list[Any]:
    """Items without their ids, which Codex gives some of and the server some, and without the tools among them."""
    left_out = ("id", "type", "status", "annotations")
    return [
        {name: value for name, value in one.items() if name not in left_out}
        for one in items
        if one.get("type") != "additional_tools"
    ]


def test_each_request_is_a_step(ran: Any) -> None:
    _, trajectories, asked = ran
    steps = [step for one in trajectories for step in one.steps]
    # What was tried again is in no file.
    answered = [one for one in asked if one.status != 503]
    assert len(answered) == len(asked) - 1 == len(steps)
    by_id = {one.step.response_id: one.step for one in answered}
    for step in steps:
        sent = by_id[step.response_id]
        read, expected = _plain(step.messages), _plain(sent.messages)
        if step.trainable is False:
            # What asked for the summary.
            expected.pop()
        own = len([one for one in read[:1] if one["role"] == "system"])
        # Of models that it does not know, the instructions differ from those in the file.
        assert read[own:] == expected[own:]
        assert step.model == sent.model
        if step.status == "ok":
            assert step.completion.content == sent.completion.content
            assert [call.arguments for call in step.completion.tool_calls] == [
                call.arguments for call in sent.completion.tool_calls
            ]
            assert (step.usage.input, step.usage.output) == (sent.usage.input, sent.usage.output)
        offered = [tools for one in sent.messages if one.get("type") == "additional_tools" for tools in one["tools"]]
        assert (step.tools or []) == offered


def test_a_compaction_is_one_call(ran: Any) -> None:
    found, trajectories, _ = ran
    summed = [step for one in trajectories for step in one.steps if not step.trainable]
    assert [step.completion.content for step in summed] == ["It was listed."]
    assert not any("calls that summed up compacted" in what for what in found.report.missing)
    assert any("what asked for a summary" in what for what in found.report.missing)


def test_a_failed_turn_is_failed(ran: Any) -> None:
    (failed,) = (one for one in ran[1] if one.status == "failed")
    (step,) = failed.steps
    assert (step.status, step.error.type, step.error.message) == ("error", "invalid_request_error", "no such thing")


def test_sub_agents_are_children_of_the_step_that_spawned_them(ran: Any) -> None:
    trajectories = ran[1]
    children = [one for one in trajectories if one.parent_step_id is not None]
    assert [len(one.steps) for one in children] == [2, 2]
    (caller,) = {one.parent_step_id for one in children}
    (step,) = (step for one in trajectories for step in one.steps if step.id == caller)
    assert [call.name for call in step.completion.tool_calls] == ["spawn_agent"] * 2


def test_a_fork_goes_on_from_its_parent(ran: Any) -> None:
    (fork,) = (one for one in ran[1] if one.parent_id is not None and one.parent_step_id is None)
    (step,) = fork.steps
    assert "list it" in json.dumps(list(step.messages))
