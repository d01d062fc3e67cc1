"""OpenRLHF's own conversion of what executors return into experiences."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest
import torch

from rollout_trace import export
from tests.consumers import recorded
from tests.consumers.modules import skip_init

# vLLM needs a GPU's driver to be imported, and takes no part in the conversion.
for name, attribute in (("vllm", "SamplingParams"), ("openrlhf.trainer.ray.vllm_engine", "batch_vllm_engine_call")):
    module = types.ModuleType(name)
    setattr(module, attribute, None)
    sys.modules[name] = module
skip_init("openrlhf", "openrlhf.trainer", "openrlhf.trainer.ray", "openrlhf.trainer.ppo_utils", "openrlhf.utils")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

pytestmark = pytest.mark.filterwarnings("default")  # of OpenRLHF itself


def test_its_experiences_are_the_sequences() -> None:
    runs = recorded.tool_agent()
    for run in runs:
        run.rewards = {"correct": run.reward or 0.0}
    generator: Any = object.__new__(SamplesGenerator)
    for response, run in zip(export.openrlhf(runs), runs, strict=True):
        found = generator._process_response_into_experience(response, max_len=4096)
        (row,) = run.sequences()
        assert torch.equal(found.sequences[0], torch.from_numpy(row.token_ids.astype("int64")))
        # Of each next token, as its losses shift them.
        assert torch.equal(found.action_mask[0], torch.from_numpy(row.loss_mask[1:].astype("int64")))
        assert row.logprobs is not None
        assert torch.equal(found.rollout_log_probs[0], torch.from_numpy(row.logprobs[1:].copy()))
        assert (found.rewards.item(), found.scores.item()) == (run.reward, run.reward)
        assert found.info["correct"].item() == run.reward
        assert not found.truncated.item()
