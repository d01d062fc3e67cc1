"""Messages of each protocol as clients send them: questions, answers that are sent back, results of tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rollout_trace.data.model import Completion, ToolCall
from rollout_trace.wire.chat_messages import assistant_message

Messages = list[Any]
Results = Sequence[tuple["ToolCall", str]]

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"query": {"type": "string"}}}


class Dialect(NamedTuple):
    """The form of a conversation in one protocol."""

    said: Callable[[str, str], Messages]
    """What a user or a system prompt says: the role, the text."""
    answered: Callable[[Completion], Messages]
    """An answer as it is sent back with the next request."""
    returned: Callable[[Results], Messages]
    """Results of tools."""
    tool: Callable[[str], Any] | None
    """A tool of a name; None: the protocol has none."""
    reasons: tuple[str, str, str]
    """Why an answer ends, tool calls, and what a limit cut off."""


def _chat_returned(results: Results) -> Messages:
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in results]


def _items_said(role: str, text: str) -> Messages:
    return [{"role": role, "content": [{"type": "input_text", "text": text}] if role == "user" else text}]


def _items_answered(completion: Completion) -> Messages:
    items: Messages = []
    if completion.reasoning is not None:
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": completion.reasoning}]})
    if completion.content is not None:
        content = [{"type": "output_text", "text": completion.content, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": content})
    for call in completion.tool_calls:
        items.append({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
    return items


def _items_returned(results: Results) -> Messages:
    return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in results]


def _blocks_answered(completion: Completion) -> Messages:
    blocks: Messages = []
    if completion.reasoning is not None:
        blocks.append({"type": "thinking", "thinking": completion.reasoning, "signature": "c2lnbmF0dXJl"})
    if completion.content is not None:
        blocks.append({"type": "text", "text": completion.content})
    for call in completion.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments or "")})
    return [{"role": "assistant", "content": blocks}]


def _blocks_returned(results: Results) -> Messages:
    blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results]
    return [{"role": "user", "content": blocks}]


def _contents_answered(completion: Completion) -> Messages:
    parts: Messages = []
    if completion.reasoning is not None:
        parts.append({"text": completion.reasoning, "thought": True})
    if completion.content is not None:
        parts.append({"text": completion.content})
    for call in completion.tool_calls:
        parts.append({"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.arguments or "")}})
    return [{"role": "model", "parts": parts}]


def _contents_returned(results: Results) -> Messages:
    parts = [
        {"functionResponse": {"id": call.id, "name": call.name, "response": {"result": text}}} for call, text in results
    ]
    return [{"role": "user", "parts": parts}]


def _ollama_answered(completion: Completion) -> Messages:
    calls = [
        {"function": {"name": call.name, "arguments": json.loads(call.arguments or "")}}
        for call in completion.tool_calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": completion.content or ""}
    if completion.reasoning is not None:
        message["thinking"] = completion.reasoning
    return [{**message, "tool_calls": calls} if calls else message]


def _text(role: str, text: str) -> Messages:
    return [{"role": role, "content": text}]


def _function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


DIALECTS: dict[str, Dialect] = {
    "openai.chat": Dialect(
        _text, lambda done: [assistant_message(done)], _chat_returned, _function, ("stop", "tool_calls", "length")
    ),
    "anthropic.messages": Dialect(
        _text,
        _blocks_answered,
        _blocks_returned,
        lambda name: {"name": name, "input_schema": SCHEMA},
        ("end_turn", "tool_use", "max_tokens"),
    ),
    "openai.responses": Dialect(
        _items_said,
        _items_answered,
        _items_returned,
        lambda name: {"type": "function", "name": name, "parameters": SCHEMA},
        ("stop", "tool_calls", "max_output_tokens"),
    ),
    "google.generate_content": Dialect(
        lambda role, text: [{"role": role, "parts": [{"text": text}]}],
        _contents_answered,
        _contents_returned,
        lambda name: {"functionDeclarations": [{"name": name, "parameters": SCHEMA}]},
        ("STOP", "STOP", "MAX_TOKENS"),
    ),
    "ollama.chat": Dialect(
        _text,
        _ollama_answered,
        lambda results: [{"role": "tool", "tool_name": call.name, "content": text} for call, text in results],
        _function,
        ("stop", "stop", "length"),
    ),
    # One text, which each request repeats and goes on from.
    "openai.completions": Dialect(
        lambda role, text: [f"{role}: {text}\n"],
        lambda completion: [str(completion.content or "")],
        lambda results: [],
        None,
        ("stop", "stop", "length"),
    ),
}
"""By protocol."""
