"""One row a step: what the rows hold is what the steps hold, and what is left out is counted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.data.model import amend
from rollout_trace.export import STEP_COLUMNS, steps, write_steps
from rollout_trace.report import ExportReport
from tests.consumers import recorded
from tests.export.extras import same_extras
from tests.file.test_format import with_extras
from tests.strategies import PROFILE, trajectories
from tests.unchecked import unchecked


def test_rows_are_the_steps() -> None:
    """Ids, logprobs, rewards, text and what identifies them, of a tool-using agent with a user's annotations."""
    found = recorded.annotated()
    report = ExportReport()
    rows = steps(found, report=report)
    pairs = [(trajectory, step) for trajectory in found for step in trajectory.steps]
    assert len(rows) == len(pairs) == 18
    assert report.dropped == {}
    for row, (trajectory, step) in zip(rows, pairs, strict=True):
        assert tuple(row) == tuple(STEP_COLUMNS)
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert row["prompt_ids"] == step.prompt_token_ids.tolist()
        assert row["completion_ids"] == step.completion_token_ids.tolist()
        assert row["logprobs"] == step.logprobs.tolist()
        assert len(row["advantages"]) == len(row["completion_ids"])
        assert trajectory.task is not None
        ids = (trajectory.id, trajectory.group_id, trajectory.rollout_index, step.id, step.index, trajectory.task.data)
        names = ("trajectory_id", "group_id", "rollout_index", "step_id", "turn", "task")
        assert tuple(row[name] for name in names) == ids
        assert (row["reward"], row["step_reward"]) == (trajectory.reward, step.reward)
        assert (row["policy_version"], row["token_source"], row["status"]) == ("7", "engine", "ok")
        assert row["messages"] == step.messages
        assert row["tools"] == recorded.TOOLS
    first, second = rows[0], rows[1]
    assert first["advantages"] == [-0.25] * len(first["completion_ids"])
    assert second["advantages"][:3] == [0.0, 0.125, 0.25]
    assert first["completion"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert (rows[2]["completion"]["content"], rows[2]["finish_reason"]) == ("The sum is 6.", "stop")


def test_arrays_are_the_steps_own() -> None:
    """On request: no list is made of what is to become an array again."""
    (trajectory,) = recorded.interleaved()
    for row, step in zip(steps(trajectory, arrays=True), trajectory.steps, strict=True):
        for name, array in (("prompt_ids", step.prompt_token_ids), ("logprobs", step.logprobs)):
            assert array is not None
            assert row[name].dtype == array.dtype
            assert np.array_equal(row[name], array)


@PROFILE
@given(trajectories())
def test_the_same_steps_as_the_sequences_are_left_out(trajectory: rt.Trajectory) -> None:
    """With the same counts, for any trajectory; and strictly, the first of them raises."""
    for step in trajectory.steps:
        step.advantage = None
    left_out = trajectory.sequences().report.left_out
    report = ExportReport()
    rows = steps(trajectory, report=report)
    assert len(rows) == len(trajectory.steps) - sum(map(len, left_out.values()))
    counts = {what: count for what, count in report.dropped.items() if what.startswith("steps left out: ")}
    assert counts == {f"steps left out: {reason}": len(ids) for reason, ids in left_out.items()}
    json.dumps(rows, allow_nan=False)
    if left_out:
        with pytest.raises(rt.RolloutTraceError, match="Without strict=True"):
            steps(trajectory, strict=True)


def test_reasons_can_be_allowed_by_name() -> None:
    """And any other rule can be given as a function."""
    (trajectory,) = recorded.failed_steps()
    ids = [step.id for step in trajectory.steps]
    assert [row["step_id"] for row in steps(trajectory)] == [ids[0], ids[3], ids[7]]
    allowed = steps(trajectory, allow={"abandoned", "not_trainable", "cached"})
    assert [row["step_id"] for row in allowed] == [ids[0], *ids[2:5], *ids[6:]]
    assert [row["status"] for row in allowed] == ["ok", "abandoned", "ok", "ok", "cached", "ok"]
    report = ExportReport()
    kept = steps(trajectory, include=lambda step: step.finish_reason == "length", report=report)
    assert [row["step_id"] for row in kept] == [ids[3]]
    assert report.dropped["steps left out: excluded"] == 2


def test_without_tokens_ids_are_not_needed() -> None:
    """Answers of a server that gives none: a row each, of text alone."""
    found = recorded.anthropic_agent()
    assert steps(found) == []
    rows = steps(found, tokens=False)
    assert [row["completion"]["content"] for row in rows] == ["Adding.", "The sum is 3."]
    assert rows[1]["messages"][-1]["role"] == "tool"
    assert all(row[name] is None for row in rows for name in ("prompt_ids", "completion_ids", "logprobs"))
    (failed,) = recorded.failed_steps()
    assert len(steps(failed, tokens=False, allow={"error"})) == 3  # What failed has no answer.


def test_numbers_that_are_not_finite_are_none_and_counted() -> None:
    """A reward that came out as NaN is not scored, and does not become a token of the file."""
    (trajectory,) = recorded.forked()
    trajectory.task = rt.Task(id="t", data={"scores": [1.0, math.inf]})
    unchecked(trajectory, reward=math.nan)
    report = ExportReport()
    rows = steps(trajectory, report=report)
    assert [row["reward"] for row in rows] == [None] * 4
    assert rows[0]["task"] == {"scores": [1.0, None]}
    counts = {"values of reward that are not finite numbers": 4, "values of task that are not finite numbers": 4}
    assert report.dropped == counts
    assert report.metadata == {"values of task that are not finite numbers"}
    trajectory.reward = 1.0
    assert len(steps(trajectory, strict=True)) == 4
    with pytest.raises(rt.RolloutTraceError, match=r"values of task .*\$\.scores\[1\]: inf"):
        steps(trajectory, strict="metadata")


def test_rewards_of_any_kind_of_number() -> None:
    """As graders give them: numpy's, whole numbers, booleans."""
    (trajectory,) = recorded.forked()
    rewards: list[Any] = [np.float32(0.5), 1, True, np.int64(-2)]
    for step, reward in zip(trajectory.steps, rewards, strict=True):
        step.reward = reward
    found = [row["step_reward"] for row in steps(trajectory)]
    assert found == [0.5, 1.0, 1.0, -2.0]
    assert all(type(reward) is float for reward in found)


def test_advantages_of_another_length_are_refused() -> None:
    """The message names the step and both lengths."""
    (trajectory,) = recorded.forked()
    trajectory.steps[1].advantage = [0.5, 0.5]
    with pytest.raises(ValueError, match=r"9 completion ids but 2 advantages"):
        steps(trajectory)


@pytest.mark.parametrize("name", ["steps.jsonl", "steps.jsonl.gz"])
def test_a_file_holds_the_same_rows(tmp_path: Path, name: str) -> None:
    """Read back they are equal, to the last digit; steps are written as they come, one trajectory at a time."""
    found = recorded.annotated()
    asked = 0

    def given() -> Iterator[rt.Trajectory]:
        nonlocal asked
        for trajectory in found:
            asked += 1
            yield trajectory

    assert write_steps(tmp_path / name, given()) == 18
    assert asked == 6
    import gzip

    opened: Any = gzip.open if name.endswith("gz") else open
    with opened(tmp_path / name, "rb") as file:
        assert [json.loads(line) for line in file] == steps(found)


def test_logprobs_may_be_missing() -> None:
    """A step with ids alone is a row; its logprobs are None, not zero."""
    (trajectory,) = recorded.interleaved()
    trajectory.steps = [replace(step, logprobs=None, logprobs_mode=None) for step in trajectory.steps]
    assert [row["logprobs"] for row in steps(trajectory)] == [None] * 6


def test_extras_are_those_of_the_steps(tmp_path: Path) -> None:
    """As rows, and out of JSON lines; of parquet: tests/consumers/datasets."""
    trajectory, report = with_extras(), ExportReport()
    assert write_steps(tmp_path / "steps.jsonl", trajectory, report=report) == 2
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert lines == steps(trajectory, report=report)
    assert report.dropped == {}
    for row, step in zip(lines, trajectory.steps, strict=True):
        same_extras(row, step)


def test_extras_as_arrays_and_without_tokens() -> None:
    trajectory = with_extras()
    for step in trajectory.steps:
        amend(step, completion=rt.Completion(content="ok"))
    (first, _), (bare, _) = steps(trajectory, arrays=True), steps(trajectory, tokens=False)
    assert first["routed_experts"].dtype == np.int32
    assert not first["routed_experts"].flags.writeable
    kinds = ("prompt_", "top_", "sampling_mask", "routed_", "policy_spans")
    aligned = [name for name in STEP_COLUMNS if name.startswith(kinds)]
    assert len(aligned) == 12
    assert all(bare[name] is None for name in aligned)
    assert bare["extra"] == trajectory.steps[0].extra


def test_a_step_without_extras_has_none_in_their_columns() -> None:
    (row, *_) = steps(recorded.interleaved())
    kinds = ("prompt_l", "prompt_t", "top_", "sampling_m", "routed_")
    missing = [name for name in STEP_COLUMNS if name.startswith(kinds)]
    assert len(missing) == 10
    assert all(row[name] is None for name in missing)
    assert row["extra_issues"] == []
