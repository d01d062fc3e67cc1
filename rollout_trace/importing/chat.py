"""Chat messages, completions and tool runs from the parts that sources have them in."""

from __future__ import annotations

import json
from typing import Any

from rollout_trace.data.model import Completion, ErrorInfo, ToolCall
from rollout_trace.importing.fields import Fields, is_whole


def arguments_text(value: Any) -> str | None:
    """The arguments of a call as a text: one that the source decoded is written as JSON again."""
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def tool_message(tool_call_id: str | None, content: Any, *, is_error: bool = False) -> dict[str, Any]:
    """A tool's result as the message that the next request has."""
    message = {"role": "tool", "tool_call_id": tool_call_id, "content": "" if content is None else content}
    return {**message, "is_error": True} if is_error else message


def chat_calls(message: Fields) -> tuple[ToolCall, ...]:
    """The tool calls of a message in the shape of chat, or in a flat one (``{"id", "name", "arguments"}``)."""
    found = []
    for call in message.objects("tool_calls"):
        kind = "custom" if call.get("type") == "custom" else "function"
        inner = call.object("custom" if kind == "custom" and "custom" in call.values else "function") or call
        written = inner.get("input") if kind == "custom" and "input" in inner.values else inner.get("arguments")
        found.append(
            ToolCall(id=call.name("id"), name=inner.text("name"), arguments=arguments_text(written), type=kind)
        )
    return tuple(found)


def chat_completion(message: Fields) -> Completion:
    """An answer in the shape of chat; an empty one where there is no message."""
    content = message.get("content")
    return Completion(
        content=content if isinstance(content, (str, list)) else None,
        reasoning=message.text("reasoning_content"),
        tool_calls=chat_calls(message),
    )


def error_of(value: Any) -> ErrorInfo | None:
    """An error from an object or a text of a source; None where there is none."""
    if value is None or value in ("", False):
        return None
    if not isinstance(value, dict):
        return ErrorInfo(type="Error", message=value if isinstance(value, str) else json.dumps(value))
    code, status = value.get("code"), value.get("status", value.get("status_code"))
    message = value.get("message")
    return ErrorInfo(
        type=str(value.get("type") or "Error"),
        message=message if isinstance(message, str) else json.dumps(value if message is None else message),
        code=code if isinstance(code, str) or _is_small(code) else None,
        status=status if _is_small(status) else None,
    )


def _is_small(value: Any) -> bool:
    return is_whole(value) and abs(value) < 2**31
