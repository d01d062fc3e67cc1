"""SkyRL's own validator, its merging of steps, and the tensors its trainer trains on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from skyrl.backends.skyrl_train.utils.ppo_utils import compute_advantages_and_returns
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.utils import merge_stepwise_output
from skyrl.train.utils.trainer_utils import validate_generator_output

import rollout_trace as rt
from rollout_trace.export import skyrl
from rollout_trace.report import ExportReport
from rollout_trace.train.groups import groups
from tests.amount import examples
from tests.consumers import exact_runs, extras, recorded, vllm_extras
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.consumers.vllm_extras import RUNS, TURNS, runs
from tests.documentation.reader import read_page, record_start
from tests.documentation.stage import programs
from tests.documentation.table import is_run
from tests.trainers.skyrl.trainer import make_trainer

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
        0,
        output["prompt_token_ids"],
        output["response_ids"],
        rewards,
        output["loss_masks"],
        output["rollout_logprobs"],
        output.get("rollout_expert_indices"),
        output.get("rollout_sample_support"),
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


def of_sub_agents_first(runs: list[rt.Trajectory], served: exact_runs.Served) -> list[Any]:
    """The served rows in the order of SkyRL's: those of a sub-agent before its run's."""
    rows = exact_runs.expected(runs, served)
    return sorted(rows, key=lambda pair: runs.index(pair[0]) - 1.5 * (pair[0].parent_id is not None))


def test_the_trainer_takes_the_ids_that_exact_turns_were_served() -> None:
    runs, served = exact_runs.record()
    rows = of_sub_agents_first(runs, served)
    batch = trained(skyrl(runs, report=ExportReport()), 1, stepwise=True, per_prompt=5)
    assert len(batch["sequences"]) == len(rows)
    for at, (_, row) in enumerate(rows):
        assert batch["sequences"][at][batch["attention_mask"][at].bool()].tolist() == row.ids
        answered = batch["response_mask"][at].bool()
        assert batch["loss_mask"][at][answered].tolist() == row.mask[row.prompt_length :]
        assert batch["rollout_logprobs"][at][answered].tolist() == row.logprobs[row.prompt_length :]
    last = batch.metadata["is_last_step"]
    assert [float(one.sum()) for one, is_last in zip(batch["rewards"], last, strict=True) if is_last] == [
        run.reward for run in runs if run.parent_id is None
    ]


def test_merging_the_steps_of_exact_turns_gives_the_rows_that_were_served() -> None:
    runs, served = exact_runs.record()
    rows = [row for _, row in of_sub_agents_first(runs, served)]
    found = merge_stepwise_output(with_ids(skyrl(runs, stepwise=True, report=ExportReport())))
    pairs = zip(found["prompt_token_ids"], found["response_ids"], strict=True)
    assert [[*prompt, *response] for prompt, response in pairs] == [row.ids for row in rows]
    assert found["loss_masks"] == [row.mask[row.prompt_length :] for row in rows]
    assert found["rollout_logprobs"] == [row.logprobs[row.prompt_length :] for row in rows]
    assert found["stop_reasons"] == ["length" if row.finish_reason == "length" else "stop" for row in rows]


@pytest.mark.parametrize("stepwise", [False, True])
def test_skyrls_tensors_have_the_recorded_experts(stepwise: bool) -> None:
    output = with_ids(skyrl(runs(), stepwise=stepwise, report=ExportReport()))
    validate_generator_output(len(output["response_ids"]), output, step_wise=True)
    ids, attention, *_, packed, _ = tensors(output)
    found = [packed.values[begin:end] for begin, end in zip(packed.cu_seqlens, packed.cu_seqlens[1:], strict=False)]
    first = [TURNS[: at + 1] for at in range(len(TURNS))] if stepwise else [TURNS]
    for at, names in enumerate([*first, *RUNS[1:]]):
        read = attention[at].bool()
        assert ids[at][read].tolist() == vllm_extras.ids(*names)
        assert found[at][:-1].tolist() == vllm_extras.experts(*names).tolist()


def test_skyrl_merges_no_rows_with_experts() -> None:
    """As docs/train-skyrl.md says."""
    with pytest.raises(AssertionError, match="rollout_expert_indices not supported"):
        merge_stepwise_output(with_ids(skyrl(runs(), stepwise=True, report=ExportReport())))


@pytest.mark.parametrize("failed", ["mask", "mask_group"])
def test_its_validator_takes_masked_rows(failed: Any) -> None:
    made = recorded.tool_agent() + recorded.failed_steps()
    output = with_ids(skyrl(made, failed=failed, report=ExportReport()))
    validate_generator_output(len(output["response_ids"]), output, step_wise=True)
    assert [sum(mask) == 0 for mask in output["loss_masks"]] == [False] * 6 + [True]


def trained(output: Any, prompts: int, *, stepwise: bool = False, per_prompt: int = 1) -> Any:
    """What the trainer makes of a generator's output: checked, with rewards by token, and as tensors."""
    trainer = make_trainer(prompts, stepwise=stepwise, per_prompt=per_prompt)
    given = with_ids(output)
    validate_generator_output(len(given["response_ids"]), given, step_wise=stepwise)
    uids = [one.instance_id for one in given["trajectory_ids"]]
    given, uids = trainer.postprocess_generator_output(given, uids)
    return trainer.convert_to_training_input(given, uids)


def test_the_trainer_takes_runs_in_the_order_in_which_they_end() -> None:
    """A collector writes a run when it is done: those of one prompt do not stand together in its file."""
    made = recorded.tool_agent()
    batch = trained(skyrl([made[at] for at in (0, 3, 1, 4, 2, 5)]), 2, per_prompt=3)
    assert batch.metadata["uids"] == ["add/1"] * 3 + ["add/2"] * 3
    assert batch["loss_mask"].sum().item() == sum(row.loss_mask.sum() for run in made for row in run.sequences())


@pytest.mark.parametrize("stepwise", [False, True])
def test_the_trainer_takes_sub_agents_as_parts_of_their_runs(stepwise: bool) -> None:
    made = recorded.two_agents()
    outer = [run for run in made if run.parent_id is None]
    for at, run in enumerate(outer):
        run.reward = float(at)
    batch = trained(skyrl(made, stepwise=stepwise), 1, stepwise=True, per_prompt=2)
    assert set(batch.metadata["uids"]) == {"pair/1"}
    assert sum(batch.metadata["is_last_step"]) == len(outer)
    assert batch["loss_mask"].sum().item() == sum(row.loss_mask.sum() for run in made for row in run.sequences())
    assert batch["rewards"].sum().item() == 1.0


def test_the_trainer_takes_experts_and_masks() -> None:
    made = [extras.run(), extras.run()]
    made[1].id = "other"
    batch = trained(skyrl(made, report=ExportReport()), 1, per_prompt=2)
    (row,) = made[0].sequences()
    lengths = batch["rollout_expert_indices"].sequence_lengths.tolist()
    assert lengths == [len(row.token_ids)] * 2
    support = batch["rollout_sample_support"]
    assert support.sequence_lengths.tolist() == [len(row.token_ids) - row.prompt_length] * 2
    assert row.sampling_mask is not None
    counts = (support.values >= 0).sum(1)[: len(row.token_ids) - row.prompt_length]
    assert counts.tolist() == row.sampling_mask.counts[row.prompt_length :].tolist()


@pytest.mark.parametrize("most", [255, 300, 40_000])
def test_the_trainer_takes_any_number_of_experts(most: int) -> None:
    run = extras.run()
    shapes = [np.shape(step.routed_experts) for step in run.steps]  # type: ignore[arg-type]
    run.steps = [
        replace(step, routed_experts=np.full(shape, most, np.uint16))
        for step, shape in zip(run.steps, shapes, strict=True)
    ]
    batch = trained(skyrl(run, report=ExportReport()), 1)
    assert batch["rollout_expert_indices"].values[0].unique().tolist() == [most]


def test_the_page_trains_on_what_start_records(tmp_path: Path) -> None:
    record_start(tmp_path / "page")
    read_page("docs/train-skyrl.md", tmp_path / "page", programs, wanted=is_run)
