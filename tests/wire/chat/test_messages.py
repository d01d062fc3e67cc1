"""Requests and answers of every protocol as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import answer, arguments_of, to_chat, tools_of

PNG = "iVBORw0KGgo="


def step(protocol: str, messages: list[Any] | None = None, **fields: Any) -> Step:
    return Step(id="s", call_id="s", protocol=protocol, messages=messages, **fields)


def converted(protocol: str, messages: list[Any], **fields: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    report = ExportReport()
    return to_chat(step(protocol, messages, **fields), report), report.dropped


def call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_chat_is_as_it_was_sent() -> None:
    sent = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]
    assert converted("openai.chat", sent) == (sent, {})


def test_anthropic_blocks() -> None:
    """Thinking, text and tool use are one message; each result is a message of its own, before the text beside it."""
    sent = [
        {"role": "system", "content": [{"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                {"type": "image", "source": {"type": "url", "url": "https://a.test/b.png"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A page."}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "opaque"},
                {"type": "text", "text": "Adding."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3"}]},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "https://a.test/b.png"}},
        {"type": "text", "text": "A page."},
    ]
    assert converted("anthropic.messages", sent) == (
        [
            {"role": "system", "content": "Add."},
            {"role": "user", "content": parts},
            {
                "role": "assistant",
                "content": "Adding.",
                "reasoning_content": "Hm.",
                "tool_calls": [call("add", '{"a":1}', "t1"), call("now", "{}", "t2")],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "3"},
            {"role": "tool", "tool_call_id": "t2", "content": "", "is_error": True},
            {"role": "user", "content": "Go on."},
        ],
        {},
    )


def test_what_anthropic_has_and_chat_has_not_is_counted() -> None:
    sent = [
        {"role": "user", "content": [{"type": "search_result", "source": "x"}, {"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "?"}, {"type": "text", "text": "So."}]},
        "no message",
    ]
    messages, dropped = converted("anthropic.messages", sent)
    assert messages == [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "So."}]
    assert dropped == {
        "content parts without a place in a chat message: search_result": 1,
        "parts of an answer: redacted_thinking": 1,
        "messages that are no objects": 1,
    }


def test_responses_items() -> None:
    """All items that one answer gave are one message; outputs of tools are messages of the role tool."""
    sent = [
        {"role": "system", "content": "Add."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "And?"}, {"type": "input_image", "image_url": "u"}],
        },
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Adding."}]},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "print()"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
        {"role": "assistant", "content": "An answer of the caller's own."},
        {"type": "item_reference", "id": "x"},
    ]
    messages, dropped = converted("openai.responses", sent, sampling={"previous_response_id": "before"})
    assert messages == [
        {"role": "system", "content": "Add."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "And?"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {
            "role": "assistant",
            "content": "Adding.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                call("add", '{"a": 1}', "c1"),
                {"id": "c2", "type": "custom", "custom": {"name": "run", "input": "print()"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "ok"},
        {"role": "assistant", "content": "An answer of the caller's own."},
    ]
    assert dropped == {
        "requests whose first messages the server holds": 1,
        "items without a place in a chat message: item_reference": 1,
    }
    assert converted("openai.responses", ["Hello."]) == ([{"role": "user", "content": "Hello."}], {})


def test_prompts_are_what_a_user_says() -> None:
    assert converted("openai.completions", ["Once"]) == ([{"role": "user", "content": "Once"}], {})
    several = "prompts of a request with several, where it is not known which one was answered"
    assert converted("openai.completions", ["Once", "Twice"]) == ([], {several: 1})
    assert converted("sglang.generate", [[1, 2]]) == ([], {"prompts that were sent as token ids, not as text": 1})


COMPLETION = Completion(
    content="Adding.",
    reasoning="Hm.",
    tool_calls=(
        ToolCall(id="c1", name="add", arguments='{"a": 1}', extra={"item_id": "fc", "namespace": "math"}),
        ToolCall(id="c2", name="add", arguments='{"a": '),
        ToolCall(id="c3", name="now"),
    ),
    extra={"annotations": [], "audio": {"id": "a"}},
)


def test_answers() -> None:
    """Arguments are the text that the model wrote, or objects; those that are none stay texts and are counted."""
    report = ExportReport()
    made = answer(step("openai.chat", completion=COMPLETION), "json", report)
    assert made == {
        "role": "assistant",
        "content": "Adding.",
        "reasoning_content": "Hm.",
        "tool_calls": [call("add", '{"a": 1}', "c1"), call("add", '{"a": ', "c2"), call("now", "{}", "c3")],
    }
    assert report.dropped == {"fields of an answer: audio": 1, "fields of a tool call: namespace": 1}
    report = ExportReport()
    made = answer(step("openai.chat", completion=COMPLETION), "dict", report)
    assert made is not None
    assert [one["function"]["arguments"] for one in made["tool_calls"]] == [{"a": 1}, '{"a": ', {}]
    assert report.dropped["tool arguments that are no JSON object, left as text"] == 1
    assert answer(step("openai.chat")) is None


@pytest.mark.parametrize("written", ["[1]", "1", '"a"', '{"a": NaN}', "", None, "{" * 100_000])
def test_arguments_that_are_no_object(written: Any) -> None:
    assert arguments_of(written) is None


def test_tools_of_every_protocol() -> None:
    """Schemas are the same for all; tools that the provider runs itself have none."""
    schema = {"type": "object", "properties": {}}
    inner = {"name": "add", "description": "Adds.", "parameters": schema}
    expected = [{"type": "function", "function": inner}]
    report = ExportReport()
    assert tools_of(step("openai.chat", tools=expected), report) == expected
    assert tools_of(step("openai.chat", sampling={"functions": [inner]}), report) == expected
    assert tools_of(step("openai.responses", tools=[{"type": "function", **inner}]), report) == expected
    anthropic = {"name": "add", "description": "Adds.", "input_schema": schema, "cache_control": {"type": "ephemeral"}}
    assert tools_of(step("anthropic.messages", tools=[anthropic]), report) == expected
    assert report.dropped == {}
    assert tools_of(step("openai.responses", tools=[{"type": "web_search"}]), report) == []
    assert report.dropped == {"tools that the provider runs itself: web_search": 1}
    assert tools_of(step("openai.chat"), report) is None
