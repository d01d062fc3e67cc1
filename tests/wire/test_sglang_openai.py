"""Extras in SGLang's chat and completions, made by hand from the source of sglang 0.5.23 (paths within `sglang/srt`).

entrypoints/openai/protocol.py: `SglExt`, `ChatCompletionResponseChoice.meta_info`, `input_ids` of a chat request;
entrypoints/openai/serving_chat.py and serving_completions.py: `sglext` from the first sample, or in a late chunk
without choices; `meta_info` on each choice of an unstreamed chat, and then no experts in `sglext`; `metadata` with the
versions of the weights of the first sample; `hidden_states` on the choice.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import numbers
from tests.wire.test_sglang_extras import EXPERTS, IDS, LOGPROBS, MASK, PROMPT, SUPPORT, b64, info, spans, withheld

USAGE = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
ENTRIES = [{"token": "t", "logprob": value, "top_logprobs": []} for value in LOGPROBS]


def choice(index: int = 0, **fields: Any) -> dict[str, Any]:
    """A choice of a chat."""
    return {
        "index": index,
        "message": {"role": "assistant", "content": "abc"},
        "logprobs": {"content": ENTRIES},
        "finish_reason": "length",
        "matched_stop": None,
        "prompt_token_ids": PROMPT,
        "response_token_ids": IDS,
        **fields,
    }


def read(*choices: dict[str, Any], request: dict[str, Any] | None = None, **fields: Any) -> list[Step]:
    """The steps of an unstreamed chat."""
    usage = {**USAGE, "completion_tokens": 3 * len(choices)}
    body = {"id": "a", "object": "chat.completion", "model": "m", "choices": choices, "usage": usage, **fields}
    sent = json.dumps({"messages": [], "n": len(choices), **(request or {})}).encode()
    return decode("openai.chat", sent, json.dumps(body).encode(), content_type=JSON)


def test_experts_and_versions_around_the_choices_are_those_of_the_first() -> None:
    """`sglext` and `metadata` have nothing of the others; what else they hold is in `extra`."""
    one, other = read(
        choice(0),
        choice(1),
        sglext={"routed_experts": b64(EXPERTS), "cached_tokens_details": {"device": 2}},
        metadata={"weight_version": "v1", "weight_versions": spans(0, 2, 3)},
    )
    assert one.routed_experts is not None
    assert one.routed_experts.shape == (6, 1, 6)
    assert (one.policy_spans, one.policy_version) == (((0, 2, "v0"), (2, 3, "v1")), "v0,v1")
    assert (other.routed_experts, other.policy_spans, other.policy_version) == (None, None, "v1")
    for step in (one, other):
        assert step.extra == {"sglext": {"cached_tokens_details": {"device": 2}}}
        assert (step.extra_issues, step.token_issue) == ((), None)


def test_a_later_start_of_the_experts() -> None:
    """`routed_experts_start_len` of the request."""
    request = {"routed_experts_start_len": 4}
    (step,) = read(choice(), request=request, sglext={"routed_experts": b64(EXPERTS[-12:])})
    assert step.routed_experts is not None
    assert step.routed_experts.shape == (2, 1, 6)


def test_meta_info_of_each_choice() -> None:
    """With `return_meta_info` each has its own mask, experts and scores of the prompt."""
    scores = [[None, 11, None], *([-1.0, token, None] for token in PROMPT[1:])]
    fields: dict[str, Any] = {
        "output_token_sampling_mask": MASK,
        "routed_experts": b64(EXPERTS),
        "input_token_logprobs": scores,
    }
    metas = [
        info(**fields, output_token_sampling_logprobs=SUPPORT, weight_versions=spans(0, 3)),
        info(weight_version="v3"),
    ]
    one, other = read(choice(0, meta_info=metas[0]), choice(1, meta_info=metas[1]), metadata={"weight_version": "v0"})
    assert one.sampling_mask is not None
    assert [row.tolist() for row in one.sampling_mask] == MASK
    assert one.routed_experts is not None
    assert numbers(one.prompt_logprobs)[1:] == [-1.0, -1.0, -1.0]  # type: ignore[index]
    assert (one.policy_spans, one.policy_version) == (((0, 3, "v0"),), "v0")
    assert (other.sampling_mask, other.routed_experts, other.policy_version) == (None, None, "v3")
    assert one.extra == other.extra == {"num_retractions": 0}
    for step in (one, other):
        assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (IDS, LOGPROBS)
        assert (step.extra_issues, step.token_issue) == ((), None)


def stream(choices: int) -> bytes:
    """A streamed chat: the experts in a chunk without choices, before the usage and the ids."""
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": at, "delta": {"content": "abc"}, "logprobs": {"content": ENTRIES}}]}
        for at in reversed(range(choices))
    ]
    ends: list[dict[str, Any]] = [
        {"choices": [{"index": at, "delta": {}, "finish_reason": "length"}]} for at in range(choices)
    ]
    ids = {"input_ids": PROMPT, "output_ids": [IDS] * choices}
    usage = {**USAGE, "completion_tokens": 3 * choices}
    last: list[dict[str, Any]] = [
        {"choices": [], "sglext": {"routed_experts": b64(EXPERTS), **ids}},
        {"choices": [], "usage": usage},
    ]
    return sse(*({"id": "a", "model": "m", **chunk} for chunk in (*chunks, *ends, *last)))


def test_a_stream_has_the_experts_in_a_chunk_without_choices() -> None:
    """Of several choices the chunk does not name the one that they are of: they stay where they came."""
    (step,) = decode("openai.chat", b'{"messages": []}', stream(1), content_type=SSE)
    assert (numbers(step.prompt_token_ids), numbers(step.completion_token_ids)) == (PROMPT, IDS)
    assert step.routed_experts is not None
    assert step.routed_experts.shape == (6, 1, 6)
    assert step.extra is None
    for step in decode("openai.chat", b'{"messages": [], "n": 2}', stream(2), content_type=SSE):
        assert step.routed_experts is None
        assert step.extra == {"sglext": {"routed_experts": b64(EXPERTS)}}


@pytest.mark.parametrize("streamed", [False, True])
def test_completions(streamed: bool) -> None:
    """The same around the choices of completions."""
    part = {
        "index": 0, "text": "abc", "token_ids": IDS, "prompt_token_ids": PROMPT, "finish_reason": "length",
        "logprobs": {"tokens": ["a", "b", "c"], "token_logprobs": LOGPROBS, "top_logprobs": []},
    }  # fmt: skip
    around = {"sglext": {"routed_experts": b64(EXPERTS)}}
    versions = {"metadata": {"weight_version": "v1", "weight_versions": spans(0, 1, 3)}}
    if streamed:
        body = sse({"choices": [part]}, {"choices": [], **around}, {"choices": [], "usage": USAGE})
    else:
        body = json.dumps({"choices": [part], "usage": USAGE, **around, **versions}).encode()
    (step,) = decode("openai.completions", b'{"prompt": "p"}', body, content_type=SSE if streamed else JSON)
    assert step.routed_experts is not None
    assert step.routed_experts.shape == (6, 1, 6)
    assert step.policy_spans == (None if streamed else ((0, 1, "v0"), (1, 3, "v1")))
    assert (step.extra, step.extra_issues) == (None, ())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sglext": 5}, []), ({"sglext": {"routed_experts": 5}}, [("routed_experts", "malformed")]),
        ({"metadata": "x"}, []), ({"metadata": {"weight_versions": 5}}, [("policy_spans", "malformed")]),
        ({"metadata": {"weight_version": ["a"]}}, []), ({"metadata": {"user": "x"}}, []),
    ],
)  # fmt: skip
def test_what_is_malformed_around_the_choices_costs_itself(fields: Any, expected: Any) -> None:
    """The ids stay; metadata of other kinds too."""
    (step,) = read(choice(), **fields)
    assert (numbers(step.completion_token_ids), step.token_issue) == (IDS, None)
    assert withheld(step) == expected
    if "user" in str(fields):
        assert step.extra == fields


@pytest.mark.parametrize(
    ("sent", "usage", "expected"),
    [
        (PROMPT, USAGE, PROMPT),
        (PROMPT, {**USAGE, "prompt_tokens": 90}, None),
        (PROMPT, None, None),
        ([*PROMPT, "x"], USAGE, None),
        (None, USAGE, None),
    ],
)
def test_ids_of_a_prompt_that_was_sent_as_ids(sent: Any, usage: Any, expected: Any) -> None:
    """`input_ids` of a chat request, where as many were counted: images expand a prompt, others ignore the field."""
    (step,) = read(choice(prompt_token_ids=None), request={"input_ids": sent}, usage=usage)
    assert numbers(step.prompt_token_ids) == expected
    assert (step.sampling or {}).get("input_ids") == (None if expected else sent)
    (told,) = read(choice(prompt_token_ids=[1, 2, 3, 4]), request={"input_ids": sent}, usage=usage)
    assert numbers(told.prompt_token_ids) == [1, 2, 3, 4]


def test_likeliest_tokens_of_meta_info_where_those_of_the_entries_are_unusable() -> None:
    """They are in two places of an answer: what is wrong in one is no issue then."""
    entries = [{"token": "t", "logprob": -1.0, "top_logprobs": "token_id:7"}, *ENTRIES[1:]]
    meta = info(output_top_logprobs=[[[-1.0, 5, None]], [[-2.0, 6, None]], [[-0.5, 7, None]]])
    (step,) = read(choice(logprobs={"content": entries}, meta_info=meta))
    assert step.top_tokens is not None
    assert step.top_tokens.ids.tolist() == [[5], [6], [7]]
    assert step.extra_issues == ()
