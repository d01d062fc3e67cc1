"""`rollout_trace.testing.trajectories`: conversations that an agent could have had, for tests of what reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import find, given, seed, settings

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.model import CUT_OFF
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.testing import RecordedRollout, trajectories
from rollout_trace.testing._dialects import DIALECTS
from rollout_trace.view.threads import threads_of
from rollout_trace.wire.chat_messages import tools_of
from rollout_trace.wire.profiles import can_request_ids
from tests.amount import amount
from tests.strategies import PROFILE

FEW = settings(PROFILE, max_examples=amount(12, 24, 400))
# `trl_rollout` raises where a trajectory is not one row.
EXPORTERS: list[Callable[[list[rt.Trajectory]], Any]] = [
    export.agent_lightning, export.areal, export.art, export.atif, export.chat, export.distillation, export.exchanges,
    export.nemo_gym, export.nemo_rl, export.openenv, export.rllm, export.skyrl, export.slime, export.steps,
    export.tinker, export.trl, export.trl_dpo, export.trl_kto, export.trl_prompts, export.turns, export.verifiers,
    export.verl,
]  # fmt: skip


@FEW
@given(trajectories())
def test_the_file_and_the_checks_take_every_one(trajectory: rt.Trajectory) -> None:
    assert decode(encode(trajectory)) == trajectory
    codes = {one.code for one in trajectory.check()}
    assert codes.isdisjoint({"ids_out_of_range", "lengths_differ", "logprobs_positive", "advantage_invalid"})
    rows = trajectory.sequences()
    assert sum(int(row.loss_mask.sum()) for row in rows) == rows.report.trainable_tokens
    rollout = rollout_of(trajectory)
    assert len(rollout.tool_runs) >= len(trajectory.tool_runs)
    assert [run for run in rollout.tool_runs if type(run) is rt.ToolRun] == trajectory.tool_runs


@settings(PROFILE, max_examples=amount(6, 12, 200))
@given(trajectories(with_extras=True, max_steps=4))
def test_every_exporter_takes_every_one(trajectory: rt.Trajectory) -> None:
    for exporter in EXPORTERS:
        exporter([trajectory])


@FEW
@given(trajectories(protocols=[one for one in DIALECTS if one != "openai.completions"], with_forks=False))
def test_requests_go_on_from_the_answers_before_them(trajectory: rt.Trajectory) -> None:
    answered = 0
    for at, link in enumerate(threads_of(trajectory.steps)):
        assert link.thread == 0
        messages = trajectory.steps[at].messages
        assert messages is not None
        assert (link.continues is not None) == (answered > 0)
        answered += trajectory.steps[at].status == "ok"


@FEW
@given(trajectories(with_errors=False, with_drift=False, with_forks=False, with_ids=True, min_steps=1))
def test_without_faults_a_trajectory_is_one_row(trajectory: rt.Trajectory) -> None:
    rollout = rollout_of(trajectory)
    assert len(rollout.assert_trainable()) == 1
    rollout.assert_no_drift()
    rollout.assert_no_errors()
    assert all(can_request_ids(step.protocol) for step in trajectory.steps)


@FEW
@given(trajectories(with_ids=False, with_tools=False, min_steps=2, max_steps=3, protocols=["anthropic.messages"]))
def test_what_the_options_leave_out(trajectory: rt.Trajectory) -> None:
    assert 2 <= len(trajectory.steps) <= 3
    assert not trajectory.tool_runs
    for step in trajectory.steps:
        assert step.protocol == "anthropic.messages"
        assert (step.prompt_token_ids, step.completion_token_ids, step.tools) == (None, None, None)
        assert step.completion is None or not step.completion.tool_calls


@FEW
@given(trajectories(min_steps=1, max_steps=2))
def test_tools_have_the_shape_of_their_protocol(trajectory: rt.Trajectory) -> None:
    for step in trajectory.steps:
        for tool in tools_of(step) or ():
            assert tool["function"]["name"] in {"search", "fetch", "python"}
            assert tool["function"]["parameters"]["type"] == "object"


def rollout_of(trajectory: rt.Trajectory) -> RecordedRollout:
    return RecordedRollout(lambda: [trajectory])


KINDS: dict[str, Callable[[rt.Trajectory], bool]] = {
    "no step": lambda one: not one.steps,
    "drift": lambda one: bool(one.sequences().report.drift),
    "a fork": lambda one: one.sequences().report.forks > 0,
    "two conversations": lambda one: one.sequences().report.roots > 1,
    "two choices": lambda one: any(step.choice for step in one.steps),
    "two steps in a row": lambda one: any(len(row.step_ids) > 1 for row in one.sequences()),
    "ids here and not there": lambda one: len({n.prompt_token_ids is None for n in one.steps if n.completion}) == 2,
    "no logprobs": lambda one: any(step.logprobs is None and step.prompt_token_ids is not None for step in one.steps),
    "a tool that failed": lambda one: any(run.error for run in one.tool_runs),
    "an inferred tool run": lambda one: len(rollout_of(one).tool_runs) > len(one.tool_runs),
    "arguments that are no JSON": lambda one: not all(_is_json(call.arguments) for call in rollout_of(one).tool_calls),
    "reasoning": lambda one: any(step.completion and step.completion.reasoning for step in one.steps),
    "a limit": lambda one: any(step.finish_reason in CUT_OFF for step in one.steps),
    "a character of four bytes": lambda one: max(one.to_json()) > "\uffff",
    "an agent that failed": lambda one: one.error is not None,
    **{status: lambda one, status=status: any(step.status == status for step in one.steps)  # type: ignore[misc]
       for status in ("error", "cancelled", "abandoned", "superseded")},
    **{protocol: lambda one, protocol=protocol: any(step.protocol == protocol for step in one.steps)  # type: ignore[misc]
       for protocol in DIALECTS},
}  # fmt: skip


def _is_json(text: str | None) -> bool:
    try:
        json.loads(text or "")
    except ValueError:
        return False
    return True


@pytest.mark.more
def test_what_agents_leave_is_among_them() -> None:
    missing = set(KINDS)
    # What takes several steps, or one protocol, is rare among all.
    others: list[dict[str, Any]] = [{"protocols": [protocol], "min_steps": 3} for protocol in DIALECTS]
    for options in ({}, {"min_steps": 3, "with_ids": True, "with_errors": False}, *others):
        missing -= kinds_among(options, number=0)
    # Which examples come depends on what is imported, as hypothesis takes constants from there: then some more.
    for number in range(1, 6):
        missing -= kinds_among({}, number) if missing else set()
    assert not missing


def kinds_among(options: dict[str, Any], number: int) -> set[str]:
    found: set[str] = set()

    @seed(number)
    @settings(PROFILE, max_examples=70, derandomize=False)
    @given(trajectories(**options))
    def look(trajectory: rt.Trajectory) -> None:
        found.update(kind for kind in KINDS if kind not in found and KINDS[kind](trajectory))

    look()
    return found


@pytest.mark.more
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_examples_shrink(steps: int) -> None:
    # Conditions that any small example meets: how far others shrink depends on what hypothesis finds first.
    found = find(
        trajectories(),
        lambda one: len(one.steps) >= steps,
        settings=settings(PROFILE, max_examples=amount(30, 100, 300)),
    )
    assert len(found.steps) == steps
    assert (found.metadata, found.group_id, found.reward) == (None, None, None)


def test_the_same_examples_each_time() -> None:
    first, second = examples(), examples()
    assert first == second
    assert len(set(first)) > 5


def examples() -> list[str]:
    seen: list[str] = []

    @settings(PROFILE, max_examples=10)
    @given(trajectories(with_extras=True))
    def collect(trajectory: rt.Trajectory) -> None:
        seen.append(trajectory.to_json())

    collect()
    return seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": -1}, "min_steps=0, max_steps=-1: expected 0 <= min_steps <= max_steps."),
        ({"min_steps": 9}, "min_steps=9, max_steps=5: expected"),
        ({"protocols": ["openai.chat", "grpc"]}, "got 'grpc'"),
        ({"protocols": "openai.chat"}, "expected a list of openai.chat, "),
        ({"protocols": []}, "got []"),
    ],
)
def test_options_that_make_no_sense(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")):
        trajectories(**options)


def test_without_hypothesis_the_message_says_what_to_install() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; from rollout_trace.testing import trajectories"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: rollout_trace.testing.trajectories needs hypothesis, which is not installed: "
        "pip install hypothesis"
    )
