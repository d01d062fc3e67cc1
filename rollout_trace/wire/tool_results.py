"""Tool runs from conversations: what the prompts say that tools gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import ErrorInfo, Step, ToolRun
from rollout_trace.wire.chat_messages import convert, message_groups

if TYPE_CHECKING:
    from collections.abc import Iterable


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
