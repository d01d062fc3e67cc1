"""Blocks of docs/training.md and of the trainers' pages that need PyTorch alone; test_pages.py runs whole programs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from page_blocks import blocks_of, run_block, run_blocks

import rollout_trace as rt
from rollout_trace import export
from tests.consumers import recorded

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]


def test_verl() -> None:
    advantages = np.array([0.5, -0.5], dtype=object)
    batch = SimpleNamespace(batch={"response_mask": torch.ones(2, 3)}, non_tensor_batch={"advantage": advantages})
    run_blocks("docs/train-verl.md", "Rows: `export.verl`", torch=torch, batch=batch)
    assert batch.batch["advantages"].tolist() == [[0.5] * 3, [-0.5] * 3]


def test_nemo_rl() -> None:
    names = {"export": export, "torch": torch, "np": np, "trajectories": recorded.tool_agent()}
    data = run_blocks("docs/train-others.md", "Rows for NeMo-RL", **names)["data"]
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
