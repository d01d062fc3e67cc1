"""Rows for verl, without verl."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.export import verl, verl_prompts, write_verl_prompts
from rollout_trace.report import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import trajectory_of
from tests.strategies import PROFILE, trajectories

TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]


def test_an_output_is_a_sequence_cut_at_its_first_sampled_token() -> None:
    assert verl(trajectory_of(TRACE)) == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4, 5, 6],
            "response_mask": [1, 1, 0, 1],
            "response_logprobs": [-0.5, -0.25, 0.0, -1.0],
            "reward_score": 1.0,
            "num_turns": 4,
            "metrics": {},
            "extra_fields": {
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": {},
                "trajectory_id": "trace",
                "group_id": "task",
                "rollout_index": 0,
                "step_ids": ["step0", "step1"],
                "spans": [[2, 4], [5, 6]],
                "temperature": None,
                "logprobs_mode": None,
            },
        }
    ]


def test_what_the_user_set_is_in_the_extra_fields() -> None:
    trajectory = trajectory_of(TRACE)
    trajectory.rewards = {"correct": 1.0}
    for number, step in enumerate(trajectory.steps):
        step.reward, step.policy_version = 0.5 * number, 3 + number
    (row,) = verl(trajectory)
    extra = row["extra_fields"]
    assert (extra["turn_scores"], extra["reward_extra_info"]) == ([0.0, 0.5], {"correct": 1.0})
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (3, 4)


def test_what_verl_has_no_place_for_is_counted() -> None:
    trajectory = trajectory_of(TRACE)
    first, second = trajectory.steps
    first.reward, first.policy_version, second.policy_version = 0.5, "a", 3
    first.advantage = second.advantage = 1.0
    report = ExportReport()
    (row,) = verl(trajectory, report=report)
    assert "min_global_steps" not in row["extra_fields"]
    assert report.dropped == {
        "step rewards": 1,
        "step advantages": 2,
        "policy versions of rows where not all are integers": 2,
    }


def test_metrics_are_seconds_of_the_rows_own_steps_and_tools() -> None:
    (talk,) = recorded.interleaved()
    spent = [step.latency or 0.0 for step in talk.steps]
    found = [row["metrics"]["generate_sequences"] for row in verl(talk)]
    assert found == pytest.approx([sum(spent[::2]), sum(spent[1::2])])
    (adder, *_) = recorded.tool_agent()
    (row,) = verl(adder)
    assert row["metrics"]["tool_calls"] == pytest.approx(sum(run.duration or 0.0 for run in adder.tool_runs))


def test_missing_stays_none() -> None:
    found = verl([run for run in recorded.unscored() if run.reward is None])
    assert [row["reward_score"] for row in found] == [None, None]
    trajectory = trajectory_of([([1], [2], [-0.5])])
    trajectory.steps = [rt.Step(id="a", call_id="a", prompt_token_ids=[1], completion_token_ids=[2])]  # type: ignore[arg-type]
    report = ExportReport()
    assert verl(trajectory, report=report)[0]["response_logprobs"] is None
    assert report.dropped == {"rows without logprobs": 1}


def test_scores_are_of_all_rows_or_none() -> None:
    """verl has no column of scores where one row lacks it."""
    report = ExportReport()
    assert [row["reward_score"] for row in verl(recorded.unscored(), report=report)] == [1.0, 0.5, 0.25, 1.0]
    assert report.dropped == {"rows without a reward, where others have one": 2}
    with pytest.raises(rt.ExportError, match="rows without a reward"):
        verl(recorded.unscored(), strict=True)


def test_logprobs_are_of_all_rows_or_none() -> None:
    first, second = trajectory_of(TRACE), trajectory_of(TRACE)
    second.steps = [replace(step, logprobs=None) for step in second.steps]
    for runs in ([first, second], [second, first]):
        report = ExportReport()
        assert [row["response_logprobs"] for row in verl(runs, report=report)] == [None, None]
        others = "rows whose logprobs are left out because other rows have none"
        assert report.dropped == {"rows without logprobs": 1, others: 1}


def test_rewards_by_name_are_those_of_every_row() -> None:
    first, second = trajectory_of(TRACE), trajectory_of(TRACE)
    first.rewards, second.rewards = {"correct": 1.0, "short": 0.5}, {"correct": 0.0, "long": 0.5}
    report = ExportReport()
    found = [row["extra_fields"]["reward_extra_info"] for row in verl([first, second], report=report)]
    assert found == [{"correct": 1.0}, {"correct": 0.0}]
    assert report.dropped == {"rewards by name that not every row has": 2}


def test_rows_of_a_trajectory_stand_together() -> None:
    runs = recorded.forked() + recorded.interleaved()
    names = [row["extra_fields"]["trajectory_id"] for row in verl(runs)]
    assert names == [runs[0].id] * 3 + [runs[1].id] * 2


def test_a_prompt_is_that_of_each_tasks_first_run() -> None:
    runs = recorded.tool_agent()
    rows = verl_prompts(runs, data_source="adding", ability="math")
    assert [row["prompt"] for row in rows] == [list(runs[at].steps[0].messages or ()) for at in (0, 3)]
    assert rows[1] == {
        "data_source": "adding",
        "prompt": rows[1]["prompt"],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": rows[1]["reward_model"]["ground_truth"]},
        "extra_info": {"index": 1, "split": "train", "task_id": "add/2"},
    }
    assert json.loads(rows[1]["reward_model"]["ground_truth"])["answer"] == 34.5
    own = verl_prompts(runs, data_source="a", ability="m", ground_truth=lambda run: str(run.task.data["answer"]))  # type: ignore[union-attr]
    assert [row["reward_model"]["ground_truth"] for row in own] == ["6", "34.5"]


@pytest.mark.parametrize(
    ("made", "rows", "dropped"),
    [
        (recorded.two_agents, 1, {"trajectories inside another": 4, "tools of prompts": 1}),
        (recorded.images, 0, {"prompts of more than roles and texts": 1}),
        (lambda: [rt.Trajectory()], 0, {"trajectories without messages": 1}),
    ],
)
def test_prompts_that_verl_cannot_take_are_counted(made: Any, rows: int, dropped: dict[str, int]) -> None:
    report = ExportReport()
    assert len(verl_prompts(made(), data_source="a", ability="b", report=report)) == rows
    assert report.dropped == dropped


def test_what_a_prompt_loses_is_counted() -> None:
    parts = [{"type": "text", "text": "Read this."}, {"type": "document", "source": {"type": "file", "file_id": "f"}}]
    first = rt.Step(id="a", call_id="a", protocol="anthropic.messages", messages=[{"role": "user", "content": parts}])
    run, report = rt.Trajectory(steps=[first]), ExportReport()
    (row,) = verl_prompts(run, data_source="a", ability="b", report=report)
    assert row["prompt"] == [{"role": "user", "content": "Read this."}]
    assert report.dropped == {"content parts without a place in a chat message: document": 1}
    with pytest.raises(rt.ExportError, match="document"):
        verl_prompts(run, data_source="a", ability="b", strict=True)


def test_a_tasks_other_prompts_are_counted() -> None:
    runs = recorded.tool_agent()
    for run in runs:
        run.group_id = "one"
    report = ExportReport()
    assert len(verl_prompts(runs, data_source="a", ability="b", report=report)) == 1
    differ = "prompts that differ from that of the task's first run"
    assert report.dropped == {differ: 3, "tools of prompts": 1}


def test_a_file_has_the_prompts(tmp_path: Path) -> None:
    runs, path = recorded.tool_agent(), tmp_path / "prompts.jsonl"
    assert write_verl_prompts(path, runs, data_source="adding", ability="math") == 2
    expected = verl_prompts(runs, data_source="adding", ability="math")
    assert [json.loads(line) for line in path.read_text().splitlines()] == expected


@PROFILE
@given(trajectories())
def test_every_output_of_any_trajectory_is_a_sequence(trajectory: rt.Trajectory) -> None:
    for step in trajectory.steps:
        step.advantage = None
    rows = trajectory.sequences()
    found = verl(trajectory, report=ExportReport())
    assert [row["prompt_ids"] + row["response_ids"] for row in found] == [row.token_ids.tolist() for row in rows]
    # A column is of all rows or of none: verl breaks on one that some rows lack.
    has_logprobs = all(row.logprobs is not None for row in rows)
    for output, row in zip(found, rows, strict=True):
        assert output["response_mask"] == row.loss_mask[row.prompt_length :].tolist()
        assert output["response_logprobs"] == (
            row.logprobs[row.prompt_length :].tolist() if has_logprobs and row.logprobs is not None else None
        )


def test_limits_for_prompts_and_for_responses() -> None:
    report = ExportReport()
    (row,) = verl(trajectory_of(extras.TRACE), max_prompt_length=2, max_response_length=4, report=report)
    assert (row["prompt_ids"], row["response_ids"], row["response_mask"]) == ([1, 2], [3, 4, 5, 6], [1, 1, 0, 1])
    assert report.dropped == {"tokens cut: max_prompt_length, max_response_length": 1}
    report = ExportReport()
    assert verl(trajectory_of(extras.TRACE), max_prompt_length=1, report=report) == []
    assert report.dropped["steps left out: max_prompt_length"] == 2
