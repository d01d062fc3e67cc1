"""Converts the input of a Responses request to chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_Json = dict[str, Any]


def conversation(request: Mapping[str, Any], earlier: Sequence[_Json] = ()) -> list[_Json]:
    """The messages of a request: `instructions`, then `earlier` ones that the server keeps, then its own.

    Items of one answer (reasoning, text, function calls), sent back in their order, become one assistant message, so
    that it renders to the ids that were sampled.

    Raises:
        ValueError: the input is neither a text nor a list of items, or an item has an unsupported type.
    """
    value = request.get("input", "")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"`input` should be a text or a list of objects, not {value!r}")
    instructions = request.get("instructions")
    messages: list[_Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    messages += earlier
    assistant: _Json | None = None
    for item in items:
        message = _message(item)
        if message["role"] != "assistant":
            assistant = None
        elif assistant is not None and _continues(assistant, message):
            _join(assistant, message)
            continue
        else:
            assistant = message
        messages.append(message)
    return messages


def _message(item: _Json) -> _Json:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role", "user"), "content": item.get("content")}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {"role": "assistant", "tool_calls": [{"id": item.get("call_id"), "function": function}]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        return {"role": "assistant", "reasoning": "".join(str(part.get("text", "")) for part in parts)}
    raise ValueError(f"a scripted server has no message for an input item of type {kind!r}")


def _continues(before: _Json, message: _Json) -> bool:
    """Whether a message continues the assistant message before it: reasoning, text, calls, in order."""
    if "reasoning" in message:
        return False
    return not (before.keys() & {"content", "tool_calls"} if "content" in message else ())


def _join(before: _Json, message: _Json) -> None:
    calls = message.pop("tool_calls", [])
    before.update({name: value for name, value in message.items() if name != "role"})
    if calls:
        before.setdefault("tool_calls", []).extend(calls)
