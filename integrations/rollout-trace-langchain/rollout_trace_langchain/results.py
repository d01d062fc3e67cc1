"""Arguments and results of tool runs. The result is what the model reads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import ToolMessage

from rollout_trace.integration import ErrorInfo, ToolRun
from rollout_trace_langchain.commands import command_summary, is_command, messages_in

_UNCHANGING = frozenset({bool, float, int, str, type(None)})
"""Types of values that need no copy."""


def copy_arguments(inputs: Mapping[str, Any], text: str) -> Any:
    """A copy of the arguments, as the tool may change them; ``text`` if they cannot be copied."""
    copied = dict(inputs)
    if _UNCHANGING.issuperset(map(type, copied.values())):
        return copied
    try:
        return copy.deepcopy(copied)
    except Exception:
        return text


def set_tool_result(run: ToolRun, output: Any) -> None:
    """Sets the result of a tool run, and its error, from the tool's output: in full, as the model reads it."""
    message = _message_for(run.tool_call_id, output)
    if message is None:
        run.result = _copy(command_summary(output) if is_command(output) else output)
        return
    run.result = _copy(message.content)
    if message.status == "error":
        run.error = ErrorInfo(type="ToolException", message=message.text)


def _copy(value: Any) -> Any:
    """A copy of a value, as the tool may change it later; the value itself if it cannot be copied."""
    if type(value) in _UNCHANGING:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _message_for(tool_call_id: str | None, output: Any) -> ToolMessage | None:
    """The message with the call's id, not one of the conversation before; the last one for a tool run without an id."""
    if isinstance(output, ToolMessage):
        return output
    answers = [message for message in messages_in(output) if isinstance(message, ToolMessage)]
    matching = [message for message in answers if tool_call_id in (None, message.tool_call_id)]
    return matching[-1] if matching else None
