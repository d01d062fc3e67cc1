"""Samples for slime, without slime: what its `Sample` and its batches hold to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE


def test_a_sample_is_a_sequence() -> None:
    assert export.slime(trajectory_of(extras.TRACE)) == [
        {
            "index": 0,
            "group_index": 0,
            "rollout_id": 0,
            "prompt": "",
            "response": "",
            "tokens": [1, 2, 3, 4, 5, 6, 7],
            "response_length": 5,
            "loss_mask": [1, 1, 0, 1, 1],
            "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0, -2.0],
            "weight_versions": [],
            "reward": 1.0,
            "status": "completed",
            "metadata": {
                "trajectory_id": "trace",
                "group_id": "task",
                "rollout_index": 0,
                "rewards": None,
                "step_rewards": [None, None],
                "temperature": None,
                "logprobs_mode": None,
                "policy_spans": None,
            },
        }
    ]


def follows_slimes_rules(sample: dict[str, Any]) -> None:
    """What `Sample._validate_response_metadata_lengths`, the rollout's batches and the replay of experts check."""
    length = sample["response_length"]
    assert len(sample["loss_mask"]) == length
    assert sample["rollout_log_probs"] is None or len(sample["rollout_log_probs"]) == length
    if "rollout_routed_experts" in sample:
        assert sample["rollout_routed_experts"].shape[0] == len(sample["tokens"]) - 1
        assert sample["rollout_routed_experts"].dtype == np.int32
    if "rollout_top_p_token_ids" in sample:
        offsets = sample["rollout_top_p_token_offsets"]
        assert (len(offsets), offsets[0], offsets[-1]) == (length + 1, 0, len(sample["rollout_top_p_token_ids"]))


def test_experts_masks_and_versions() -> None:
    (sample,) = export.slime(extras.run(versions=(7, "8")), report=ExportReport())
    follows_slimes_rules(sample)
    assert np.array_equal(sample["rollout_routed_experts"], extras.experts(0, 6))
    ids, offsets = sample["rollout_top_p_token_ids"], sample["rollout_top_p_token_offsets"]
    assert ids.dtype == offsets.dtype == np.int32
    spans = [ids[begin:end].tolist() for begin, end in pairwise(offsets)]
    assert spans == [extras.kept(3), extras.kept(4), [], extras.kept(6), extras.kept(7)]
    assert sample["weight_versions"] == ["7", "8", "7", "8"]
    assert sample["metadata"]["policy_spans"] == [[0, 1, 7], [1, 2, "8"], [3, 4, 7], [4, 5, "8"]]


@PROFILE
@given(traces())
def test_samples_of_any_trace(trace: Trace) -> None:
    made = trajectory_of(trace)
    rows = made.sequences()
    samples = export.slime(made)
    assert [sample["tokens"] for sample in samples] == [row.token_ids.tolist() for row in rows]
    for sample, row in zip(samples, rows, strict=True):
        follows_slimes_rules(sample)
        assert sample["response_length"] == len(row.token_ids) - row.prompt_length


def test_runs_and_groups_are_numbered() -> None:
    """Rows of one run have one number, also those of trajectories inside it."""
    runs = recorded.tool_agent()
    found = [(one["index"], one["group_index"], one["rollout_id"]) for one in export.slime(runs)]
    assert found == [(at, at // 3, at) for at in range(6)]
    pair = recorded.two_agents()
    for run in pair:
        run.reward = 0.5
    assert [one["rollout_id"] for one in export.slime(pair)] == [0, 0, 0, 1, 1, 1]
    assert [one["rollout_id"] for one in export.slime(recorded.forked())] == [0, 0, 0]


@pytest.mark.parametrize(
    ("finish", "status", "expected"),
    [
        ("stop", "completed", "completed"),
        ("length", "completed", "truncated"),
        ("abort", "completed", "aborted"),
        ("stop", "aborted", "aborted"),
        ("tool_calls", "failed", "failed"),
        ("length", "failed", "truncated"),
    ],
)
def test_the_status(finish: str, status: Any, expected: str) -> None:
    made = trajectory_of(extras.TRACE)
    made.steps = [*made.steps[:-1], replace(made.steps[-1], finish_reason=finish)]
    made.status = status
    (sample,) = export.slime(made)
    assert sample["status"] == expected


def test_a_cut_row_is_truncated() -> None:
    (sample,) = export.slime(extras.run(), max_length=5, report=ExportReport())
    follows_slimes_rules(sample)
    assert (sample["tokens"], sample["status"]) == ([1, 2, 3, 4, 5], "truncated")
    # No loss depends on the token after the last sampled one.
    assert np.array_equal(sample["rollout_routed_experts"], extras.experts(0, 4).clip(max=extras.experts(2, 3)[0]))


def test_columns_are_of_all_rows_or_none() -> None:
    first, second = trajectory_of(extras.TRACE), trajectory_of(extras.TRACE)
    second.steps = [replace(step, logprobs=None) for step in second.steps]
    report = ExportReport()
    assert [one["rollout_log_probs"] for one in export.slime([first, second], report=report)] == [None, None]
    assert report.dropped == {
        "rows without logprobs": 1,
        "rows whose logprobs are left out because other rows have none": 1,
    }
    first.reward = None
    report = ExportReport()
    assert len(export.slime([first, trajectory_of(extras.TRACE)], report=report)) == 1
    assert report.dropped == {"rows without a reward, where others have one": 1}
    assert [one["reward"] for one in export.slime(first)] == [None]


def test_a_row_without_a_mask_is_noted() -> None:
    report = ExportReport()
    export.slime([extras.run(), trajectory_of(extras.TRACE)], report=report)
    assert report.noted == {"rows without a sampling mask, where others have one": 1}


def test_what_the_user_set_is_in_the_metadata() -> None:
    for sample in export.slime(recorded.annotated(), report=ExportReport()):
        assert sample["metadata"]["rewards"] == {"correct": 1.0, "short": 0.125}
        assert sample["metadata"]["step_rewards"] == [0.0, 0.5, 1.0]
        assert sample["weight_versions"] == ["7", "7", "7"]


def test_strict_raises() -> None:
    made = trajectory_of(extras.TRACE)
    made.steps = [replace(step, logprobs=None) for step in made.steps]
    with pytest.raises(rt.ExportError, match="rows without logprobs"):
        export.slime(made, strict=True)
