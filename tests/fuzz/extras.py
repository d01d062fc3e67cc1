"""Damage to the extras of an answer alone, and what must hold of those of a step whatever the bytes were."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_trace.data.extras import SamplingMask, TopTokens
from rollout_trace.data.model import Step
from tests.fuzz.mutate import damage, junk

_NAMES = frozenset(
    {"prompt_logprobs", "routed_experts", "sampling_mask", "sampling_mask_logprobs", "weight_versions"}
    | {"prompt_token_id_logprobs", "metrics", "system_fingerprint", "mm_placeholders", "kv_transfer_params"}
    | {"input_token_logprobs", "input_top_logprobs", "output_top_logprobs", "hidden_states", "top_logprobs"}
    | {"output_token_sampling_mask", "output_token_sampling_logprobs", "output_token_ids_logprobs"}
    | {f"output_top_logprobs_{name}" for name in ("val_flat", "idx_flat", "val_flat_b64", "shape", "null_prefix")}
    | {f"input_top_logprobs_{name}" for name in ("val_flat_b64", "idx_flat_b64", "shape", "null_prefix")}
)
"""Fields of an answer with extras. None of them changes the ids or logprobs of the completion."""
_CODES = frozenset({"malformed", "not_aligned", "ids_missing"})


def damage_extras(body: bytes, rng: random.Random, *, streamed: bool) -> bytes | None:
    """An answer with one to three of its extras damaged; None where it has none."""
    events = body.split(b"\n\n") if streamed else [body]
    holders: list[tuple[int, Any, str]] = []
    values: list[Any] = []
    for at, event in enumerate(events):
        text = event.partition(b"data: ")[2] if streamed else event
        try:
            value = json.loads(text)
        except ValueError:
            value = None  # [DONE], or the page of an error.
        values.append(value)
        holders += [(at, holder, name) for holder, name in _places(value)]
    if not holders:
        return None
    for at, holder, name in rng.sample(holders, min(len(holders), rng.choice((1, 1, 2, 3)))):
        holder[name] = _damaged(holder[name], rng)
        text = json.dumps(values[at]).encode()
        events[at] = b"data: " + text if streamed else text
    return b"\n\n".join(events)


def _places(value: Any) -> Iterator[tuple[Any, str]]:
    """Objects, and names of extras in them, anywhere in a value."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name in _NAMES and item is not None:
                yield value, name
            else:
                yield from _places(item)
    elif isinstance(value, list):
        for item in value:
            yield from _places(item)


def _damaged(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return junk(rng)
    if isinstance(value, str):
        return _text(value, rng)
    if isinstance(value, list) and value and rng.random() < 0.4:
        at = rng.randrange(len(value))
        return rng.choice((value[:at], value[at:], value + value[at:], [*value[:at], junk(rng), *value[at + 1 :]]))
    # A copy: `damage` changes what it is given, and takes an object or a list.
    return damage({"value": json.loads(json.dumps(value))}, rng).get("value")


def _text(text: str, rng: random.Random) -> str:
    """Base64 with other bytes, or a text that is none."""
    at = rng.randrange(len(text) + 1)
    try:
        data = bytearray(base64.b64decode(text, validate=True))
    except ValueError:
        data = bytearray()
    if not data or rng.random() < 0.3:
        return rng.choice((text[:at], text[at:], text[:at] + "é=*\n"[at % 4] + text[at:], text + text))
    spot = rng.randrange(min(len(data), 140 if rng.random() < 0.6 else len(data)))
    kind = rng.randrange(4)
    if kind == 0:
        data[spot] = rng.randrange(256)
    elif kind == 1:
        del data[spot : spot + rng.randrange(1, 9)]
    elif kind == 2:
        data[spot:spot] = rng.randbytes(rng.randrange(1, 9))
    else:
        # Sizes in the header of a .npy file, far beyond its bytes.
        data = bytearray(bytes(data).replace(b"(", b"(9" * rng.randrange(1, 9), 1))
    return base64.b64encode(data).decode()


def check_extras(step: Step) -> None:
    """Extras that are there are aligned, of their types and in range; those that are not have a known reason."""
    prompt, ids = step.prompt_token_ids, step.completion_token_ids
    _check_length(step.prompt_logprobs, prompt)
    _check_length(step.prompt_top_tokens, prompt)
    _check_length(step.top_tokens, ids)
    _check_length(step.sampling_mask, ids)
    if step.prompt_logprobs is not None:
        assert step.prompt_logprobs.dtype == np.float32
        assert (np.isnan(step.prompt_logprobs) | (step.prompt_logprobs <= 0)).all(), "a prompt logprob is above 0"
    for tops in (step.prompt_top_tokens, step.top_tokens):
        _check_tops(tops)
    _check_mask(step.sampling_mask, ids)
    if step.routed_experts is not None:
        assert prompt is not None
        assert ids is not None
        assert step.routed_experts.ndim == 3
        assert step.routed_experts.dtype in (np.uint8, np.uint16, np.int32)
        assert len(step.routed_experts) <= len(prompt) + len(ids) - 1, "experts of more tokens than there are"
    if step.policy_spans is not None:
        assert ids is not None
        ends = [0, *(span.end for span in step.policy_spans)]
        assert [span.begin for span in step.policy_spans] == ends[:-1], "a gap between versions"
        assert ends[-1] == len(ids), "versions of other tokens than there are"
        assert all(one <= other for one, other in pairwise(ends))
    if step.top_logprobs is not None:
        assert step.logprobs is not None
        assert len(step.top_logprobs) == len(step.logprobs), "alternatives of other tokens than there are"
    if step.token_texts is not None:
        tokens = step.logprobs if ids is None else ids
        assert tokens is not None
        assert len(step.token_texts) == len(tokens), "texts of other tokens than there are"
    assert step.extra is None or (isinstance(step.extra, dict) and None not in step.extra.values())
    for issue in step.extra_issues:
        assert issue.code in _CODES, issue
        assert getattr(step, issue.field) is None, issue
        assert issue.message.endswith("."), issue


def _check_length(found: Any, ids: Any) -> None:
    if found is not None:
        assert ids is not None, "an extra without ids"
        assert len(found) == len(ids), "an extra is not aligned to its ids"


def _check_tops(tops: TopTokens | None) -> None:
    if tops is not None:
        assert tops.ids.shape == tops.logprobs.shape
        assert tops.ids.dtype == np.int32
        assert tops.logprobs.dtype == np.float32
        assert (tops.ids >= -1).all()
        assert np.isnan(tops.logprobs[tops.ids < 0]).all(), "a logprob of no token"


def _check_mask(mask: SamplingMask | None, ids: Any) -> None:
    if mask is not None:
        assert mask.ids.dtype == np.int32
        assert mask.counts.dtype == np.int32
        assert mask.counts.sum() == len(mask.ids)
        assert mask.logprobs is None or len(mask.logprobs) == len(mask.ids)
        for token, row in zip(ids.tolist(), mask, strict=True):
            assert token in row, "the sampled token is not in the mask"
