"""What a tool's run was given, and its result: what the model is told."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import ToolMessage

from rollout_trace.integration import ErrorInfo, ToolRun
from rollout_trace_langchain.commands import described, is_command, messages_in


def snapshot(inputs: Mapping[str, Any], text: str) -> Any:
    """The arguments as they are now: a tool may change what it is given."""
    try:
        return copy.deepcopy(dict(inputs))
    except Exception:
        return text


def put_result(run: ToolRun, output: Any) -> None:
    """What the model is told, whole."""
    message = _message_for(run.tool_call_id, output)
    if message is None:
        run.result = _copied(described(output) if is_command(output) else output)
        return
    run.result = _copied(message.content)
    if message.status == "error":
        run.error = ErrorInfo(type="ToolException", message=message.text)


def _copied(value: Any) -> Any:
    """A value as it is now: a tool may go on with what it gave."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _message_for(tool_call_id: str | None, output: Any) -> ToolMessage | None:
    """The message that answers the call, not one of the conversation before; of a tool without a call the last one."""
    if isinstance(output, ToolMessage):
        return output
    told = [message for message in messages_in(output) if isinstance(message, ToolMessage)]
    found = [message for message in told if tool_call_id in (None, message.tool_call_id)]
    return found[-1] if found else None
