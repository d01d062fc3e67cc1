"""Frames of tools."""

from __future__ import annotations

import asyncio
from typing import Any

from rollout_trace.integration import ToolFrame, snapshot


class Tool(ToolFrame):
    """A run of a tool.

    Args:
        name: of the tool.
        arguments: as they are before callbacks change them.
        context: ADK's ``ToolContext``, by which the frame is found again.
    """

    def __init__(self, name: str, arguments: dict[str, Any], context: Any) -> None:
        super().__init__(name, tool_call_id=context.function_call_id, arguments=snapshot(arguments))
        self.context = context
        self._passed = dict(arguments)
        self._task = asyncio.current_task()

    def update_arguments(self, arguments: dict[str, Any]) -> None:
        """Takes arguments that a callback has replaced; not what the tool itself has changed inside of one."""
        for name, value in arguments.items():
            if name not in self._passed or self._passed[name] is not value:
                self.run.arguments[name] = snapshot(value)
        for name in self._passed.keys() - arguments.keys():
            del self.run.arguments[name]

    def end_unreported(self, error: BaseException) -> None:
        """Ends a tool of which no callback has reported the end. ``error``: what ended the run of its agent."""
        is_cancelled = self._task is not None and self._task.cancelled()
        self.end(asyncio.CancelledError("another tool failed") if is_cancelled else error)
