"""One recorded or new call on one line."""

from __future__ import annotations

from typing import Any

from ._normal_form import form_of, protocol_of, target_of
from ._requests import MatchOptions, Request
from ._text_parts import beginning, one_line


def call_line(request: Request, room: int) -> str:
    """``gpt-4o, user: What is the weather in…``: the model, and the beginning of the last message."""
    if protocol_of(request) is None:
        return beginning(target_of(request), room)
    form = form_of(request, MatchOptions())
    model = beginning(f"{form.model}, ", 40) if form.model else ""
    if not form.messages:
        return beginning(f"{model}no messages", room)
    last = form.messages[-1]
    return beginning(f"{model}{last.role}: {one_line(text_of(last.value))}", room)


def text_of(message: Any) -> Any:
    """The texts of a message, of whatever shape; the message itself where there are none."""
    found = list(_texts(message))
    return " ".join(found) if found else message


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if not isinstance(value, dict):
        return []
    for name in _FIELDS:
        if value.get(name):
            return _texts(value[name]) or [one_line(value[name])]
    calls = value.get("tool_calls") or []
    return [one_line(call.get("function", call)) for call in calls if isinstance(call, dict)]


_FIELDS = (
    "content",
    "parts",
    "text",
    "output",
    "thinking",
    "functionResponse",
    "functionCall",
    "response",
    "arguments",
)
"""Fields of messages and their parts that hold what they say, the telling first."""
