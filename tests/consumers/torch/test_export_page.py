"""Blocks of docs/export.md and docs/training.md that need PyTorch, TRL or verl; test_trl.py replays its own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from page_blocks import blocks_below, blocks_of, run_block, run_blocks
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTTrainer

import rollout_trace as rt
from rollout_trace import export
from tests.consumers import recorded
from tests.consumers.torch import test_verl as of_verl
from tests.consumers.torch import tiny
from tests.consumers.torch.test_trl import settings_of

EXPORT = "docs/export.md"
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]


def test_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers are made with the page's arguments; that they train is in test_trl.py."""
    monkeypatch.chdir(tmp_path)
    runs = recorded.tool_agent()
    with rt.JSONLWriter("rollouts.jsonl") as out:
        for one in runs:
            out.write(one)
    tokenizer = tiny.tokenizer()

    def made(trainer: Any) -> Any:
        return lambda *given, **more: trainer(*given, **{"processing_class": tokenizer, **more})

    def sft(folder: str, **fields: Any) -> Any:
        from trl import SFTConfig

        return SFTConfig(**settings_of(tmp_path, 3, **fields))

    names: dict[str, Any] = {
        "SFTTrainer": made(SFTTrainer), "SFTConfig": sft, "GRPOTrainer": made(GRPOTrainer), "tokenizer": tokenizer,
        "itertools": itertools, "model": tiny.model(), "trajectories": runs, "run_my_agent": lambda prompt: runs[0],
        "prompts": export.dataset(export.trl_prompts(runs)),
        "config": GRPOConfig(**settings_of(tmp_path, 6, num_generations=3)),
        "DPOTrainer": lambda *given, **more: DPOTrainer(*given, ref_model=tiny.model(), **more),
    }  # fmt: skip
    for block in blocks_below(EXPORT, "TRL: "):
        if "DPOTrainer" in block.text:
            names["config"] = DPOConfig(**settings_of(tmp_path, 2))
        run_block(block, names)
    assert names["rollout"](["a"], None)["prompt_ids"]


def test_verl() -> None:
    names: dict[str, Any] = {"export": export, "torch": torch, "AgentLoopOutput": vars(of_verl)["AgentLoopOutput"]}
    advantages = np.array([0.5, -0.5], dtype=object)
    names["batch"] = SimpleNamespace(
        batch={"response_mask": torch.ones(2, 3)}, non_tensor_batch={"advantage": advantages}
    )
    found = run_blocks(EXPORT, "verl: ", trajectory=recorded.tool_agent()[0], **names)
    assert len(found["outputs"]) == 1
    assert found["batch"].batch["advantages"].tolist() == [[0.5] * 3, [-0.5] * 3]


def test_nemo_rl() -> None:
    names = {"export": export, "torch": torch, "np": np, "trajectories": recorded.tool_agent()}
    data = run_blocks(EXPORT, "NeMo-RL", **names)["data"]
    assert isinstance(data[0]["message_log"][0]["token_ids"], torch.Tensor)


def test_a_replayed_mask() -> None:
    """Where every token could be sampled, the ratio of a policy to itself is 1."""
    (block,) = [one for one in blocks_of("docs/training.md") if "torch.log_softmax" in one.text]
    (row,) = recorded.tool_agent()[0].sequences()
    vocabulary = int(row.token_ids.max()) + 1
    logits = torch.zeros(len(row.token_ids), vocabulary)
    counts = np.where(row.loss_mask == 1, vocabulary, 0).astype(np.int32)
    ids = np.tile(np.arange(vocabulary, dtype=np.int32), int(row.loss_mask.sum()))
    uniform = np.full(len(row.token_ids), -np.log(vocabulary), np.float32)
    row = replace(
        row,
        sampling_mask=rt.SamplingMask(counts=counts, ids=ids),
        logprobs=uniform,
        temperatures=(1.0,) * len(row.step_ids),
    )
    names: dict[str, Any] = {"np": np, "torch": torch, "row": row, "logits": logits}
    run_block(block, names)
    assert abs(float(names["ratio"]) - 1) < 1e-5
