"""What vLLM recorded of its tokens is what a plain forward pass of the same model gives, at the positions we say."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.consumers import vllm_extras
from tests.consumers.recorded import DATA
from tests.train.test_drift import recorded

pytestmark = pytest.mark.filterwarnings("default")  # of transformers


CHANGING = {"logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"}
"""Fields of requests that change probabilities, not only which tokens can be sampled."""


@cache
def dense() -> Any:
    """The model of the ``dense_*`` recordings."""
    return AutoModelForCausalLM.from_pretrained(DATA / "tiny-model", dtype=torch.float32).eval()


@cache
def mixture() -> Any:
    """The model of the ``moe_*`` and ``mask_*`` recordings: random weights of this seed."""
    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        mlp_only_layers=[],
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=2041,
        pad_token_id=2039,
        rms_norm_eps=1e-6,
        use_sliding_window=False,
    )
    return Qwen3MoeForCausalLM(config).to(torch.float32).eval()


def names(prefix: str, field: str) -> list[str]:
    """Recordings with this prefix whose first step has this extra."""
    found = [name for name, one in vllm_extras.exchanges().items() if name.startswith(prefix) and one.status == 200]
    return [name for name in found if any(getattr(step, field) is not None for step in vllm_extras.steps(name))]


def tokens_of(step: Any) -> list[int]:
    return [*step.prompt_token_ids.tolist(), *step.completion_token_ids.tolist()]


@cache
def routed(tokens: tuple[int, ...]) -> Any:
    """[tokens, layers, k]: the experts of each token by descending score, and the raw logprobs [tokens, vocabulary]."""
    with torch.no_grad():
        out = mixture()(torch.tensor([tokens]), output_router_logits=True)
    scores = torch.stack([layer.reshape(len(tokens), -1) for layer in out.router_logits], 1)
    return scores.topk(2, -1).indices.numpy(), out.logits[0]


def test_every_recorded_expert_is_the_models() -> None:
    compared = 0
    for name in names("moe_", "routed_experts") + names("mask_", "routed_experts"):
        (step,) = vllm_extras.steps(name)
        experts, _ = routed(tuple(tokens_of(step)))
        rows = step.routed_experts
        end = len(tokens_of(step)) - 1
        assert rows is not None
        assert np.array_equal(rows, experts[end - len(rows) : end]), name
        compared += len(rows)
    assert compared > 5000


def test_a_row_of_several_turns_has_the_models_experts() -> None:
    (row,) = vllm_extras.trajectory(*vllm_extras.TURNS).sequences()
    experts, _ = routed(tuple(row.token_ids.tolist()))
    assert row.routed_experts is not None
    assert row.routed_experts_mask is not None
    assert row.routed_experts_mask.tolist() == [1] * (len(row.token_ids) - 1) + [0]
    assert np.array_equal(row.routed_experts[:-1], experts[:-1])


@pytest.mark.parametrize("name", ["dense_chat_plp5", "dense_comp_plp5", "dense_gen_plp5"])
def test_logprobs_of_prompts_and_top_tokens_are_the_models(name: str) -> None:
    (step,) = vllm_extras.steps(name)
    with torch.no_grad():
        scores = torch.log_softmax(dense()(torch.tensor([tokens_of(step)])).logits[0], -1).numpy()
    prompt = step.prompt_token_ids
    assert prompt is not None
    assert step.prompt_logprobs is not None
    assert step.prompt_top_tokens is not None
    assert np.isnan(step.prompt_logprobs[0])
    for at in range(1, len(prompt)):
        assert abs(step.prompt_logprobs[at] - scores[at - 1, prompt[at]]) < 1e-5
        tops = step.prompt_top_tokens
        listed = tops.ids[at] >= 0
        assert np.abs(tops.logprobs[at][listed] - scores[at - 1, tops.ids[at][listed]]).max() < 1e-5
        assert set(np.argsort(-scores[at - 1])[:5].tolist()) <= set(tops.ids[at][listed].tolist())


def test_top_tokens_of_completions_are_the_models() -> None:
    compared = 0
    for name in names("dense_", "top_tokens"):
        if "shape" in name or "spec" in name:
            continue
        for step in vllm_extras.steps(name):
            assert step.top_tokens is not None
            tokens = tokens_of(step)
            with torch.no_grad():
                scores = torch.log_softmax(dense()(torch.tensor([tokens])).logits[0], -1).numpy()
            start = len(tokens) - len(step.top_tokens)
            for at, (ids, values) in enumerate(zip(step.top_tokens.ids, step.top_tokens.logprobs, strict=True)):
                listed = ids >= 0
                assert np.abs(values[listed] - scores[start + at - 1, ids[listed]]).max() < 1e-4, name
                compared += int(listed.sum())
    assert compared > 100


def test_masks_hold_every_sampled_id_and_give_its_logprob() -> None:
    compared = 0
    for name in names("mask_gen_", "sampling_mask"):
        (step,) = vllm_extras.steps(name)
        mask, ids = step.sampling_mask, step.completion_token_ids
        assert mask is not None
        assert ids is not None
        assert len(mask) == len(ids)
        assert all(token in kept for token, kept in zip(ids, mask, strict=True)), name
        request = json.loads(vllm_extras.exchanges()[name].request)["sampling_params"]
        if step.logprobs is None or CHANGING & set(request):
            continue
        _, logits = routed(tuple(tokens_of(step)))
        start = len(tokens_of(step)) - len(ids)
        for at, (token, kept) in enumerate(zip(ids, mask, strict=True)):
            scores = logits[start + at - 1] / request.get("temperature", 1.0)
            among = torch.log_softmax(scores[torch.tensor(kept)], -1)
            assert abs(float(among[list(kept).index(token)]) - step.logprobs[at]) < 1e-4, name
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("name", ["multiturn_sampled", "multiturn_greedy"])
def test_ratios_of_a_row_over_masked_drift_are_1(name: str) -> None:
    """Of all that keeps mask 1. The sampled tokens that lost it would not have been, in the place of the row's."""
    run = recorded(name)
    (row,) = (rows := run.sequences(on_drift="mask", within=24))
    assert len(run.sequences()) == 3
    assert row.logprobs is not None
    sampled = row.loss_mask == 1
    assert sampled.sum() == 3 * 24 - sum(rows.report.masked.values())
    assert np.abs(np.exp(scored(row.token_ids) - row.logprobs) - 1)[sampled].max() < 1e-3
    before, after = run.steps[:2]
    assert before.prompt_token_ids is not None
    assert before.completion_token_ids is not None
    assert after.prompt_token_ids is not None
    assert after.completion_token_ids is not None
    assert after.logprobs is not None
    # Had the row the sampled ids, the next completion were behind a prefix that its model did not read.
    kept = np.concatenate([before.prompt_token_ids, before.completion_token_ids, after.prompt_token_ids[-20:]])
    whole = np.concatenate([kept, after.completion_token_ids])
    assert np.abs(np.exp(scored(whole)[len(kept) :] - after.logprobs) - 1).max() > 0.01


def scored(ids: Any) -> Any:
    """The model's logprob of each id given those before it; 0.0 of the first."""
    with torch.no_grad():
        scores = torch.log_softmax(dense()(torch.tensor(ids[None], dtype=torch.int64)).logits[0], -1).numpy()
    return np.concatenate([[0.0], scores[np.arange(len(ids) - 1), ids[1:]]])
