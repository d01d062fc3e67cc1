"""What the decoder finds in answers of the Messages API: each expected value stands in the bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.data.model import Step, ToolCall, Usage
from rollout_trace.wire.anthropic import NAMES, _Event
from tests.wire.anthropic.raw import (
    STOP,
    THINKING_AND_TOOL,
    block,
    end,
    exchanges,
    read,
    sse,
    start,
    steps_of,
    text,
    unary,
)

RAW_ARGUMENTS = '{"location": "Z\\u00fcrich",  "days": 1.50}'
CITATION = {"type": "char_location", "cited_text": "green", "document_index": 0}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "E"}],
}


def content(step: Step) -> Any:
    assert step.completion is not None
    return step.completion.content


def kept(step: Step) -> Any:
    assert step.completion is not None
    return None if step.completion.extra is None else step.completion.extra.get("content")


def calls(step: Step) -> tuple[ToolCall, ...]:
    assert step.completion is not None
    return step.completion.tool_calls


RECORDED: dict[str, tuple[str, str | None, int, int, int | None, int]] = {
    # status, stop reason, whole prompt, output, of which from the cache, tool calls: read from the bytes
    "vllm/messages_plain": ("ok", "max_tokens", 29, 16, None, 0),
    "vllm/messages_stream": ("ok", "max_tokens", 29, 16, None, 0),
    "vllm/messages_ids_probe": ("ok", "end_turn", 29, 5, None, 0),
    "vllm/messages_tools_any": ("ok", "max_tokens", 287, 120, None, 0),
    "vllm/messages_tools_any_stream": ("ok", "tool_use", 287, 47, None, 1),
    "llama_server/messages_plain": ("ok", "max_tokens", 29, 16, 8, 0),
    "llama_server/messages_stream": ("ok", "max_tokens", 29, 16, 28, 0),
    "llama_server/messages_ids_probe": ("ok", "max_tokens", 29, 16, 28, 0),
    "llama_server/messages_tools_any": ("ok", "max_tokens", 287, 120, 100, 0),
    "llama_server/messages_tools_any_stream": ("ok", "max_tokens", 287, 120, 286, 0),
    "llama_server/err_messages_unknown_model": ("ok", "max_tokens", 29, 16, 28, 0),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers(name: str) -> None:
    """Text, counts and reason of every recorded answer are those of its bytes."""
    exchange = exchanges()[name]
    (step,) = steps_of(exchange)
    status, reason, whole, output, cached, tools = RECORDED[name]
    assert (step.status, step.finish_reason, len(calls(step))) == (status, reason, tools)
    assert step.usage == Usage(input=whole, output=output, cache_read=cached)
    body = exchange.response.decode()
    if body.startswith("{"):
        said = "".join(b.get("text", "") for b in json.loads(body)["content"])
        assert step.response_id == json.loads(body)["id"]
    else:
        data = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: ")]
        said = "".join(event["delta"].get("text", "") for event in data if event["type"] == "content_block_delta")
        assert step.response_id == data[0]["message"]["id"]
    assert (content(step) or "") == said
    assert (step.response_model, kept(step)) == ("tiny", None)
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"


def test_every_other_recording_is_an_error() -> None:
    """Servers without the route, and an unknown model."""
    others = {name: steps_of(exchange) for name, exchange in exchanges().items() if name not in RECORDED}
    assert others
    for name, (step,) in others.items():
        assert (step.status, step.completion) == ("error", None), name
        assert step.error is not None
        assert step.error.status == 404, name
    (unknown,) = others["vllm/err_messages_unknown_model"]
    assert unknown.error is not None
    assert unknown.error.type == "NotFoundError"


def test_a_stream_with_thinking_and_a_tool() -> None:
    """Thinking with signature, redacted thinking, text, and arguments exactly as they were sent in parts."""
    step = read(THINKING_AND_TOOL)
    assert step.completion is not None
    assert (step.status, step.finish_reason, step.stop_reason) == ("ok", "tool_use", None)
    assert (step.response_id, step.response_model) == ("msg_01", "claude-sonnet-4-5")
    assert content(step) == "Let me look: \N{SLIGHTLY SMILING FACE}"
    assert step.completion.reasoning == "The user asks for the weather."
    assert calls(step) == (ToolCall(id="toolu_01", name="get_weather", arguments=RAW_ARGUMENTS),)
    assert kept(step) == [
        {"type": "thinking", "thinking": "The user asks for the weather.", "signature": "EqoBCkgIARAB"},
        {"type": "redacted_thinking", "data": "EmwKAhgB"},
        {"type": "text", "text": "Let me look: \N{SLIGHTLY SMILING FACE}"},
        {"type": "tool_use", "id": "toolu_01", "name": "get_weather", "input": {"location": "Zürich", "days": 1.5}},
    ]
    assert step.usage == Usage(
        input=400,
        output=89,
        cache_read=3,
        cache_write=20,
        extra={
            "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 0},
            "service_tier": "standard",
        },
    )


SAME: dict[str, tuple[list[Any], bytes]] = {
    "text": ([start(), *text("Hello"), *end()], unary({"type": "text", "text": "Hello"})),
    "empty": ([start(), *end()], unary()),
    "thinking without signature": (
        [
            start(),
            *block(
                0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "h"}
            ),
            *text("a", index=1),
            *end(),
        ],
        unary({"type": "thinking", "thinking": "h"}, {"type": "text", "text": "a"}),
    ),
    "citations": (
        [
            start(),
            *text("It is ", index=0),
            *block(
                1,
                {"type": "text", "text": "", "citations": []},
                {"type": "citations_delta", "citation": CITATION},
                {"type": "text_delta", "text": "green"},
            ),
            *end(),
        ],
        unary({"type": "text", "text": "It is "}, {"type": "text", "text": "green", "citations": [CITATION]}),
    ),
    "server tools": (
        [
            start(),
            *block(
                0,
                {**SEARCH, "input": {}},
                {"type": "input_json_delta", "partial_json": '{"query":'},
                {"type": "input_json_delta", "partial_json": ' "weather"}'},
            ),
            *block(1, FOUND),
            *text("Sunny.", index=2),
            *end(),
        ],
        unary(SEARCH, FOUND, {"type": "text", "text": "Sunny."}),
    ),
    "text around a tool": (
        [
            start(),
            *block(0, {"type": "tool_use", "id": "t", "name": "f", "input": {}}),
            *text("b", index=1),
            *end("tool_use"),
        ],
        unary(
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            {"type": "text", "text": "b"},
            stop_reason="tool_use",
        ),
    ),
    "a block of an unknown kind": (
        [start(), *block(0, {"type": "hologram", "depth": 3, "nothing": None}), *end()],
        unary({"type": "hologram", "depth": 3, "nothing": None}),
    ),
    "compaction": (
        [
            start(),
            *block(0, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "so far"}),
            *end("compaction"),
        ],
        unary({"type": "compaction", "content": "so far"}, stop_reason="compaction"),
    ),
    "fields of the message": (
        [start(), *text("a"), *end(context_management={"applied_edits": []}, ignored=None)],
        unary({"type": "text", "text": "a"}, context_management={"applied_edits": []}, container=None),
    ),
    "a container in the last delta": (
        [
            start(),
            *text("a"),
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "container": {"id": "c"}},
                "usage": {"output_tokens": 5},
            },
            STOP,
        ],
        unary({"type": "text", "text": "a"}, container={"id": "c"}),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_a_stream_equals_the_answer(case: str) -> None:
    """The same message streamed and not is the same step, field by field; nothing of it is lost."""
    events, body = SAME[case]
    streamed, whole = read(sse(*events)), read(body)
    for name in ("completion", "finish_reason", "stop_reason", "usage", "response_id", "response_model", "status"):
        assert getattr(streamed, name) == getattr(whole, name), name
    message = json.loads(body)
    assert content(whole) == ("".join(b["text"] for b in message["content"] if b["type"] == "text") or None)
    blocks = [{k: v for k, v in value.items() if v is not None} for value in message["content"]]
    assert kept(whole) in (None, blocks)
    says_all = {"text", "empty", "thinking without signature", "fields of the message", "a container in the last delta"}
    assert (kept(whole) is None) is (case in says_all)


@pytest.mark.parametrize("spelled", ['{"b": 1,  "a":1.50}', "{}", '{"\\u00e9":"\\n"}', '{"x":1e2}'])
def test_unstreamed_arguments_are_the_servers_own_bytes(spelled: str) -> None:
    """The argument string is the JSON of `input` as it was spelled."""
    value = '{"type":"tool_use","id":"t","name":"f","caller":{"type":"direct"},"input": ' + spelled + "}"
    body = unary("@").replace(b'"@"', value.encode())
    assert calls(read(body)) == (ToolCall(id="t", name="f", arguments=spelled, extra={"caller": {"type": "direct"}}),)
    assert kept(read(body)) is None


@pytest.mark.parametrize(("value", "expected"), [({}, "{}"), ({"a": 1}, '{"a": 1}'), (None, None), ('{"a"', '{"a"')])
def test_arguments_at_the_beginning_of_a_block(value: Any, expected: str | None) -> None:
    """Where no part follows, the block's own input is the arguments; a text is taken as it is."""
    step = read(sse(start(), *block(0, {"type": "tool_use", "id": "t", "name": "f", "input": value}), *end("tool_use")))
    assert [call.arguments for call in calls(step)] == [expected]


def test_arguments_that_were_cut() -> None:
    """A call that the limit cut keeps what came, and the block keeps it as text."""
    cut = {"type": "input_json_delta", "partial_json": '{"city": "Par'}
    tool = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    step = read(sse(start(), *block(0, {"type": "x"}), *block(1, tool, cut), *end("max_tokens")))
    assert [call.arguments for call in calls(step)] == ['{"city": "Par']
    assert kept(step)[1] == {**tool, "input": '{"city": "Par'}


def test_a_stop_sequence() -> None:
    """The reason is the raw one; the sequence is the stop reason."""
    delta = {"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}}
    for step in (
        read(sse(start(), *text("a"), delta, STOP)),
        read(unary({"type": "text", "text": "a"}, stop_reason="stop_sequence", stop_sequence="END")),
    ):
        assert (step.finish_reason, step.stop_reason) == ("stop_sequence", "END")


USAGES: list[tuple[dict[str, Any], Usage]] = [
    ({"input_tokens": 5, "output_tokens": 2}, Usage(input=5, output=2)),
    (
        {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 0, "output_tokens": 2},
        Usage(input=95, output=2, cache_read=90, cache_write=0),
    ),
    ({"cache_read_input_tokens": 90}, Usage(cache_read=90)),
    (
        {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}},
        Usage(output=9, reasoning=4),
    ),
    ({"input_tokens": None, "output_tokens": -1}, Usage(extra={"output_tokens": -1})),
    ({"input_tokens": True, "output_tokens": 1.5}, Usage(extra={"input_tokens": True, "output_tokens": 1.5})),
    ({"server_tool_use": {"web_search_requests": 1}}, Usage(extra={"server_tool_use": {"web_search_requests": 1}})),
]


@pytest.mark.parametrize(("counts", "expected"), USAGES)
def test_usage(counts: dict[str, Any], expected: Usage) -> None:
    """`input` is the whole prompt, cached tokens included; what is no count is kept, but not as one."""
    assert read(unary(usage=counts)).usage == expected


def test_the_last_counts_of_a_stream_hold() -> None:
    """Counts are totals so far; one that is null or left out stays as it was."""
    begun = start(usage={"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 1})
    changed = {"output_tokens": 30, "input_tokens": 9, "cache_read_input_tokens": None}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": changed}
    assert read(sse(begun, delta, STOP)).usage == Usage(input=11, output=30, cache_read=2)


def test_unknown_events_and_deltas_are_kept() -> None:
    """They change nothing else, and are never an error."""
    odd, strange = {"type": "weather_report", "sun": 1}, {"type": "smell_delta", "smell": "rose"}
    tail = {**STOP, "amazon-bedrock-invocationMetrics": {"outputTokenCount": 5}}
    change = {"type": "content_block_delta", "index": 0, "delta": strange}
    step = read(sse(start(), odd, *text("a")[:-1], change, *end()[:-1], tail))
    assert step.completion is not None
    assert step.completion.extra == {
        "content": [{"type": "text", "text": "a", "deltas": [strange]}],
        "events": [odd],
        "amazon-bedrock-invocationMetrics": {"outputTokenCount": 5},
    }
    assert (content(step), step.status) == ("a", "ok")


def test_a_fallback_names_the_model_that_answered() -> None:
    """As the unstreamed answer does."""
    to = {"type": "fallback", "from": {"model": "claude"}, "to": {"model": "other"}}
    assert read(sse(start(), *block(0, to), *text("a", index=1), *end())).response_model == "other"


def test_ids_where_a_server_gives_them() -> None:
    """On the message, on its blocks or on events; and in Fireworks' `raw_output`, whose rest is kept."""
    ids: dict[str, Any] = {"prompt_token_ids": [1, 2], "token_ids": [3, 4, 5, 6, 7], "logprobs": [-1, -2, -3, 0, -0.5]}
    raw = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, 5, 6, 7], "completion": "a", "grammar": None}
    entries = {"content": [{"logprob": value} for value in ids["logprobs"]]}
    said = {"type": "text", "text": "a"}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    first = {**delta, "token_ids": [3, 4], "logprobs": [-1, -2]}
    last = {**delta, "delta": {"type": "text_delta", "text": "", "token_ids": [5, 6, 7], "logprobs": [-3, 0, -0.5]}}
    for body in (
        unary(said, **ids),
        unary({**said, **ids}),
        unary(said, raw_output={**raw, "completion_logprobs": entries}),
        sse(start(prompt_token_ids=[1, 2], token_ids=[]), text("")[0], first, last, *end()),
    ):
        step = read(body)
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert step.prompt_token_ids.tolist() == [1, 2]
        assert step.completion_token_ids.tolist() == [3, 4, 5, 6, 7]
        assert step.logprobs.tolist() == [-1, -2, -3, 0, -0.5]
        assert (step.token_source, step.token_issue, kept(step)) == ("engine", None, None)


def test_ids_that_do_not_fit_are_withheld() -> None:
    """Other counts than the usage's, and what is no id."""
    said = {"type": "text", "text": "a"}
    step = read(unary(said, token_ids=[1, 2]))
    assert (step.completion_token_ids, step.token_issue and step.token_issue.code) == (None, "usage_differs")
    step = read(unary(said, token_ids=[1, "2"]))
    assert (step.completion_token_ids, step.token_issue and step.token_issue.code) == (None, "response_malformed")


def test_events_have_every_field_in_which_there_can_be_ids() -> None:
    """The table of places may get another row: the events of a stream are read with these fields alone."""
    assert set(NAMES) <= set(_Event.__struct_fields__)
