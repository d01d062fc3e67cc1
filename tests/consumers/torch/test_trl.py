"""TRL's own trainers on CPU: what comes out of their collators is what went in, and a step of training runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from page_blocks import blocks_below
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer
from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences

import rollout_trace as rt
from rollout_trace.export import dataset, trl, trl_dpo, trl_kto, trl_rollout, write_trl
from rollout_trace.report import ExportReport
from rollout_trace.train.groups import groups
from tests.amount import examples
from tests.consumers import exact_runs, recorded
from tests.consumers.torch import tiny
from tests.consumers.traces import Trace, conversation_of, traces, trajectory_of

pytestmark = [  # of the trainers themselves
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]


def settings_of(folder: Path, rows: int, **fields: Any) -> dict[str, Any]:
    """One step on all rows at once, on CPU, that reports to nobody."""
    plain = {"output_dir": str(folder), "use_cpu": True, "report_to": "none", "max_steps": 1, "bf16": False}
    return {**plain, "per_device_train_batch_size": rows, "save_strategy": "no", "disable_tqdm": True, **fields}


def sft(rows: list[dict[str, Any]], folder: Path, **fields: Any) -> Any:
    arguments = SFTConfig(**settings_of(folder, len(rows), **{"max_length": None, **fields}))
    return SFTTrainer(tiny.model(), arguments, train_dataset=Dataset.from_list(rows), processing_class=tiny.tokenizer())


def unpadded(batch: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    lengths = batch["attention_mask"].sum(1).tolist()
    ids, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
    return sorted((one[:length], its[:length]) for one, its, length in zip(ids, labels, lengths, strict=True))


def test_the_sft_collator_gives_the_recorded_ids_and_learns_the_sampled_ones(tmp_path: Path) -> None:
    trajectories = recorded.tool_agent()
    trainer = sft(trl(trajectories), tmp_path)
    (batch,) = trainer.get_train_dataloader()
    expected = []
    for trajectory in trajectories:
        (row,) = trajectory.sequences()
        expected.append((row.token_ids.tolist(), np.where(row.loss_mask == 1, row.token_ids, -100).tolist()))
    assert unpadded(batch) == sorted(expected)
    sampled = [ids[at] for ids, labels in expected for at, label in enumerate(labels) if label != -100]
    spoken = [step.completion_token_ids for one in trajectories for step in one.steps]
    assert sorted(sampled) == sorted(np.concatenate(spoken).tolist())  # type: ignore[arg-type]


def test_the_sft_loss_is_the_mean_over_the_sampled_tokens(tmp_path: Path) -> None:
    trajectories = recorded.tool_agent()
    trainer = sft(trl(trajectories), tmp_path)
    negative = []
    for trajectory in trajectories:
        (row,) = trajectory.sequences()
        ids = torch.tensor(row.token_ids.tolist())
        with torch.no_grad():
            scores = tiny.model()(ids[None]).logits[0].log_softmax(-1)
        negative += [-scores[at - 1, ids[at]].item() for at in np.flatnonzero(row.loss_mask)]
    assert trainer.train().training_loss == pytest.approx(np.mean(negative), rel=1e-5)


def test_sft_packs_the_rows_and_leaves_the_other_columns_alone(tmp_path: Path) -> None:
    trajectories = recorded.tool_agent()
    rows = trl(trajectories)
    trainer = sft(rows, tmp_path, packing=True, max_length=4096)
    assert sorted(trainer.train_dataset[0]["input_ids"]) == sorted(
        chain.from_iterable(row["input_ids"] for row in rows)
    )
    assert torch.isfinite(torch.tensor(trainer.train().training_loss))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_written_file_is_the_same_dataset(tmp_path: Path, suffix: str) -> None:
    trajectories = recorded.tool_agent() + recorded.forked()
    path = tmp_path / f"rows{suffix}"
    rows = trl(trajectories)
    assert write_trl(path, trajectories) == len(rows)
    kind = "json" if suffix == ".jsonl" else "parquet"
    found = load_dataset(kind, data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
    assert found.to_list() == rows


def replayed(trajectories: list[rt.Trajectory], folder: Path, **options: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    """A GRPO trainer that was given recorded rollouts: itself, the batch it made, and what its reward function saw."""
    seen: list[Any] = []
    batches: list[dict[str, Any]] = []
    generations = len(trajectories) // len(groups(trajectories))
    prompts = [{"prompt": f"task {group.id}"} for group in groups(trajectories)]

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        order = list(dict.fromkeys(prompts))
        by_task = {f"task {group.id}": group.trajectories for group in groups(trajectories)}
        return trl_rollout([run for prompt in order for run in by_task[prompt]], **options)

    def recorded_reward(reward: list[float | None], **others: Any) -> list[float | None]:
        seen.append((reward, others))
        return reward

    class Watched(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batches.append(super()._generate_and_score_completions(inputs))
            return batches[-1]

    arguments = GRPOConfig(**settings_of(folder, len(trajectories), num_generations=generations, beta=0.0))
    trainer = Watched(
        tiny.model(),
        recorded_reward,
        args=arguments,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tiny.tokenizer(),
        rollout_func=rollout,
    )
    trainer.train()
    return trainer, batches[0], seen


def test_grpo_trains_on_recorded_rollouts(tmp_path: Path) -> None:
    trajectories = recorded.tool_agent()
    trainer, batch, seen = replayed(trajectories, tmp_path)
    (rewards, others), *_ = seen
    order = [next(one for one in trajectories if one.id == name) for name in others["trajectory_id"]]
    assert rewards == [trajectory.reward for trajectory in order]
    for at, trajectory in enumerate(order):
        (row,) = trajectory.sequences()
        prompt, prompt_mask = batch["prompt_ids"][at], batch["prompt_mask"][at].bool()
        completion, mask = batch["completion_ids"][at], batch["completion_mask"][at].bool()
        assert [*prompt[prompt_mask].tolist(), *completion[mask].tolist()] == row.token_ids.tolist()
        assert batch["tool_mask"][at][mask].tolist() == row.loss_mask[row.prompt_length :].tolist()
        logprobs = batch["sampling_per_token_logps"][at][mask].numpy()
        assert row.logprobs is not None
        assert np.array_equal(logprobs, row.logprobs[row.prompt_length :])
    advantages = {
        run.id: value
        for group in groups(trajectories)
        for run, value in zip(group.trajectories, group.advantages(), strict=True)
    }
    assert batch["advantages"].tolist() == pytest.approx([advantages[one.id] for one in order], abs=1e-5)
    assert trainer.state.global_step == 1


def test_grpo_trains_on_the_ids_that_exact_turns_were_served(tmp_path: Path) -> None:
    runs, served = exact_runs.record()
    outermost = [run for run in runs if run.parent_id is None]
    _, batch, ((rewards, others), *_) = replayed(outermost, tmp_path, several="longest", report=ExportReport())
    names = {run.id: str(run.name) for run in runs}
    for at, name in enumerate(map(names.__getitem__, others["trajectory_id"])):
        row = max(served[name], key=lambda one: sum(one.mask))
        prompt, prompt_mask = batch["prompt_ids"][at], batch["prompt_mask"][at].bool()
        completion, mask = batch["completion_ids"][at], batch["completion_mask"][at].bool()
        assert prompt[prompt_mask].tolist() == row.ids[: row.prompt_length]
        assert completion[mask].tolist() == row.ids[row.prompt_length :]
        assert batch["tool_mask"][at][mask].tolist() == row.mask[row.prompt_length :]
        assert batch["sampling_per_token_logps"][at][mask].tolist() == row.logprobs[row.prompt_length :]
    assert dict(zip(others["trajectory_id"], rewards, strict=True)) == {run.id: run.reward for run in outermost}


def test_sft_learns_what_exact_turns_sampled(tmp_path: Path) -> None:
    runs, served = exact_runs.record()
    rows = [row for _, row in exact_runs.expected(runs, served)]
    (batch,) = sft(trl(runs), tmp_path).get_train_dataloader()
    labels = [[one if sampled else -100 for one, sampled in zip(row.ids, row.mask, strict=True)] for row in rows]
    assert unpadded(batch) == sorted(zip([row.ids for row in rows], labels, strict=True))


def test_trls_asynchronous_worker_makes_the_same_rows_of_exact_turns() -> None:
    runs, served = exact_runs.record()
    for run in runs:
        turns = [TurnRecord(*turn) for row in served[str(run.name)] for turn in row.turns]
        expected, _ = _chain_to_sequences(turns, ("rollout", 0), 0)  # type: ignore[arg-type, unused-ignore]
        found = [(row["input_ids"], [int(label != -100) for label in row["labels"]]) for row in trl(run)]
        assert found == [(one.input_ids, one.completion_mask) for one in expected]


def test_the_page_replays_recorded_runs(tmp_path: Path) -> None:
    """Its block on replay: the group's own runs for each task, also where tasks differ in their environment alone."""
    trajectories = recorded.tool_agent()
    same = trajectories[0].steps[0].messages
    for one in trajectories:
        one.steps[0] = replace(one.steps[0], messages=same)
    with rt.JSONLWriter(tmp_path / "rollouts.jsonl") as out:
        for one in trajectories:
            out.write(one)
    seen: list[Any] = []

    (block,) = [one for one in blocks_below("docs/train-trl.md", "GRPO on recorded runs") if "def replay" in one.text]
    code = block.text
    for shown, here in (
        ('"rollouts.jsonl"', repr(str(tmp_path / "rollouts.jsonl"))),
        ('"trained"', repr(str(tmp_path / "trained"))),
        ("num_generations=4, per_device_train_batch_size=8", "num_generations=3, per_device_train_batch_size=6"),
        (
            "    return reward\n",
            "    seen.append((others['trajectory_id'], others['trajectory_ids'], reward)); return reward\n",
        ),
    ):
        assert shown in code
        code = code.replace(shown, here)
    exec(code, {"seen": seen})
    (ids, of_group, rewards), *_ = seen
    by_id = {run.id: run for run in trajectories}
    assert sorted(ids) == sorted(by_id)
    assert all(one in group for one, group in zip(ids, of_group, strict=True))
    assert rewards == [by_id[one].reward for one in ids]


def test_spans_of_versions_reach_the_reward_functions(tmp_path: Path) -> None:
    """In positions of the completion that TRL trains on."""
    trajectories = recorded.annotated()
    _, batch, seen = replayed(trajectories, tmp_path, report=ExportReport())
    (_, others), *_ = seen
    for at, spans in enumerate(others["policy_spans"]):
        mask = batch["completion_mask"][at].bool()
        sampled = batch["tool_mask"][at][mask].bool()
        found = [any(begin <= place < end for begin, end, _ in spans) for place in range(len(sampled))]
        assert found == sampled.tolist()
        assert {version for *_, version in spans} == {7}


def test_grpo_leaves_an_unscored_rollout_out_of_the_baseline(tmp_path: Path) -> None:
    trajectories = recorded.unscored()
    _, batch, ((rewards, others), *_) = replayed(trajectories, tmp_path)
    assert rewards.count(None) == 2
    advantages = {
        run.id: value or 0.0
        for group in groups(trajectories)
        for run, value in zip(group.trajectories, group.advantages(), strict=True)
    }
    expected = [advantages[name] for name in others["trajectory_id"]]
    assert batch["advantages"].tolist() == pytest.approx(expected, abs=1e-5)


def in_parts() -> list[rt.Trajectory]:
    """Runs of an agent that sends contents in parts of text, as smolagents and Strands do."""
    found = recorded.tool_agent()
    for run in found:
        run.steps = [replace(step, messages=[parted(message) for message in step.messages or ()]) for step in run.steps]
    return found


def parted(message: Any) -> Any:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}]} if message["role"] != "assistant" else message


@pytest.mark.parametrize("made", [recorded.tool_agent, in_parts])
def test_dpo_trains_on_the_best_over_the_worst_run(tmp_path: Path, made: Any) -> None:
    rows = trl_dpo(made())
    assert rows == trl_dpo(recorded.tool_agent())
    arguments = DPOConfig(**settings_of(tmp_path, len(rows), max_length=None))
    data, reader = dataset(rows), tiny.tokenizer()
    trainer = DPOTrainer(tiny.model(), tiny.model(), arguments, train_dataset=data, processing_class=reader)
    for row, seen in zip(rows, trainer.train_dataset, strict=True):
        for name in ("chosen", "rejected"):
            text = reader.apply_chat_template([*row["prompt"], *row[name]], tokenize=False)
            assert reader.decode([*seen["prompt_ids"], *seen[f"{name}_ids"]]) == text
    assert trainer.train().training_loss == pytest.approx(np.log(2), abs=1e-4)  # the reference is the model itself


def test_kto_trains_on_labelled_runs(tmp_path: Path) -> None:
    rows = trl_kto(recorded.tool_agent(), threshold=0.5)
    arguments = KTOConfig(**settings_of(tmp_path, len(rows), max_length=None))
    data, reader = dataset(rows), tiny.tokenizer()
    trainer = KTOTrainer(tiny.model(), tiny.model(), arguments, train_dataset=data, processing_class=reader)
    assert [bool(one["label"]) for one in trainer.train_dataset] == [True, False, True, False, True, True]
    for row, seen in zip(rows, trainer.train_dataset, strict=True):
        text = reader.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
        assert reader.decode([*seen["prompt_ids"], *seen["completion_ids"]]) == text
    assert np.isfinite(trainer.train().training_loss)


@settings(max_examples=examples(2000))
@given(traces())
def test_sequences_are_those_of_trls_asynchronous_worker(trace: Trace) -> None:
    """Its ``fork_threshold`` of 0 mends no drift: prompts that are not extended begin a row."""
    turns = [TurnRecord(prompt, completion, logprobs) for prompt, completion, logprobs in trace]
    expected, tally = _chain_to_sequences(turns, ("rollout", 0), 0)  # type: ignore[arg-type, unused-ignore]
    rows = trajectory_of(trace).sequences(linear=True)
    assert [row.token_ids.tolist() for row in rows] == [one.input_ids for one in expected]
    assert [row.loss_mask.tolist() for row in rows] == [one.completion_mask for one in expected]
    assert [row.logprobs.tolist() for row in rows] == [one.old_log_probs for one in expected]  # type: ignore[union-attr]
    assert len(rows) == tally["fork"] + bool(turns)


def in_conversation(trace: Trace) -> Trace:
    """The turns of which the prompt leaves the answer before it inside, or not at all: where TRL, too, loses no answer
    whole, as it does with each prompt that is sent twice."""
    kept: Trace = []
    for turn in trace:
        before, answer, _ = kept[-1] if kept else ([], [], [])
        if not kept or turn[0][: len(before) + 1] == [*before, answer[0]] or turn[0][: len(before)] != before:
            kept.append(turn)
    return kept


@settings(max_examples=examples(2000))
@given(traces().map(in_conversation), st.integers(0, 5))
def test_masked_drift_is_that_of_trls_asynchronous_worker(trace: Trace, within: int) -> None:
    """Its ``fork_threshold`` is the first number of tokens that is too many; its turns are one conversation."""
    turns = [TurnRecord(prompt, completion, logprobs) for prompt, completion, logprobs in trace]
    expected, tally = _chain_to_sequences(turns, ("rollout", 0), within + 1)  # type: ignore[arg-type, unused-ignore]
    rows = conversation_of(trace).sequences(linear=True, on_drift="mask", within=within)
    assert [row.token_ids.tolist() for row in rows] == [one.input_ids for one in expected]
    assert [row.loss_mask.tolist() for row in rows] == [one.completion_mask for one in expected]
    assert [row.logprobs.tolist() for row in rows] == [one.old_log_probs for one in expected]  # type: ignore[union-attr]
    assert len(rows.report.masked) == tally["realign"]
