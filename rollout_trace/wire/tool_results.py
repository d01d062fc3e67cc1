"""Tool runs from conversations: what the prompts say that tools gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.data.model import ErrorInfo, ToolCall, ToolRun
from rollout_trace.data.model import Step as _Step
from rollout_trace.wire.chat_messages import convert, message_groups

if TYPE_CHECKING:
    from collections.abc import Iterable


def tool_runs_of(steps: Iterable[_Step]) -> list[ToolRun]:
    """A run for each tool call of the steps whose result a later prompt has; duration and time are not known."""
    callers: dict[str, tuple[_Step, ToolCall]] = {}
    found: list[ToolRun] = []
    read: set[int] = set()
    for step in steps:
        for group in message_groups(step):
            # Steps share equal messages as one object: each is read once.
            if not group or id(group[0]) in read:
                continue
            read.add(id(group[0]))
            for message in convert(step.protocol, group):
                call_id = message.get("tool_call_id")
                caller = callers.pop(call_id, None) if isinstance(call_id, str) else None
                if message.get("role") != "tool" or caller is None:
                    continue
                content = message.get("content")
                error = ErrorInfo(type="ToolError", message=str(content)) if message.get("is_error") else None
                found.append(
                    ToolRun(
                        tool_call_id=call_id,
                        name=caller[1].name,
                        arguments=caller[1].arguments,
                        result=content,
                        error=error,
                        step_id=caller[0].id,
                    )
                )
        for call in () if step.completion is None else step.completion.tool_calls:
            if call.id is not None:
                callers[call.id] = step, call
    return found
