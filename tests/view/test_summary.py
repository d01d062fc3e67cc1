"""The summary of a trajectory, against what its public functions say of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.data.model import ErrorInfo, Step, ToolRun, Usage
from rollout_trace.train.checks import check, check_with_rows
from rollout_trace.view.summary import EXCERPT, GRADES, summarize
from rollout_trace.view.values import ascii_json
from tests.strategies import PROFILE, trajectories
from tests.unchecked import unchecked

BEGAN = datetime(2026, 11, 23, 7, 0, tzinfo=timezone.utc)


def step(number: int = 0, **facts: Any) -> Step:
    whole: dict[str, Any] = {
        "id": f"s{number}", "call_id": f"c{number}", "index": number, "token_source": "engine",
        "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, 5], "logprobs": [-1.0, -0.5, -0.25],
    }  # fmt: skip
    return Step(**{**whole, **facts})


@PROFILE
@given(trajectories())
def test_it_says_what_the_trajectory_says_and_is_json(run: rt.Trajectory) -> None:
    one = summarize(run)
    assert json.loads(ascii_json(one))["id"] == run.id
    findings = check(run)
    assert one.findings == Counter(finding.code for finding in findings)
    assert one.grade == next((grade for grade in GRADES if any(item.grade == grade for item in findings)), None)
    assert (one.input_tokens, one.output_tokens) == (run.n_input_tokens, run.n_output_tokens)
    assert (one.steps, one.status, one.tool_runs) == (len(run.steps), run.status, len(run.tool_runs))
    assert len(one.excerpt) <= EXCERPT
    rows = check_with_rows(run)[1]
    assert (one.rows, one.tokens) == (len(rows), sum(len(row.token_ids) for row in rows))
    assert one.trained == sum(int(row.loss_mask.sum()) for row in rows)
    assert sum(one.left_out.values()) + rows.report.steps_used == len(run.steps)
    assert "excluded" not in one.left_out
    if "advantage_invalid" not in one.findings:
        public = run.sequences()
        assert one.left_out == {reason: len(ids) for reason, ids in public.report.left_out.items()}
        assert one.drift == Counter(drift.kind for drift in public.report.drift)


def test_every_field() -> None:
    steps = [
        step(0, agent="a", model="m", latency=1.5, time_to_first_token=0.5, usage=Usage(input=2, output=3),
             messages=[{"role": "system", "content": "no"}, {"role": "user", "content": "  2 +\n 2? " + "x" * 500}]),
        step(1, agent="b", model="m", latency=0.5, usage=Usage(input=2, output=3), prompt_token_ids=[9]),
    ]  # fmt: skip
    run = rt.Trajectory(
        id="t", name="n", task=rt.Task(id="k"), group_id="g", rollout_index=3,
        episode_id="e", parent_id="p", status="failed",
        stop_reason="turns", error=ErrorInfo(type="E", message="no"), reward=0.5, rewards={"x": 1}, metrics={"y": 2},
        started_at=BEGAN, ended_at=BEGAN + timedelta(seconds=90), steps=steps,
        tool_runs=[ToolRun(name="f"), ToolRun(name="f", error=ErrorInfo(type="E", message="no"))],
        metadata={"note": "look", "collect": {"attempt": 2}},
    )  # fmt: skip
    one = summarize(run)
    assert (one.id, one.name, one.task, one.group, one.index, one.attempt) == ("t", "n", "k", "g", 3, 2)
    assert (one.episode, one.parent, one.status, one.stop_reason, one.error) == ("e", "p", "failed", "turns", "E: no")
    assert (one.reward, one.rewards, one.metrics, one.note) == (0.5, {"x": 1}, {"y": 2}, "look")
    assert (one.started, one.seconds) == (BEGAN.timestamp(), 90)
    assert (one.steps, one.calls, one.agents, one.models) == (2, 2, ["a", "b"], ["m"])
    assert (one.input_tokens, one.output_tokens, one.latency, one.first_token) == (4, 6, 2.0, 0.5)
    assert (one.tool_runs, one.tool_errors, one.rows, one.tokens, one.trained) == (2, 1, 2, 9, 6)
    assert one.excerpt == ("2 + 2? " + "x" * 500)[:EXCERPT]


def test_what_is_not_known_is_none() -> None:
    one = summarize(rt.Trajectory(steps=[step(0, completion_token_ids=None, prompt_token_ids=None)]))
    for name in ("reward", "cost", "input_tokens", "output_tokens", "latency", "first_token", "seconds", "task"):
        assert getattr(one, name) is None
    assert one.left_out == {"ids_missing": 1}


@pytest.mark.parametrize("metadata", [{"note": 3}, {"collect": "x"}, {"collect": {"attempt": True}}, {}, None])
def test_odd_metadata_is_no_note_and_no_attempt(metadata: Any) -> None:
    one = summarize(rt.Trajectory(metadata=metadata))
    assert (one.note, one.attempt) == (None, None)


@pytest.mark.parametrize("reward", [math.nan, math.inf, "many", 10**400, [1]])
def test_a_reward_that_is_no_number_is_none_and_found(reward: Any) -> None:
    one = summarize(unchecked(rt.Trajectory(), reward=reward, rewards={"a": reward, "b": 1.0}))
    assert (one.reward, one.rewards) == (None, {"b": 1.0})
    assert one.findings["reward_not_finite"] == 1


def test_an_advantage_that_does_not_fit_is_the_reason() -> None:
    one = summarize(rt.Trajectory(steps=[step(0, advantage=[1.0])]))
    assert (one.left_out, one.rows) == ({"advantage_invalid": 1}, 0)


@pytest.mark.parametrize(
    ("protocol", "messages", "expected"),
    [
        ("openai.chat", [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "a"),
        ("openai.chat", [{"role": "user", "content": None}, 3, {"role": "user", "content": "b"}], "b"),
        ("anthropic.messages", [{"role": "user", "content": [{"type": "text", "text": "c"}]}], "c"),
        ("openai.responses", [{"role": "user", "content": [{"type": "input_text", "text": "d"}]}], "d"),
        ("openai.completions", ["once upon"], "once upon"),
        ("openai.chat", [{"role": "system", "content": "no user"}], ""),
        (None, [{"role": {}, "content": {}}], ""),
    ],
)
def test_the_excerpt_is_the_first_message_of_a_user(protocol: str | None, messages: list[Any], expected: str) -> None:
    assert summarize(rt.Trajectory(steps=[step(0, protocol=protocol, messages=messages)])).excerpt == expected
