"""Chat messages, completions and tool runs from the parts that sources have them in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Completion, ErrorInfo, Step, ToolCall, ToolRun
from rollout_trace.importing.fields import is_whole
from rollout_trace.wire.chat_messages import convert, message_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollout_trace.importing.fields import Fields


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


class ToolCalls:
    """The tool calls so far, by their ids: which of them a result is of."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    def add(self, step: Step) -> None:
        """Adds the calls of a step."""
        for call in () if step.completion is None else step.completion.tool_calls:
            if call.id is not None:
                self.note(call.id, call.name, call.arguments, step.id)

    def note(self, call_id: str | None, name: Any, arguments: Any, step_id: str | None) -> None:
        """Adds a call."""
        name = name if isinstance(name, str) else None
        self._known[call_id or ""] = {"name": name, "arguments": arguments, "step_id": step_id}

    def run(self, call_id: str | None, result: Any, *, is_error: bool | None = False, **facts: Any) -> ToolRun:
        """The run that gave a result, with what is known of its call."""
        error = ErrorInfo(type="ToolError", message=str(result)[:2000]) if is_error else None
        known = self._known.get(call_id or "", {})
        return ToolRun(tool_call_id=call_id, result=result, **{"error": error, **known, **facts})

    def first_run(self, message: dict[str, Any]) -> ToolRun | None:
        """The run that a message of a tool is the result of; None where it has been told, or its call is not known."""
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str) or message.get("role") != "tool" or call_id not in self._known:
            return None
        run = self.run(call_id, message.get("content"), is_error=bool(message.get("is_error")))
        del self._known[call_id]
        return run


def tool_runs_of(steps: Iterable[Step]) -> list[ToolRun]:
    """A run for each tool call of the steps whose result a later prompt has; duration and time are not known."""
    calls = ToolCalls()
    found: list[ToolRun | None] = []
    read: set[int] = set()
    for step in steps:
        for group in message_groups(step):
            # Steps share equal messages as one object: each is read once.
            if group and id(group[0]) not in read:
                read.add(id(group[0]))
                found += [calls.first_run(message) for message in convert(step.protocol, group)]
        calls.add(step)
    return [run for run in found if run is not None]
