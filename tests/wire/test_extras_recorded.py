"""Every recorded exchange with vLLM's token extras: each step has what a plain reading of the same bytes has."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.extras import EXTRAS, SamplingMask, TopTokens
from rollout_trace.data.model import Step
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode
from tests.wire import extras_reader
from tests.wire.extras_reader import Choice
from tests.wire.recorded import DATA, differing, numbers

PROTOCOLS = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/v1/responses": "openai.responses",
    "/v1/messages": "anthropic.messages",
    "/inference/v1/generate": "vllm.generate",
}
READ = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate")
"""Paths whose answers the reader reads."""


@cache
def exchanges() -> dict[str, Exchange]:
    """All recordings of paths that generate, by name."""
    found = load_exchanges(DATA / "wire_vllm_extras.jsonl.xz")
    return {one.name: one for one in found if one.path in PROTOCOLS}


def names(*paths: str, status: int = 200) -> list[str]:
    """Names of the recordings of these paths."""
    return [name for name, one in exchanges().items() if one.path in paths and one.status == status]


@cache
def steps_of(name: str) -> list[Step]:
    """What the decoders make of a recording."""
    one = exchanges()[name]
    kind, protocol = one.content_type, PROTOCOLS[one.path]
    return decode(protocol, one.request, one.response, content_type=kind, status=one.status or 0)


@cache
def choices_of(name: str) -> dict[int, Choice]:
    """What the reader finds in it."""
    one = exchanges()[name]
    return extras_reader.read(one.path, one.response)


def asked(name: str, field: str) -> Any:
    """A parameter of the request of a recording, or of its `sampling_params`."""
    request = json.loads(exchanges()[name].request)
    return {**request, **(request.get("sampling_params") or {})}.get(field)


def _rectangle(rows: Sequence[Sequence[tuple[int | None, float]]] | None) -> tuple[Any, Any] | None:
    """The ids [rows, k] and logprobs of pairs; -1 and NaN at the end of rows that have fewer than the longest.

    None where nothing is listed, or a token is named by its text.
    """
    width = max(map(len, rows or ()), default=0)
    if rows is None or not width or any(token is None for row in rows for token, _ in row):
        return None
    ids, logprobs = np.full((len(rows), width), -1, np.int32), np.full((len(rows), width), np.nan, np.float32)
    for at, row in enumerate(rows):
        for column, (token, logprob) in enumerate(row):
            ids[at, column], logprobs[at, column] = token or 0, logprob
    return ids, logprobs


def _same(found: Any, expected: Any) -> None:
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")


def _same_tops(found: TopTokens | None, rows: Any) -> None:
    expected = _rectangle(rows)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        _same(found.ids, expected[0])
        _same(found.logprobs, expected[1])


def _scores(choice: Choice) -> Any:
    """float32 [prompt]: of each prompt token, from `prompt_logprobs`, else from what an echo repeats of it."""
    if choice.prompt_rows is not None:
        return np.array([row[0][1] if row else np.nan for row in choice.prompt_rows], np.float32)
    if choice.echoed is None or choice.prompt is None:
        return None
    return np.array([np.nan if value is None else value for value in choice.echoed], np.float32)


@pytest.mark.parametrize("name", names(*READ))
def test_a_step_has_what_the_bytes_say(name: str) -> None:
    """Each extra by itself, or None where the answer does not hold it; nothing is withheld."""
    steps, choices = steps_of(name), choices_of(name)
    assert [step.choice for step in steps] == sorted(choices)
    for step in steps:
        choice = choices[step.choice]
        # An answer without the ids of its prompt: those that were sent.
        prompt = asked(name, "token_ids") if choice.prompt is None else choice.prompt
        assert (numbers(step.prompt_token_ids), numbers(step.completion_token_ids)) == (prompt, choice.ids)
        _same(step.prompt_logprobs, _scores(choice))
        # Asked for 0 alternatives, an engine lists the token itself alone: no alternatives.
        _same_tops(step.prompt_top_tokens, None if asked(name, "prompt_logprobs") == 0 else choice.prompt_rows)
        _same_tops(step.top_tokens, None if asked(name, "logprobs") == 0 else choice.top_rows)
        mask = None if step.sampling_mask is None else [row.tolist() for row in step.sampling_mask]
        assert mask == choice.mask
        _same(step.routed_experts, None if prompt is None else choice.experts)
        assert step.policy_spans == (None if choice.versions is None else tuple(choice.versions))
        versions = list(dict.fromkeys(version for _, _, version in choice.versions or ()))
        assert step.policy_version == (",".join(versions) or None)
        # Without the ids of its tokens an extra has no positions.
        lacking = {"routed_experts": "ids_missing"} if choice.ids is None and choice.experts is not None else {}
        assert {issue.field: issue.code for issue in step.extra_issues} == lacking
        check(step)


def check(step: Step) -> None:
    """What holds of the extras of a step, whatever the bytes were."""
    prompt, ids = step.prompt_token_ids, step.completion_token_ids
    sizes = {"prompt_logprobs": prompt, "prompt_top_tokens": prompt, "top_tokens": ids, "sampling_mask": ids}
    for field, of in sizes.items():
        found = getattr(step, field)
        if found is not None:
            assert of is not None, field
            assert len(found) == len(of), field
    if step.routed_experts is not None:
        assert prompt is not None
        assert ids is not None
        assert len(step.routed_experts) <= len(prompt) + len(ids) - 1
    if step.policy_spans is not None:
        ends = [0, *(span.end for span in step.policy_spans)]
        assert ends == [*(span.begin for span in step.policy_spans), ends[-1]]
        assert ids is not None
        assert ends[-1] == len(ids)
    if isinstance(step.sampling_mask, SamplingMask):
        assert ids is not None
        for token, row in zip(ids.tolist(), step.sampling_mask, strict=True):
            assert not len(row) or token in row


def test_the_reader_finds_every_extra_in_every_form() -> None:
    """How many choices hold each: a reader that finds nothing would agree with decoders that find nothing."""
    found: Counter[tuple[str, str]] = Counter()
    for name in names(*READ):
        one = exchanges()[name]
        form = PROTOCOLS[one.path] + (" stream" if "event-stream" in one.content_type else "")
        for choice in choices_of(name).values():
            held = {
                "prompt": choice.prompt_rows, "echoed": choice.echoed, "mask": choice.mask, "versions": choice.versions,
                "experts": choice.experts, "top": _rectangle(choice.top_rows),
            }  # fmt: skip
            found.update((form, field) for field, value in held.items() if value is not None)
    assert found == COUNTS


COUNTS = {
    ("openai.chat", "experts"): 29,
    ("openai.chat", "prompt"): 6,
    ("openai.chat", "top"): 2,
    ("openai.chat stream", "top"): 2,
    ("openai.completions", "echoed"): 7,
    ("openai.completions", "experts"): 23,
    ("openai.completions", "prompt"): 18,
    ("openai.completions", "top"): 1,
    ("openai.completions stream", "echoed"): 3,
    ("vllm.generate", "experts"): 50,
    ("vllm.generate", "mask"): 30,
    ("vllm.generate", "prompt"): 5,
    ("vllm.generate", "top"): 54,
    ("vllm.generate", "versions"): 73,
    ("vllm.generate stream", "experts"): 31,
    ("vllm.generate stream", "mask"): 19,
    ("vllm.generate stream", "top"): 30,
    ("vllm.generate stream", "versions"): 42,
}


def _pairs() -> Iterator[tuple[str, str]]:
    """Streamed recordings with the unstreamed one of the same request. Without a seed no two are alike, nor of those
    that a call changed on the way (an abort, new weights).
    """
    for name, one in exchanges().items():
        other = exchanges().get(name.replace("_stream", ""))
        same = other is not None and other is not one and _bare(one) == _bare(other)
        repeats = asked(name, "seed") is not None or asked(name, "temperature") == 0
        if same and repeats and one.status == 200 and not {"abort", "mid"} & set(name.split("_")):
            yield name, name.replace("_stream", "")


def _bare(one: Exchange) -> dict[str, Any]:
    """The request without what only changes the transport."""
    request: dict[str, Any] = json.loads(one.request)
    for holder in (request, request.get("sampling_params") or {}):
        for field in ("stream", "stream_options", "stream_interval", "request_id"):
            holder.pop(field, None)
    return request


NOT_STREAMED = {
    "openai.chat": {"prompt_logprobs", "prompt_top_tokens", "routed_experts"},
    "openai.completions": {"prompt_logprobs", "prompt_top_tokens", "routed_experts"},
    "vllm.generate": {"prompt_logprobs", "prompt_top_tokens", "response_model"},
}
"""Fields of a step that vLLM 0.32 leaves out of its streams."""


@pytest.mark.parametrize(("streamed", "unstreamed"), list(_pairs()))
def test_a_stream_equals_the_unstreamed_answer(streamed: str, unstreamed: str) -> None:
    """With the same seed: every field save times, cache hits, and what the server leaves out of its streams."""
    for one, other in zip(steps_of(streamed), steps_of(unstreamed), strict=True):
        left_out = {field for field in NOT_STREAMED[one.protocol or ""] if getattr(one, field) is None}
        # Its parser of tool calls finds one, cut in the middle, only in the stream.
        left_out |= {"completion"} if streamed == "dense_shape_tool_required_stream" else set()
        assert differing(one, other) <= {"usage", "extra", "sampling"} | left_out
        assert _lasting(one.extra) == _lasting(other.extra)
        if one.usage is not None and other.usage is not None:
            assert (one.usage.input, one.usage.output) == (other.usage.input, other.usage.output)


def _lasting(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What does not depend on the time of an answer."""
    return {name: value for name, value in (extra or {}).items() if name not in ("created", "metrics")}


def test_pairs_of_every_protocol_that_streams_were_compared() -> None:
    """How many recordings have an unstreamed twin."""
    protocols = Counter(PROTOCOLS[exchanges()[name].path] for name, _ in _pairs())
    assert protocols == {"openai.chat": 24, "vllm.generate": 21, "openai.completions": 14}


def test_what_is_refused_has_no_extras() -> None:
    """Errors, one with an empty message: a step with the status, and nothing more."""
    refused = [name for name, one in exchanges().items() if (one.status or 0) >= 400]
    assert len(refused) == 19
    for name in refused:
        (step,) = steps_of(name)
        assert step.status == "error"
        assert step.error is not None
        assert step.error.status == exchanges()[name].status
        assert all(getattr(step, field) is None for field in EXTRAS)
        assert step.extra_issues == ()


_FIELDS = {"id", "request_id", "object", "model", "choices", "usage", "prompt_token_ids", "prompt_logprobs"}
_FIELDS |= {"index", "message", "delta", "text", "logprobs", "finish_reason", "stop_reason", "token_ids"}
_FIELDS |= {"routed_experts", "sampling_mask", "weight_versions"}
"""Names in an answer, or a choice of it, that have a field of their own in a step, or say nothing of it."""


@pytest.mark.parametrize("name", names(*READ))
def test_nothing_that_was_sent_is_lost(name: str) -> None:
    """What else an answer or a choice holds is in `extra`, with its last value."""
    one = exchanges()[name]
    for step in steps_of(name):
        expected: dict[str, Any] = {}
        for body in extras_reader.bodies(one.response):
            parts = [body, *(part for part in body.get("choices") or () if part["index"] == step.choice)]
            for part in parts:
                expected |= {key: value for key, value in part.items() if value is not None and key not in _FIELDS}
        assert (step.extra or {}) == expected


def test_a_token_of_another_type_in_a_stream_of_responses() -> None:
    """A number where the text of a token belongs, in a stream that lacks logprobs: it is read all the same."""
    one = exchanges()["dense_resp_top5_stream"]
    damaged = re.sub(rb'"token":"[^"]*"', b'"token":5', one.response)
    assert damaged != one.response
    (step,) = decode("openai.responses", one.request, damaged, content_type=one.content_type)
    assert (step.status, step.logprobs) == ("ok", None)
    assert numbers(step.completion_token_ids) == numbers(steps_of(one.name)[0].completion_token_ids)


@pytest.mark.parametrize("name", ["dense_comp_top5", "dense_comp_top5_stream"])
@pytest.mark.parametrize("value", ["5", '"x"', "{}", "[5]", "[[[]]]", "[NaN]", '["\\ud800"]', '[{"a": "\\ud800"}]'])
def test_alternatives_of_another_type_cost_no_ids(name: str, value: str) -> None:
    """Anything in place of the alternatives of completions: ids and logprobs are those of the undamaged answer."""
    one = exchanges()[name]
    damaged = re.sub(rb'("top_logprobs":)\[.*?\](?=[,}])', lambda found: found[1] + value.encode(), one.response)
    assert damaged != one.response
    (step,) = decode("openai.completions", one.request, damaged, content_type=one.content_type)
    assert not differing(step, steps_of(name)[0]) - {"top_logprobs", "top_tokens"}
    assert step.logprobs is not None
    assert step.top_logprobs is None or len(step.top_logprobs) == len(step.logprobs)
