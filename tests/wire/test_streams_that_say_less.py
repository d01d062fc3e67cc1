"""Later chunks that say nothing, or less than those before them: an empty text is no value, a zero no count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.data.costs import Price, PriceTable
from rollout_trace.data.model import Step, Usage
from rollout_trace.wire import decode
from tests.wire.anthropic import raw as messages
from tests.wire.raw import SSE, delta, entries, read, streamed, tokens, unary


def read_as(protocol: str, *chunks: Any, done: bool = False) -> Step:
    """The step of a stream of these chunks."""
    body = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks) + b"data: [DONE]\n\n" * done
    (step,) = decode(protocol, b'{"stream": true}', body, content_type=SSE)
    return step


# Ends


def generated(reason: Any) -> Any:
    return {"text": "a", "output_ids": [1], "meta_info": {"id": "i", "finish_reason": reason}}


CUT: dict[str, tuple[str, Any]] = {
    "chat": ("openai.chat", {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": ""}]}),
    "chat with ids": ("openai.chat", delta({"content": "a"}, **tokens([1], entries(-1)), finish_reason="")),
    "completions": ("openai.completions", {"choices": [{"index": 0, "text": "a", "finish_reason": ""}]}),
    "generate": ("sglang.generate", generated("")),
    "generate, an object": ("sglang.generate", generated({"type": ""})),
    "messages": (
        "anthropic.messages",
        {"type": "message_start", "message": {"content": [{"type": "text", "text": "a"}], "stop_reason": ""}},
    ),
    "google": (
        "google.generate_content",
        {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": ""}]},
    ),
}


@pytest.mark.parametrize("case", CUT)
def test_an_empty_reason_is_no_end(case: str) -> None:
    """A stream that breaks off behind it is not whole, and nothing of it is trained on."""
    protocol, chunk = CUT[case]
    step = read_as(protocol, chunk)
    assert (step.status, step.finish_reason) == ("abandoned", None)


def test_an_empty_reason_keeps_the_one_before() -> None:
    reasons = {"finish_reason": "stop", "stop_reason": "END"}, {"finish_reason": "", "stop_reason": ""}
    for protocol in ("openai.chat", "openai.completions"):
        step = read_as(protocol, *({"choices": [{"index": 0, "text": "a", **one}]} for one in reasons), done=True)
        assert (step.finish_reason, step.stop_reason) == ("stop", "END")
    ends = [{"type": "message_delta", "delta": {"stop_reason": one, "stop_sequence": one}} for one in ("END", "")]
    step = messages.read(messages.sse(messages.start(), *ends, {"type": "message_stop"}))
    assert (step.finish_reason, step.stop_reason) == ("END", "END")


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({"reasoning": "", "reasoning_content": "thought"}, "thought"),
        ({"reasoning": "thought", "reasoning_content": ""}, "thought"),
        ({"reasoning": "", "reasoning_content": ""}, None),
        ({"reasoning": ""}, None),
        ({"reasoning_content": "", "refusal": ""}, None),
    ],
)
def test_an_empty_text_beside_another_hides_nothing(message: dict[str, str], reasoning: str | None) -> None:
    for body in (unary({"message": {"content": "4", **message}}), streamed(message, {"content": "4", **message})):
        completion = read(body).completion
        assert completion is not None
        said = reasoning if body[:1] == b"{" or reasoning is None else reasoning * 2
        assert (completion.content, completion.reasoning, completion.refusal) == ("4", said, None)
        assert completion.extra is None


# Counts

OPENAI = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
LESS: list[dict[str, Any]] = [
    {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    {"prompt_tokens": 9, "completion_tokens": 2},
    {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None},
    {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
    {},
]


@pytest.mark.parametrize("less", LESS, ids=str)
@pytest.mark.parametrize("protocol", ["openai.chat", "openai.completions"])
def test_a_later_usage_of_openai_takes_no_count_away(protocol: str, less: dict[str, Any]) -> None:
    chunks = [{"choices": [{"index": 0, "text": "a", "delta": {"content": "a"}}], "usage": OPENAI}]
    step = read_as(protocol, *chunks, {"choices": [], "usage": less}, done=True)
    assert step.usage is not None
    assert (step.usage.input, step.usage.output, step.usage.cache_read) == (9, 2, 4)


def test_a_usual_stream_is_counted_by_its_last_chunk() -> None:
    """The short way for usual answers; vLLM counts in each chunk where it is asked to."""
    usual = [
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "a"}}]} for _ in range(2)
    ]  # fmt: skip
    for counts, output in (((1, 2), 2), ((2, 1), 2), ((2, 0), 2)):
        usages = [{"prompt_tokens": 9, "completion_tokens": count} for count in counts]
        step = read_as(
            "openai.chat", *({**one, "usage": usage} for one, usage in zip(usual, usages, strict=True)), done=True
        )
        assert step.usage == Usage(input=9, output=output)


def test_a_later_usage_of_other_protocols_takes_no_count_away() -> None:
    counts = {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 3}
    zeros = {"type": "message_delta", "delta": {}, "usage": dict.fromkeys(counts, 0)}
    step = messages.read(messages.sse(messages.start(usage=counts), zeros, {"type": "message_stop"}))
    assert step.usage == Usage(input=12, output=5, cache_read=3, cache_write=None)
    google = [{"promptTokenCount": 9, "candidatesTokenCount": 5}, {"promptTokenCount": 0, "candidatesTokenCount": 0}]
    chunks = [{"candidates": [{"content": {"parts": [{"text": "a"}]}}], "usageMetadata": one} for one in google]
    assert read_as("google.generate_content", *chunks).usage == Usage(input=9, output=5)
    response = {"id": "r", "model": "m", "status": "in_progress", "output": []}
    events = [
        {"type": "response.in_progress", "response": {**response, "usage": {"input_tokens": 9, "output_tokens": 5}}},
        {"type": "response.completed", "response": {**response, "status": "completed", "usage": {"input_tokens": 0}}},
    ]
    assert read_as("openai.responses", *events).usage == Usage(input=9, output=5)


@pytest.mark.parametrize("protocol", ["openai.chat", "anthropic.messages", "google.generate_content"])
def test_counts_may_be_floats_of_whole_numbers(protocol: str) -> None:
    names = {
        "openai.chat": ("usage", "prompt_tokens", "completion_tokens"),
        "anthropic.messages": ("usage", "input_tokens", "output_tokens"),
        "google.generate_content": ("usageMetadata", "promptTokenCount", "candidatesTokenCount"),
    }[protocol]
    body = {
        "content": [{"type": "text", "text": "a"}],
        "choices": [{"index": 0, "message": {"content": "a"}}],
        "candidates": [{"content": {"parts": [{"text": "a"}]}}],
        names[0]: {names[1]: 5.0, names[2]: 4.0},
    }
    (step,) = decode(protocol, b"{}", json.dumps(body).encode(), content_type="application/json")
    assert step.usage == Usage(input=5, output=4)
    assert {type(step.usage.input), type(step.usage.output)} == {int}


def test_a_null_inside_of_counts_stays_as_it_was_sent() -> None:
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "cost_details": {"upstream_inference_cost": None}}
    step = read_as("openai.chat", {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": counts}, done=True)
    assert step.usage is not None
    assert step.usage.extra == {"cost_details": {"upstream_inference_cost": None}}


# Counts that move

START = {"input_tokens": 10, "cache_creation_input_tokens": 900, "cache_read_input_tokens": 0, "output_tokens": 1}
MOVED: dict[str, tuple[dict[str, Any], Usage]] = {
    "read, not written": (
        {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 900, "output_tokens": 7},
        Usage(input=910, output=7, cache_read=900, cache_write=0),
    ),
    "of another model, without a cache": (
        {"input_tokens": 915, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7},
        Usage(input=915, output=7, cache_read=0, cache_write=0),
    ),
    "an estimate put right": (
        {"input_tokens": 4, "cache_creation_input_tokens": 800, "output_tokens": 7},
        Usage(input=804, output=7, cache_read=0, cache_write=800),
    ),
    "repeated as zeros": (
        {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7},
        Usage(input=910, output=7, cache_read=0, cache_write=900),
    ),
    "cache left out, and zero": (
        {"input_tokens": 10, "cache_creation_input_tokens": 0, "output_tokens": 7},
        Usage(input=910, output=7, cache_read=0, cache_write=900),
    ),
}


@pytest.mark.parametrize("case", MOVED)
def test_a_later_count_of_the_prompt_takes_the_place_of_the_one_before(case: str) -> None:
    """Summed, tokens that were read from a cache and not written to it would be counted twice."""
    later, usage = MOVED[case]
    end = {**messages.end()[0], "usage": later}
    step = messages.read(messages.sse(messages.start(usage=START), *messages.text("a"), end, messages.STOP))
    assert step.usage == usage


def test_prices_of_tokens_that_moved() -> None:
    """Those kept for an hour move with the rest: left behind, they would leave the call without a cost."""
    start = {**START, "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 900}}
    later = {**MOVED["read, not written"][0], "cache_creation": {"ephemeral_1h_input_tokens": 0}}
    end = {**messages.end()[0], "usage": later}
    step = messages.read(messages.sse(messages.start(usage=start), *messages.text("a"), end, messages.STOP))
    cost = PriceTable({"*": Price(1, 1, cache_read=0.1, cache_write_1h=2)}).cost(step)
    assert cost is not None
    assert cost.amount == pytest.approx((10 + 90 + 7) / 1e6)


def test_counts_of_chat_and_google_move_too() -> None:
    first = {"prompt_tokens": 910, "completion_tokens": 1, "total_tokens": 911}
    last = {"prompt_tokens": 910, "completion_tokens": 7, "total_tokens": 917}
    chunks = [
        delta({"content": "a"}, finish_reason="stop"),
        *(
            {"choices": [], "usage": {**counts, "cache_creation_input_tokens": write, "cache_read_input_tokens": read}}
            for counts, write, read in ((first, 900, 0), (last, 0, 900))
        ),
    ]
    step = read_as("openai.chat", *chunks, done=True)
    assert step.usage == Usage(input=910, output=7, cache_read=900, cache_write=0)
    counts = [
        {"promptTokenCount": 2, "totalTokenCount": 2},
        {"promptTokenCount": 1, "candidatesTokenCount": 10, "totalTokenCount": 11},
    ]
    parts = {"content": {"parts": [{"text": "a"}]}}
    answers = [{"candidates": [parts], "usageMetadata": one} for one in counts]
    answers[-1]["candidates"] = [{**parts, "finishReason": "STOP"}]
    assert read_as("google.generate_content", *answers).usage == Usage(input=1, output=10)


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": None, "completion_tokens": None}], ids=str)
def test_a_usage_that_says_nothing_is_none(usage: dict[str, Any]) -> None:
    """LiteLLM sends an empty one in its first chunks."""
    assert read(unary({"message": {"content": "a"}}, usage=usage)).usage is None
    chunk = {"choices": [], "usage": usage}
    assert read_as("openai.chat", delta({"content": "a"}, finish_reason="stop"), chunk, done=True).usage is None
