"""Compares the columns of extras of a row of ``steps`` with their step, bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np

from rollout_trace.data.model import Step


def same_extras(row: dict[str, Any], step: Step) -> None:
    """Asserts that a row, its JSON decoded, has all extras of a step, which must have each."""
    experts = np.array(row["routed_experts"], row["routed_experts_dtype"]).reshape(row["routed_experts_shape"])
    top, prompt, mask, scores = step.top_tokens, step.prompt_top_tokens, step.sampling_mask, step.prompt_logprobs
    assert step.routed_experts is not None
    assert top is not None
    assert prompt is not None
    assert mask is not None
    assert mask.logprobs is not None
    assert scores is not None
    same_bits(experts, step.routed_experts)
    floats = {
        "prompt_logprobs": scores,
        "top_token_logprobs": top.logprobs,
        "prompt_top_token_logprobs": prompt.logprobs,
    }
    for column, array in floats.items():
        same_bits(np.array(row[column], np.float32), array)
    assert row["prompt_logprobs"][0] is None
    assert row["top_token_ids"] == top.ids.tolist()
    assert row["prompt_top_token_ids"] == prompt.ids.tolist()
    assert row["sampling_mask_ids"] == [one.tolist() for one in mask]
    assert list(map(len, row["sampling_mask_logprobs"])) == mask.counts.tolist()
    same_bits(np.array(list(chain(*row["sampling_mask_logprobs"])), np.float32), mask.logprobs)
    spans = [{"begin": one.begin, "end": one.end, "version": str(one.version)} for one in step.policy_spans or ()]
    assert row["policy_spans"] == spans
    assert row["extra"] == step.extra
    assert row["extra_issues"] == [asdict(issue) for issue in step.extra_issues]


def same_bits(found: Any, expected: Any) -> None:
    """Asserts that two arrays are the same: dtype, shape, and every bit."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
