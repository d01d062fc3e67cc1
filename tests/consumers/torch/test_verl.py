"""verl's own classes: tensors of AgentLoopOutput, the batch its agent loop makes of them, its dataset of prompts."""

from __future__ import annotations

import asyncio
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from omegaconf import OmegaConf

import rollout_trace as rt
from rollout_trace.export import verl, verl_prompts, write_verl_prompts
from rollout_trace.report import ExportReport
from rollout_trace.train.groups import groups
from tests.amount import examples
from tests.consumers import exact_runs, recorded, vllm_extras
from tests.consumers.torch import tiny
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.consumers.vllm_extras import RUNS, runs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

pytestmark = pytest.mark.filterwarnings("default")  # of verl itself


def batch_of(rows: list[dict[str, Any]]) -> DataProto:
    """What verl's agent loop worker makes of its outputs: padded, masked, rewarded. It is not started: no ray here."""
    worker: Any = object.__new__(AgentLoopWorker)
    worker.tokenizer, worker.processor = tiny.tokenizer(), None
    longest = {half: max(len(row[f"{half}_ids"]) for row in rows) for half in ("prompt", "response")}
    worker.rollout_config = OmegaConf.create({f"{half}_length": length + 3 for half, length in longest.items()})
    worker.reward_loop_worker_handles, worker.distillation_enabled, worker.mm_processor_kwargs = None, False, {}

    async def all_of_them() -> list[Any]:
        outputs = [AgentLoopOutput(**row) for row in rows]
        return [await worker._agent_loop_postprocess(output, False, raw_prompt=None) for output in outputs]

    return cast(DataProto, worker._postprocess(asyncio.run(all_of_them())))


def same(trajectories: list[rt.Trajectory], batch: DataProto) -> None:
    rows = [(trajectory, row) for trajectory in trajectories for row in trajectory.sequences()]
    assert len(batch) == len(rows)
    for at, (trajectory, row) in enumerate(rows):
        one = batch.batch[at]
        read = one["attention_mask"].bool()
        cut, width = row.prompt_length, one["prompts"].shape[0]
        assert one["input_ids"][read].tolist() == row.token_ids.tolist()
        assert one["prompts"][read[:width]].tolist() == row.token_ids[:cut].tolist()
        answered = read[width:]
        assert one["responses"][answered].tolist() == row.token_ids[cut:].tolist()
        assert one["response_mask"][answered].tolist() == row.loss_mask[cut:].tolist()
        assert not one["response_mask"][~answered].any()
        assert row.logprobs is not None
        assert np.array_equal(one["rollout_log_probs"][answered].numpy(), row.logprobs[cut:])
        assert one["rm_scores"].sum().item() == trajectory.reward
        assert one["rm_scores"][answered][-1].item() == trajectory.reward
        assert batch.non_tensor_batch["__num_turns__"][at] == 2 * len(row.step_ids)
        assert batch.non_tensor_batch["trajectory_id"][at] == trajectory.id
        assert batch.non_tensor_batch["group_id"][at] == trajectory.group_id


@pytest.mark.parametrize("made", [recorded.tool_agent, recorded.interleaved, recorded.forked, recorded.failed_steps])
def test_the_batch_has_the_recorded_tokens(made: Any) -> None:
    trajectories = made()
    same(trajectories, batch_of(verl(trajectories)))


def test_the_batch_has_the_ids_that_exact_turns_were_served() -> None:
    runs, served = exact_runs.record()
    batch = batch_of(verl(runs, report=ExportReport()))
    rows = exact_runs.expected(runs, served)
    assert len(batch) == len(rows)
    for at, (run, row) in enumerate(rows):
        one = batch.batch[at]
        read = one["attention_mask"].bool()
        cut, width = row.prompt_length, one["prompts"].shape[0]
        answered = read[width:]
        assert one["prompts"][read[:width]].tolist() == row.ids[:cut]
        assert one["responses"][answered].tolist() == row.ids[cut:]
        assert one["input_ids"][read].tolist() == row.ids
        assert one["response_mask"][answered].tolist() == row.mask[cut:]
        assert one["rollout_log_probs"][answered].tolist() == row.logprobs[cut:]
        assert one["rm_scores"].sum().item() == run.reward
        assert batch.non_tensor_batch["__num_turns__"][at] == 2 * len(row.turns)
        assert batch.non_tensor_batch["trajectory_id"][at] == run.id


def test_the_batch_survives_verls_own_file(tmp_path: Path) -> None:
    trajectories = recorded.tool_agent()
    batch_of(verl(trajectories)).save_to_disk(str(tmp_path / "batch"))
    same(trajectories, DataProto.load_from_disk(str(tmp_path / "batch")))


def test_verls_advantages_are_those_of_the_groups() -> None:
    trajectories = recorded.tool_agent()
    batch = batch_of(verl(trajectories))
    found, _ = compute_grpo_outcome_advantage(
        batch.batch["rm_scores"], batch.batch["response_mask"], batch.non_tensor_batch["group_id"], epsilon=1e-6
    )
    expected = [value for group in groups(trajectories) for value in group.advantages(eps=1e-6)]
    for advantages, mask, value in zip(found, batch.batch["response_mask"].bool(), expected, strict=True):
        assert advantages[mask].tolist() == pytest.approx([value] * int(mask.sum()), abs=1e-5)
        assert not advantages[~mask].any()


def test_what_was_annotated_is_in_the_batch() -> None:
    batch = batch_of(verl(recorded.annotated(), report=ExportReport())).non_tensor_batch
    assert batch["turn_scores"].tolist() == [[0.0, 0.5, 1.0]] * 6
    assert (batch["correct"].tolist(), batch["short"].tolist()) == ([1.0] * 6, [0.125] * 6)
    assert (batch["min_global_steps"].tolist(), batch["max_global_steps"].tolist()) == ([7] * 6, [7] * 6)


@settings(max_examples=examples(500))
@given(traces())
def test_tensors_of_any_trace(trace: Trace) -> None:
    trajectory = trajectory_of(trace, reward=0.5)
    rows = trajectory.sequences()
    for row, output in zip(rows, verl(trajectory), strict=True):
        found = AgentLoopOutput(**output).as_dict()
        assert torch.cat([found["prompts"], found["responses"]]).tolist() == row.token_ids.tolist()
        assert [0] * row.prompt_length + found["response_mask"].tolist() == row.loss_mask.tolist()
        assert row.logprobs is not None
        assert np.array_equal(found["rollout_log_probs"].numpy(), row.logprobs[row.prompt_length :])
        assert found["rm_scores"].tolist() == [*[0.0] * (len(found["responses"]) - 1), 0.5]


def test_runs_that_were_not_scored_have_no_scores() -> None:
    runs = [run for run in recorded.unscored() if run.reward is None]
    assert not any("rm_scores" in AgentLoopOutput(**row).as_dict() for row in verl(runs))


def test_a_run_that_was_not_scored_costs_the_others_no_column() -> None:
    runs = recorded.unscored()
    same([run for run in runs if run.reward is not None], batch_of(verl(runs, report=ExportReport())))


def test_a_row_without_logprobs_or_a_name_breaks_no_batch() -> None:
    """verl joins the columns of the first row; one that the others lack raises there."""
    runs = recorded.tool_agent()
    runs[3].steps = [replace(step, logprobs=None) for step in runs[3].steps]
    runs[0].rewards, runs[1].rewards = {"correct": 1.0}, {"correct": 1.0, "short": 0.5}
    batch = batch_of(verl(runs, report=ExportReport()))
    assert len(batch) == len(runs)
    assert "rollout_log_probs" not in batch.batch
    assert "correct" not in batch.non_tensor_batch


def test_advantages_over_runs_reach_the_batch() -> None:
    """As docs/train-verl.md has it. verl's own count each row: the fork's three rows would be three runs."""
    runs = recorded.forked() + recorded.forked()
    runs[0].group_id = runs[1].group_id = "find/1"
    runs[0].reward, runs[1].reward = 1.0, 0.0
    batch = batch_of(verl(runs, advantages="grpo"))
    value = torch.tensor(batch.non_tensor_batch["advantage"].astype(np.float32))
    batch.batch["advantages"] = value[:, None] * batch.batch["response_mask"]
    expected = [value for group in groups(runs) for value in group.advantages()]
    assert len(batch) == 6
    for at, one in enumerate(batch.batch["advantages"]):
        mask = batch.batch["response_mask"][at].bool()
        assert one[mask].tolist() == pytest.approx([expected[at // 3]] * int(mask.sum()), abs=1e-6)
        assert not one[~mask].any()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_verls_dataset_reads_the_prompts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"prompts{suffix}"
    trajectories = recorded.tool_agent()
    assert write_verl_prompts(path, trajectories, data_source="adding", ability="math", split="test") == 2
    config = OmegaConf.create({"cache_dir": str(tmp_path), "max_prompt_length": 500, "filter_overlong_prompts": True})
    data = RLHFDataset(str(path), tiny.tokenizer(), config)
    rows = [data[at] for at in range(len(data))]
    assert [row["raw_prompt"] for row in rows] == [list(one.steps[0].messages or ()) for one in trajectories[::3]]
    assert [row["index"] for row in rows] == [0, 1]
    assert [json.loads(row["reward_model"]["ground_truth"])["answer"] for row in rows] == [6, 34.5]
    expected = verl_prompts(trajectories, data_source="adding", ability="math", split="test")
    assert [{name: row[name] for name in one} for row, one in zip(rows, expected, strict=True)] == expected
    assert collate_fn(rows)["data_source"].tolist() == ["adding", "adding"]


def test_verls_output_has_the_recorded_experts() -> None:
    rows = verl(runs(), report=ExportReport())
    for row, names in zip(rows, RUNS, strict=True):
        found = AgentLoopOutput(**row).as_dict()["routed_experts"]
        wanted = vllm_extras.experts(*names)
        assert found.dtype == torch.int16
        assert found[:-1].tolist() == wanted.tolist()
        assert not found[-1].any()


def test_verls_batch_has_them_at_the_tokens_they_are_of() -> None:
    batch = batch_of(verl(runs(), report=ExportReport()))
    for at, names in enumerate(RUNS):
        one = batch.batch[at]
        read = one["attention_mask"].bool()
        wanted = vllm_extras.experts(*names)
        assert one["input_ids"][read].tolist() == vllm_extras.ids(*names)
        assert one["routed_experts"][read][:-1].tolist() == wanted.tolist()
        assert not one["routed_experts"][~read].any()
