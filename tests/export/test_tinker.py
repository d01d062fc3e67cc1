"""Rows for Tinker, without Tinker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.export import tinker
from rollout_trace.report import ExportReport
from rollout_trace.train.groups import groups
from tests.consumers import recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE

TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]


def test_arrays_say_of_the_next_token() -> None:
    trajectory = trajectory_of(TRACE)
    trajectory.steps[0].advantage, trajectory.steps[1].advantage = [0.5, -0.5], 2.0
    assert tinker(trajectory, advantages="steps") == [
        {
            "model_input": [1, 2, 3, 4, 5],
            "loss_fn_inputs": {
                "target_tokens": [2, 3, 4, 5, 6],
                "logprobs": [0.0, -0.5, -0.25, 0.0, -1.0],
                "advantages": [0.0, 0.5, -0.5, 0.0, 2.0],
            },
            "mask": [0, 1, 1, 0, 1],
            "reward": 1.0,
            "trajectory_id": "trace",
            "temperature": None,
            "logprobs_mode": None,
        }
    ]


def test_without_advantages_rows_are_for_supervised_training() -> None:
    (row,) = tinker(trajectory_of(TRACE), advantages=None)
    assert row["loss_fn_inputs"] == {"target_tokens": [2, 3, 4, 5, 6], "weights": [0.0, 1.0, 1.0, 0.0, 1.0]}


@pytest.mark.parametrize("method", ["grpo", "leave_one_out"])
def test_advantages_are_those_of_the_groups(method: str) -> None:
    runs = recorded.tool_agent()
    expected = [value for group in groups(runs) for value in group.advantages(method)]  # type: ignore[arg-type]
    for row, value in zip(tinker(runs, advantages=method), expected, strict=True):  # type: ignore[arg-type]
        found = row["loss_fn_inputs"]["advantages"]
        assert found == pytest.approx([value * sampled for sampled in row["mask"]], abs=1e-6)


def test_rows_that_cannot_be_trained_on_are_counted() -> None:
    report = ExportReport()
    assert len(tinker(recorded.unscored(), report=report)) == 4
    assert report.dropped == {"rows without an advantage": 2}
    with pytest.raises(rt.ExportError, match="rows without an advantage"):
        tinker(recorded.two_agents(), strict=True)
    trajectory = trajectory_of(TRACE)
    trajectory.steps = [replace(step, logprobs=None) for step in trajectory.steps]
    report = ExportReport()
    assert tinker(trajectory, report=report) == []
    assert report.dropped == {"rows without logprobs": 1}


def test_a_sampled_token_without_a_token_before_it_is_counted() -> None:
    report = ExportReport()
    (row,) = tinker(trajectory_of([([], [3, 4], [-0.5, -0.25])]), advantages=None, report=report)
    assert (row["model_input"], row["loss_fn_inputs"]["target_tokens"]) == ([3], [4])
    assert report.dropped == {"sampled tokens with no token before them": 1}


def test_an_unknown_kind_of_advantages_is_refused() -> None:
    with pytest.raises(ValueError, match="advantages='gae'"):
        tinker([], advantages="gae")  # type: ignore[arg-type]


@PROFILE
@given(traces())
def test_shifted_rows_hold_the_sequences(trace: Trace) -> None:
    trajectory = trajectory_of(trace)
    for step in trajectory.steps:
        step.advantage = 0.5
    for row, sequence in zip(tinker(trajectory, advantages="steps"), trajectory.sequences(), strict=True):
        inputs = row["loss_fn_inputs"]
        assert [*row["model_input"][:1], *inputs["target_tokens"]] == sequence.token_ids.tolist()
        assert row["mask"] == sequence.loss_mask[1:].tolist()
        assert sequence.logprobs is not None
        assert inputs["logprobs"] == sequence.logprobs[1:].tolist()
        assert inputs["advantages"] == [0.5 * sampled for sampled in row["mask"]]
