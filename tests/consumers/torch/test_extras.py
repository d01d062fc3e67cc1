"""Recorded experts and masks in the tensors of trainers that are on no index: slime and NeMo-RL."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from rollout_trace import export
from rollout_trace.report import ExportReport
from tests.consumers import vllm_extras
from tests.consumers.vllm_extras import RUNS, TURNS, runs


def test_slimes_arrays_become_its_tensors() -> None:
    """slime is on no index; these are the conversions and checks of slime/utils/types.py and slime/ray/rollout.py."""
    for sample, names in zip(export.slime(runs(), report=ExportReport()), RUNS, strict=True):
        experts = torch.as_tensor(sample["rollout_routed_experts"])
        assert experts.dtype == torch.int32
        assert experts.tolist() == vllm_extras.experts(*names).tolist()
        assert experts.shape[0] == len(sample["tokens"]) - 1
        if names == TURNS:
            continue
        offsets = torch.as_tensor(sample["rollout_top_p_token_offsets"], dtype=torch.int32).reshape(-1)
        kept = torch.as_tensor(sample["rollout_top_p_token_ids"], dtype=torch.int32).reshape(-1)
        assert offsets.numel() == sample["response_length"] + 1
        assert int(offsets[-1]) == kept.numel()
        spans = [kept[begin:end].tolist() for begin, end in pairwise(offsets)]
        assert spans == vllm_extras.mask(*names)


def tensor(value: Any) -> Any:
    """The conversion that the documentation names."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def test_nemo_rls_logs_become_tensors_of_one_batch() -> None:
    """NeMo-RL is on no index: `torch.cat` of each message's tensors is what nemo_rl/data/llm_message_utils.py does."""
    rows = export.nemo_rl(runs(), report=ExportReport())
    widths = set()
    for row, names in zip(rows, RUNS, strict=True):
        log = [
            {
                name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                for name, value in message.items()
            }
            for message in row["message_log"]
        ]
        assert torch.cat([message["token_ids"] for message in log]).tolist() == vllm_extras.ids(*names)
        experts = torch.cat([message["routed_experts"] for message in log])
        assert experts.dtype == torch.int16
        assert experts[:-1].tolist() == vllm_extras.experts(*names).tolist()
        assert (experts[-1] == -1).all()
        if names == TURNS:
            continue
        answer = log[-1]
        assert answer["sampling_mask_token_ids"].dtype == answer["sampling_mask_sizes"].dtype == torch.int32
        widths.add(answer["sampling_mask_token_ids"].shape[1])
        found = zip(answer["sampling_mask_token_ids"].tolist(), answer["sampling_mask_sizes"].tolist(), strict=True)
        assert [kept[:size] for kept, size in found] == vllm_extras.mask(*names)
    assert widths == {max(len(kept) for name in vllm_extras.MASKS for kept in vllm_extras.mask(name))}
