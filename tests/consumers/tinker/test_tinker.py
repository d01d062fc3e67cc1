"""Tinker's own Datum, and what its cookbook makes of the same steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tinker import Datum, ModelInput
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import compute_advantages, trajectory_to_data
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

import rollout_trace as rt
from rollout_trace.export import tinker
from rollout_trace.train.groups import groups
from tests.amount import examples
from tests.consumers import recorded
from tests.consumers.traces import Trace, traces, trajectory_of


def datum(row: dict[str, Any]) -> Datum:
    """The conversion that the documentation names."""
    return Datum(model_input=ModelInput.from_ints(row["model_input"]), loss_fn_inputs=row["loss_fn_inputs"])


def turns(trajectory: rt.Trajectory) -> Trajectory:
    """The steps as the cookbook's rollouts hold them."""
    found = []
    for step in trajectory.steps:
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        action = TokensWithLogprobs(step.completion_token_ids.tolist(), step.logprobs.tolist())
        found.append(Transition(ModelInput.from_ints(step.prompt_token_ids.tolist()), action, 0.0, False))
    return Trajectory(found, ModelInput.empty())


def same(row: dict[str, Any], expected: Datum) -> None:
    found = datum(row)
    assert found.model_input.to_ints() == expected.model_input.to_ints()
    for name in ("target_tokens", "logprobs", "advantages"):
        one, other = found.loss_fn_inputs[name], expected.loss_fn_inputs[name]
        assert np.array_equal(one.to_numpy(), other.to_numpy().astype(one.to_numpy().dtype))
        assert len(one.to_numpy()) == found.model_input.length
    assert row["mask"] == expected.loss_fn_inputs["mask"].to_numpy().tolist()
    assert found.loss_fn_inputs["target_tokens"].dtype == "int64"
    assert found.loss_fn_inputs["logprobs"].dtype == found.loss_fn_inputs["advantages"].dtype == "float32"


@settings(max_examples=examples(2000))
@given(traces())
def test_rows_are_the_cookbooks(trace: Trace) -> None:
    trajectory = trajectory_of(trace)
    for step in trajectory.steps:
        step.advantage = -0.75
    rows = tinker(trajectory, advantages="steps", linear=True)
    for row, expected in zip(rows, trajectory_to_data(turns(trajectory), -0.75), strict=True):
        same(row, expected)


@pytest.mark.parametrize("method", ["grpo", "leave_one_out"])
def test_recorded_groups_are_the_cookbooks(method: Any) -> None:
    trajectories = recorded.tool_agent()
    advantages = [value for group in groups(trajectories) for value in group.advantages(method)]
    rows = tinker(trajectories, advantages=method)
    for row, trajectory, advantage in zip(rows, trajectories, advantages, strict=True):
        assert advantage is not None
        (expected,) = trajectory_to_data(turns(trajectory), advantage)
        same(row, expected)


def test_leaving_one_out_is_the_cookbooks_centring_but_for_a_factor() -> None:
    """The cookbook takes the mean of all runs: of three, two thirds of what the mean of the two others gives."""
    trajectories = recorded.tool_agent()
    compared = [
        TrajectoryGroup(
            [turns(one) for one in group.trajectories],
            [one.reward or 0.0 for one in group.trajectories],
            [{} for _ in group.trajectories],
        )
        for group in groups(trajectories)
    ]
    centred = [value for group in compute_advantages(compared) for value in group.tolist()]
    rows = tinker(trajectories, advantages="leave_one_out")
    found = [max(row["loss_fn_inputs"]["advantages"], key=abs) for row in rows]
    assert [value * 2 / 3 for value in found] == pytest.approx(centred, abs=1e-6)


def test_supervised_rows_weigh_the_sampled_tokens() -> None:
    trajectories = recorded.tool_agent()
    for row, trajectory in zip(tinker(trajectories, advantages=None), trajectories, strict=True):
        (sequence,) = trajectory.sequences()
        found = datum(row)
        assert found.loss_fn_inputs["weights"].to_numpy().tolist() == sequence.loss_mask[1:].tolist()
        assert found.loss_fn_inputs["target_tokens"].to_numpy().tolist() == sequence.token_ids[1:].tolist()
