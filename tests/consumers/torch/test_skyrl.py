"""SkyRL's own validator, its merging of steps, and the tensors its trainer trains on."""

from __future__ import annotations

import warnings
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import typing_extensions
from hypothesis import given, settings

from rollout_trace.export._skyrl import skyrl
from rollout_trace.report import ExportReport
from rollout_trace.train.groups import groups
from tests.amount import examples
from tests.consumers import recorded, vllm_extras
from tests.consumers.torch import tiny
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.consumers.vllm_extras import RUNS, TURNS, runs

# SkyRL hands a TypedDict to pydantic, which before Python 3.12 takes that of typing_extensions alone.
with warnings.catch_warnings(), patch("typing.TypedDict", typing_extensions.TypedDict):
    warnings.simplefilter("ignore")
    from skyrl.backends.skyrl_train.utils.ppo_utils import compute_advantages_and_returns
    from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
    from skyrl.train.generators.base import TrajectoryID
    from skyrl.train.generators.utils import merge_stepwise_output
    from skyrl.train.utils.trainer_utils import validate_generator_output

pytestmark = pytest.mark.filterwarnings("default")  # of SkyRL itself


def with_ids(output: dict[str, Any]) -> Any:
    """The conversion that the documentation names."""
    return {**output, "trajectory_ids": [TrajectoryID(**one) for one in output["trajectory_ids"]]}


@pytest.mark.parametrize("made", [recorded.tool_agent, recorded.unscored, recorded.forked, recorded.failed_steps])
@pytest.mark.parametrize("stepwise", [False, True])
def test_skyrls_validator_takes_it(made: Any, stepwise: bool) -> None:
    output = with_ids(skyrl(made(), stepwise=stepwise, report=ExportReport()))
    validate_generator_output(len(output["response_ids"]), output, step_wise=True)
    if made is recorded.tool_agent and not stepwise:
        validate_generator_output(6, output, step_wise=False)


@settings(max_examples=examples(2000))
@given(traces())
def test_merging_the_steps_gives_the_sequences(trace: Trace) -> None:
    trajectory = trajectory_of(trace, reward=0.5)
    steps, merged = skyrl(trajectory, stepwise=True), skyrl(trajectory, linear=True)
    assert steps["response_ids"] == [completion for _, completion, _ in trace]
    assert steps["prompt_token_ids"] == [prompt for prompt, _, _ in trace]
    if trace:
        found = merge_stepwise_output(with_ids(steps))
        assert {name: found[name] for name in merged if name != "rollout_metrics"} == {
            name: value for name, value in with_ids(merged).items() if name != "rollout_metrics"
        }


def test_merging_the_steps_of_recorded_runs_gives_the_sequences() -> None:
    trajectories = recorded.tool_agent() + recorded.forked() + recorded.interleaved()
    steps, merged = skyrl(trajectories, stepwise=True), skyrl(trajectories, linear=True)
    found = merge_stepwise_output(with_ids(steps))
    for name in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs", "rewards", "is_last_step"):
        assert found[name] == merged[name]
    assert found["stop_reasons"] == merged["stop_reasons"] == ["stop"] * len(merged["rewards"])


def tensors(output: dict[str, Any]) -> Any:
    """As the trainer does it: a reward is on the last token."""
    pairs = zip(output["response_ids"], output["rewards"], strict=True)
    rewards = [[*[0.0] * (len(ids) - 1), reward] for ids, reward in pairs]
    return convert_prompts_responses_to_batch_tensors(
        tiny.tokenizer(),
        output["prompt_token_ids"],
        output["response_ids"],
        rewards,
        output["loss_masks"],
        output["rollout_logprobs"],
        output.get("rollout_expert_indices"),
    )


def test_the_tensors_that_skyrl_trains_on_have_the_recorded_tokens() -> None:
    trajectories = recorded.tool_agent()
    output = skyrl(trajectories)
    ids, attention, response, scores, loss, logprobs, *_ = tensors(output)
    for at, trajectory in enumerate(trajectories):
        (row,) = trajectory.sequences()
        cut = row.prompt_length
        assert ids[at][attention[at].bool()].tolist() == row.token_ids.tolist()
        answered = response[at].bool()
        assert loss[at][answered].tolist() == row.loss_mask[cut:].tolist()
        assert row.logprobs is not None
        assert np.array_equal(logprobs[at][answered].numpy(), row.logprobs[cut:])
        assert scores[at].sum().item() == trajectory.reward


def test_skyrls_advantages_are_those_of_the_groups() -> None:
    trajectories = recorded.tool_agent()
    output = with_ids(skyrl(trajectories))
    lengths = [len(ids) for ids in output["response_ids"]]
    mask = torch.tensor([[at < length for at in range(max(lengths))] for length in lengths]).float()
    scores = torch.zeros_like(mask)
    for at, (length, reward) in enumerate(zip(lengths, output["rewards"], strict=True)):
        scores[at, length - 1] = reward
    found, _ = compute_advantages_and_returns(
        scores, mask, np.array([one.instance_id for one in output["trajectory_ids"]]), "rloo", None
    )
    expected = [value for group in groups(trajectories) for value in group.advantages("leave_one_out")]
    assert found[:, 0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("stepwise", [False, True])
def test_skyrls_tensors_have_the_recorded_experts(stepwise: bool) -> None:
    output = with_ids(skyrl(runs(), stepwise=stepwise, report=ExportReport()))
    validate_generator_output(len(output["response_ids"]), output, step_wise=True)
    ids, attention, *_, found = tensors(output)
    first = [TURNS[: at + 1] for at in range(len(TURNS))] if stepwise else [TURNS]
    for at, names in enumerate([*first, *RUNS[1:]]):
        read = attention[at].bool()
        assert ids[at][read].tolist() == vllm_extras.ids(*names)
        assert found[at][read][:-1].tolist() == vllm_extras.experts(*names).tolist()
        assert not found[at][~read].any()


def test_skyrl_merges_no_rows_with_experts() -> None:
    """As docs/export.md says of SkyRL 0.3.0."""
    with pytest.raises(AssertionError, match="rollout_expert_indices not supported"):
        merge_stepwise_output(with_ids(skyrl(runs(), stepwise=True, report=ExportReport())))


@pytest.mark.parametrize("failed", ["mask", "mask_group"])
def test_its_validator_takes_masked_rows(failed: Any) -> None:
    made = recorded.tool_agent() + recorded.failed_steps()
    output = with_ids(skyrl(made, failed=failed, report=ExportReport()))
    validate_generator_output(len(output["response_ids"]), output, step_wise=True)
    assert [sum(mask) == 0 for mask in output["loss_masks"]] == [False] * 6 + [True]
