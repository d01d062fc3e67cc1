"""Requests and recorded exchanges of every protocol, for the tests of matching."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from rollout_trace.data.exchange import Exchange, Outcome
from rollout_trace.testing.matching import Request

START = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
SYSTEM = "You answer questions about the weather."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}}}


class Turn(NamedTuple):
    """One message of a conversation: a text of the user or the model, a tool call, or its result."""

    kind: str
    text: str
    id: str = ""


TURNS = (
    Turn("user", "What is the weather in Paris?"),
    Turn("call", '{"city": "Paris"}', "call_7fQ"),
    Turn("result", "21 degrees, sunny, wind from the west", "call_7fQ"),
)


def exchange(
    protocol: str,
    turns: Sequence[Turn],
    answer: str = "It is sunny.",
    *,
    at: float | None = 0.0,
    seconds: float = 0.5,
    status: int = 200,
    call: str | None = None,
    outcome: Outcome = "complete",
    **settings: Any,
) -> Exchange:
    """A recorded exchange. ``at``: seconds from the start of the recording; None: no times."""
    path, body, reply = _PROTOCOLS[protocol](turns, answer, settings)
    response = json.dumps(reply if status < 400 else {"error": {"message": answer, "type": "server"}}).encode()
    return Exchange(
        "recorded",
        "POST",
        path,
        json.dumps(body).encode(),
        None if outcome == "unreachable" else status,
        (("content-type", "application/json"),),
        b"" if outcome == "unreachable" else response,
        () if outcome == "unreachable" else (len(response),),
        "application/json",
        protocol,
        call,
        outcome=outcome,
        started_at=None if at is None else START + timedelta(seconds=at),
        duration=None if at is None else seconds,
    )


def request(protocol: str, turns: Sequence[Turn], *, call: str | None = None, **settings: Any) -> Request:
    """A new request."""
    path, body, _ = _PROTOCOLS[protocol](turns, "", settings)
    return Request("POST", path, json.dumps(body).encode(), "application/json", call)


def same_request(recorded: Exchange, *, call: str | None = None) -> Request:
    """The request of a recorded exchange, byte for byte."""
    return Request(recorded.method, recorded.path, recorded.request, recorded.request_content_type, call)


def edited(recorded: Exchange, edit: Callable[[Any], object]) -> Request:
    """The request of a recorded exchange with its parsed body changed."""
    body = json.loads(recorded.request)
    edit(body)
    return Request(recorded.method, recorded.path, json.dumps(body).encode(), recorded.request_content_type)


Made = tuple[str, dict[str, Any], Any]


def _chat(turns: Sequence[Turn], answer: str, settings: dict[str, Any]) -> Made:
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for turn in turns:
        if turn.kind == "call":
            call = {"id": turn.id, "type": "function", "function": {"name": "weather", "arguments": turn.text}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif turn.kind == "result":
            messages.append({"role": "tool", "tool_call_id": turn.id, "content": turn.text})
        else:
            messages.append({"role": turn.kind, "content": turn.text})
    function = {"name": "weather", "description": "Looks the weather up.", "parameters": SCHEMA}
    body = {"model": "gpt-4o", "messages": messages, "tools": [{"type": "function", "function": function}]}
    message = {"role": "assistant", "content": answer}
    reply = {"id": "c", "model": "gpt-4o", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return "/v1/chat/completions", body | {"temperature": 0} | settings, reply


def _completions(turns: Sequence[Turn], answer: str, settings: dict[str, Any]) -> Made:
    prompt = "\n".join([SYSTEM, *(f"{turn.kind}: {turn.text}" for turn in turns)])
    reply = {"id": "c", "model": "base", "choices": [{"index": 0, "text": answer, "finish_reason": "stop"}]}
    return "/v1/completions", {"model": "base", "prompt": prompt, "max_tokens": 16} | settings, reply


def _responses(turns: Sequence[Turn], answer: str, settings: dict[str, Any]) -> Made:
    items: list[dict[str, Any]] = []
    for turn in turns:
        if turn.kind == "call":
            item = {"type": "function_call", "id": f"fc_{turn.id}", "call_id": turn.id}
            items.append(item | {"name": "weather", "arguments": turn.text})
        elif turn.kind == "result":
            items.append({"type": "function_call_output", "call_id": turn.id, "output": turn.text})
        else:
            items.append({"role": turn.kind, "content": turn.text})
    tools = [{"type": "function", "name": "weather", "description": "Looks the weather up.", "parameters": SCHEMA}]
    body = {"model": "gpt-5", "instructions": SYSTEM, "input": items, "tools": tools, "temperature": 0} | settings
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}
    return "/v1/responses", body, {"id": "r", "model": "gpt-5", "status": "completed", "output": [said]}


def _anthropic(turns: Sequence[Turn], answer: str, settings: dict[str, Any]) -> Made:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if turn.kind == "call":
            block = {"type": "tool_use", "id": turn.id, "name": "weather", "input": json.loads(turn.text)}
            messages.append({"role": "assistant", "content": [block]})
        elif turn.kind == "result":
            block = {"type": "tool_result", "tool_use_id": turn.id, "content": turn.text}
            messages.append({"role": "user", "content": [block]})
        else:
            messages.append({"role": turn.kind, "content": turn.text})
    tools = [{"name": "weather", "description": "Looks the weather up.", "input_schema": SCHEMA}]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 256, "system": SYSTEM, "messages": messages, "tools": tools}
    reply = {"type": "message", "role": "assistant", "model": "claude", "content": [{"type": "text", "text": answer}]}
    return "/v1/messages", body | settings, reply | {"id": "m", "stop_reason": "end_turn"}


def _google(turns: Sequence[Turn], answer: str, settings: dict[str, Any]) -> Made:
    contents: list[dict[str, Any]] = []
    for turn in turns:
        if turn.kind == "call":
            call = {"id": turn.id, "name": "weather", "args": json.loads(turn.text)}
            contents.append({"role": "model", "parts": [{"functionCall": call}]})
        elif turn.kind == "result":
            result = {"id": turn.id, "name": "weather", "response": {"result": turn.text}}
            contents.append({"role": "user", "parts": [{"functionResponse": result}]})
        else:
            contents.append({"role": "user" if turn.kind == "user" else "model", "parts": [{"text": turn.text}]})
    declared = {"name": "weather", "description": "Looks the weather up.", "parameters": SCHEMA}
    body = {
        "contents": contents,
        "systemInstruction": {"parts": [{"text": SYSTEM}]},
        "tools": [{"functionDeclarations": [declared]}],
        "generationConfig": {"temperature": 0} | settings,
    }
    candidate = {"content": {"role": "model", "parts": [{"text": answer}]}, "finishReason": "STOP"}
    return "/v1beta/models/gemini-2.5-flash:generateContent", body, {"candidates": [candidate]}


def _ollama(turns: Sequence[Turn], answer: str, settings: dict[str, Any]) -> Made:
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for turn in turns:
        if turn.kind == "call":
            call = {"id": turn.id, "function": {"name": "weather", "arguments": json.loads(turn.text)}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif turn.kind == "result":
            messages.append({"role": "tool", "tool_name": "weather", "content": turn.text})
        else:
            messages.append({"role": turn.kind, "content": turn.text})
    function = {"name": "weather", "description": "Looks the weather up.", "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    body = {"model": "qwen3", "messages": messages, "tools": tools, "stream": False, "options": {"seed": 1} | settings}
    reply = {"model": "qwen3", "message": {"role": "assistant", "content": answer}, "done": True, "done_reason": "stop"}
    return "/api/chat", body, reply


_PROTOCOLS: dict[str, Callable[[Sequence[Turn], str, dict[str, Any]], Made]] = {
    "openai.chat": _chat,
    "openai.completions": _completions,
    "openai.responses": _responses,
    "anthropic.messages": _anthropic,
    "google.generate_content": _google,
    "ollama.chat": _ollama,
}
PROTOCOLS = tuple(_PROTOCOLS)
WITH_TOOLS = tuple(one for one in PROTOCOLS if one != "openai.completions")
