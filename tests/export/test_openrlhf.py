"""What OpenRLHF's executors return, without OpenRLHF; with it: tests/trainers/torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import trajectory_of


def test_a_run_is_a_row() -> None:
    run = trajectory_of(extras.TRACE)
    run.task, run.rewards = rt.Task(id="t", data={"answer": 3}), {"correct": 1.0}
    assert export.openrlhf(run) == [
        {
            "prompt": "",
            "label": '{"answer":3}',
            "images": None,
            "mm_train_inputs": None,
            "reward": 1.0,
            "scores": 1.0,
            "observation_tokens": [1, 2, 3, 4, 5, 6, 7],
            "action_ranges": [(2, 4), (5, 7)],
            "rollout_log_probs": [0.0, 0.0, -0.5, -0.25, 0.0, -1.0, -2.0],
            "truncated": False,
            "extra_logs": {"correct": 1.0},
        }
    ]


def test_there_is_one_row_for_each_run() -> None:
    with pytest.raises(rt.ExportError, match=r"has 3 sequences .* OpenRLHF takes one row for each rollout"):
        export.openrlhf(recorded.forked())
    report = ExportReport()
    (row,) = export.openrlhf(recorded.forked(), several="longest", report=report)
    assert len(row["action_ranges"]) == 2
    assert report.dropped["steps left out: of other sequences"] == 2
    with pytest.raises(rt.ExportError, match="no sequence to train on: ids_missing"):
        export.openrlhf(recorded.without_ids())
    report = ExportReport()
    assert len(export.openrlhf(recorded.two_agents(), report=report)) == 2
    assert report.dropped == {"trajectories inside another": 4}
    with pytest.raises(ValueError, match="several='first'"):
        export.openrlhf([], several="first")  # type: ignore[arg-type]


def test_columns_are_of_all_rows_or_none() -> None:
    first, second = trajectory_of(extras.TRACE), trajectory_of(extras.TRACE)
    second.steps = [replace(step, logprobs=None, finish_reason="length") for step in second.steps]
    first.rewards, second.rewards = {"correct": 1.0, "short": 0.5}, {"correct": 0.0}
    report = ExportReport()
    rows = export.openrlhf([first, second], report=report)
    assert [row["rollout_log_probs"] for row in rows] == [None, None]
    assert [row["truncated"] for row in rows] == [False, True]
    assert [row["extra_logs"] for row in rows] == [{"correct": 1.0}, {"correct": 0.0}]
    assert report.dropped == {
        "rows without logprobs": 1,
        "rows whose logprobs are left out because other rows have none": 1,
        "rewards by name that not every run has": 1,
    }


@pytest.mark.parametrize("share", ["copy", "last", "split"])
def test_the_reward_is_the_runs_whatever_row_stands_for_it(share: Any) -> None:
    run = trajectory_of([([1], [2, 3], [-1.0, -1.0]), ([9], [8], [-1.0])])
    (row,) = export.openrlhf(run, several="longest", reward=share, report=ExportReport())
    assert (row["action_ranges"], row["reward"], row["scores"]) == ([(1, 3)], 1.0, 1.0)
    found = export.trl_rollout(run, several="longest", reward=share, report=ExportReport())
    assert (found["completion_ids"], found["reward"]) == ([[2, 3]], [1.0])
