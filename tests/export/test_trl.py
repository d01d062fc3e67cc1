"""Rows for TRL, without TRL: shapes, values, and what is said of what is left out."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.export import trl, trl_dpo, trl_kto, trl_prompts, trl_rollout, write_trl
from rollout_trace.report import ExportReport
from tests.consumers import recorded
from tests.consumers.traces import trajectory_of
from tests.strategies import PROFILE, trajectories
from tests.unchecked import unchecked

MERGED = trajectory_of([([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])])
SPLIT = trajectory_of([([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 9], [6], [-1.0])], reward=0.0)


def test_labels_are_the_sampled_ids() -> None:
    assert trl([MERGED, SPLIT]) == [
        {
            "input_ids": [1, 2, 3, 4, 5, 6],
            "labels": [-100, -100, 3, 4, -100, 6],
            "reward": 1.0,
            "trajectory_id": "trace",
        },
        {"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4], "reward": 0.0, "trajectory_id": "trace"},
        {"input_ids": [1, 2, 9, 6], "labels": [-100, -100, -100, 6], "reward": 0.0, "trajectory_id": "trace"},
    ]


def test_options_are_those_of_sequences() -> None:
    report = ExportReport()
    (row,) = trl(MERGED, max_length=5, report=report)
    assert row["labels"] == [-100, -100, 3, 4, -100]
    assert report.dropped == {"steps left out: max_length": 1, "tokens cut: max_length": 1}


def test_what_is_left_out_is_counted_said_once_and_raised_when_strict(caplog: pytest.LogCaptureFixture) -> None:
    report = ExportReport()
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        assert trl(recorded.without_ids(), report=report) == []
    assert report.dropped == {"steps left out: ids_missing": 18, "scored trajectories without a row": 6}
    assert [record.getMessage() for record in caplog.records if "export.trl " in record.getMessage()] == [
        "export.trl left out: steps left out: ids_missing: 18, scored trajectories without a row: 6. "
        "Pass report=ExportReport() to read the counts, or "
        "strict=True to raise instead."
    ]
    with pytest.raises(rt.ExportError, match="ids_missing"):
        trl(recorded.without_ids(), strict=True)


def test_a_file_has_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert write_trl(path, [MERGED, SPLIT]) == 3
    assert [json.loads(line) for line in path.read_text().splitlines()] == trl([MERGED, SPLIT])


def test_a_rollout_is_one_row() -> None:
    assert trl_rollout([MERGED, MERGED]) == {
        "prompt_ids": [[1, 2]] * 2,
        "completion_ids": [[3, 4, 5, 6]] * 2,
        "logprobs": [[-0.5, -0.25, 0.0, -1.0]] * 2,
        "env_mask": [[1, 1, 0, 1]] * 2,
        "reward": [1.0] * 2,
        "rewards": [None] * 2,
        "step_rewards": [[None, None]] * 2,
        "trajectory_id": ["trace"] * 2,
        "temperature": [None] * 2,
        "logprobs_mode": [None] * 2,
        "policy_spans": [None] * 2,
        "step_ids": [list(MERGED.sequences()[0].step_ids)] * 2,
        "spans": [[[2, 4], [5, 6]]] * 2,
    }
    assert set(map(len, trl_rollout([]).values())) == {0}


def test_several_rows_of_a_rollout_are_raised_or_counted() -> None:
    with pytest.raises(rt.ExportError, match="'trace' has 2 sequences"):
        trl_rollout([MERGED, SPLIT])
    report = ExportReport()
    found = trl_rollout([MERGED, SPLIT], several="longest", report=report)
    assert found["completion_ids"] == [[3, 4, 5, 6], [3, 4]]
    assert report.dropped == {"steps left out: of other sequences": 1}
    # The longest is that with the most sampled tokens, not the one with the longest prompt.
    summed_up = trajectory_of([([1, 2], [3, 4], [-0.5, -0.25]), ([5, 6, 7, 8, 9], [6], [-1.0])])
    assert trl_rollout(summed_up, several="longest")["completion_ids"] == [[3, 4]]
    for runs in ([MERGED], list[rt.Trajectory]()):
        with pytest.raises(ValueError, match="several='best'"):
            trl_rollout(runs, several="best")  # type: ignore[arg-type]


def test_a_rollout_without_a_row_is_raised() -> None:
    with pytest.raises(rt.ExportError, match=r"no sequence to train on: ids_missing \(3\)"):
        trl_rollout(recorded.without_ids())


def test_unknown_logprobs_are_none_not_zero() -> None:
    trajectory = trajectory_of([([1], [2], [-0.5]), ([1, 2, 3], [4], [-0.5])])
    trajectory.steps[1] = replace(trajectory.steps[1], logprobs=None)
    report = ExportReport()
    assert trl_rollout(trajectory, report=report)["logprobs"] == [[None, 0.0, None]]
    assert report.dropped == {"rows without logprobs": 1}


def test_trajectories_inside_another_are_no_rollouts() -> None:
    report = ExportReport()
    found = trl_rollout(recorded.two_agents(), report=report)
    assert found["reward"] == [1.0, 0.0]
    assert report.dropped == {"trajectories inside another": 4}


def test_a_pair_is_the_best_run_over_the_worst() -> None:
    runs = recorded.tool_agent()
    first, second = trl_dpo(runs)
    for row, best, worst in ((first, runs[0], runs[1]), (second, runs[4], runs[3])):
        for name, run in (("chosen", best), ("rejected", worst)):
            said = [*row["prompt"], *row[name]]
            sent = list(run.steps[-1].messages or ())
            assert [message["role"] for message in said] == [message["role"] for message in sent] + ["assistant"]
            assert run.steps[-1].completion is not None
            assert said[-1]["content"] == run.steps[-1].completion.content
        assert row["prompt"] == list(best.steps[0].messages or ())
        assert row["tools"] == recorded.TOOLS
    assert first["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2}


def test_labels_are_above_the_mean_or_the_threshold() -> None:
    report = ExportReport()
    runs = recorded.tool_agent()
    assert [row["label"] for row in trl_kto(runs, report=report)] == [True, False, False, True, True]
    assert report.dropped == {"runs with the mean reward of their group": 1}
    found = trl_kto(runs, threshold=0.5)
    assert [row["label"] for row in found] == [True, False, True, False, True, True]
    assert [len(row["completion"]) for row in found] == [5] * 6


@pytest.mark.parametrize(
    ("made", "dropped"),
    [
        (recorded.unscored, {"trajectories without a reward": 2}),
        (recorded.two_agents, {"trajectories in no group": 4}),
        (recorded.forked, {"trajectories that are not one conversation": 1, "groups without two different rewards": 1}),
    ],
)
def test_runs_that_make_no_pair_are_counted(made: Any, dropped: dict[str, int]) -> None:
    report = ExportReport()
    trl_dpo(made(), report=report)
    assert report.dropped == dropped
    with pytest.raises(rt.ExportError, match=next(iter(dropped))):
        trl_dpo(made(), strict=True)


def test_equal_runs_make_no_pair() -> None:
    report = ExportReport()
    runs = recorded.tool_agent()
    for run in runs[:3]:
        run.reward = 0.5
    assert len(trl_dpo(runs, report=report)) == 1
    assert report.dropped == {"groups without two different rewards": 1}


def test_runs_of_different_prompts_make_no_pair() -> None:
    report = ExportReport()
    runs = recorded.tool_agent()
    for run in runs:
        run.group_id = "one"
    assert trl_dpo([runs[0], runs[3]], report=report) == []
    assert report.dropped == {"pairs whose prompts or tools differ": 1}


@pytest.mark.parametrize("options", [{}, {"threshold": 0.5}])
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "high"])
def test_a_reward_that_is_no_finite_number_has_no_label(options: Any, reward: Any) -> None:
    runs = recorded.tool_agent()
    unchecked(runs[0], reward=reward)
    with pytest.raises(ValueError, match="give a finite number, or None if it was not scored"):
        trl_kto(runs, **options)


@pytest.mark.parametrize("exporter", [trl_dpo, partial(trl_kto, threshold=0.5)])
def test_an_answer_that_is_not_to_be_trained_on_is_in_no_completion(exporter: Any) -> None:
    """TRL learns from all that follows the prompt; a run that goes on from such an answer cannot be shown without."""
    runs = recorded.tool_agent()[:3]
    runs[1].steps[1].trainable = False
    report = ExportReport()
    whole, rest = exporter(recorded.tool_agent()[:3]), exporter(runs, report=report)
    assert len(rest) == len(whole) - (len(whole) > 1)
    for row in rest:
        assert len(row.get("chosen", row.get("completion"))) == 5
    left = "trajectories that go on from an answer that cannot be trained on"
    assert report.dropped == {"steps left out: not_trainable": 1, left: 1}


def test_an_answer_before_the_first_to_train_on_is_in_the_prompt() -> None:
    (run, *_) = recorded.tool_agent()
    run.steps[0].trainable = False
    (row,) = trl_kto(run, threshold=0.5, report=ExportReport())
    assert [message["role"] for message in row["prompt"]] == ["system", "user", "assistant", "tool"]
    assert [message["role"] for message in row["completion"]] == ["assistant", "tool", "assistant"]


@PROFILE
@given(trajectories())
def test_every_row_of_any_trajectory_is_a_sequence(trajectory: rt.Trajectory) -> None:
    for step in trajectory.steps:
        step.advantage = None
    rows = trajectory.sequences()
    found = trl(trajectory, report=ExportReport())
    assert [row["input_ids"] for row in found] == [row.token_ids.tolist() for row in rows]
    assert [[label != -100 for label in row["labels"]] for row in found] == [
        (row.loss_mask == 1).tolist() for row in rows
    ]


def test_prompts_of_tasks_for_replay() -> None:
    runs = recorded.unscored()
    report = ExportReport()
    rows = trl_prompts(runs, report=report)
    assert report.dropped == {}
    assert [row["group_id"] for row in rows] == list(recorded.GROUPS)
    for row, group in zip(rows, (runs[:3], runs[3:]), strict=True):
        assert row["prompt"] == list(group[0].steps[0].messages or ())
        assert row["tools"] == recorded.TOOLS
        assert row["trajectory_ids"] == [run.id for run in group]
        assert row["rewards"] == [run.reward for run in group]
        assert row["task"] == (group[0].task or rt.Task()).data
    report = ExportReport()
    assert len(trl_prompts([*recorded.two_agents(), rt.Trajectory()], report=report)) == 1
    assert report.dropped == {"trajectories inside another": 4, "trajectories without messages": 1}
