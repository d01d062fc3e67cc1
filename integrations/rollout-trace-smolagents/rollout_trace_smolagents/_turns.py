"""Frames of turns and tools. A turn holds the tool calls that the model requested in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from smolagents.agent_types import AgentType
from smolagents.memory import ToolCall
from smolagents.utils import AgentParsingError

from rollout_trace.integration import AgentFrame, Frame, ToolFrame, active, guarded

if TYPE_CHECKING:
    from rollout_trace.integration import ModelFrame

_DEEPEST = 100
"""Most levels of a value that are copied: a value may contain itself."""

TurnKind: TypeAlias = Literal["action", "planning", "final_answer"]


class TurnFrame(Frame):
    """One turn of an agent's loop: at most one model call whose answer is used, and the tools requested in it."""

    def __init__(self, kind: TurnKind, number: int | None) -> None:
        super().__init__(None, None)
        self.metadata: Mapping[str, Any] = {"turn": kind, "step_number": number}
        """Metadata for the steps of the model calls inside: the kind of turn, and smolagents' step number."""
        self.generation: ModelFrame | None = None
        """The latest model call."""
        self._requested_calls: list[ToolCall] = []
        """Tool calls that have not run yet."""

    def on_item(self, item: Any) -> None:
        """Keeps a tool call that the turn yields: smolagents yields each one before it runs."""
        if isinstance(item, ToolCall):
            self._requested_calls.append(item)

    def take_call_id(self, name: str, arguments: Any) -> str | None:
        """The id of the requested call that is about to run; None if there is none. Each call is used once."""
        candidates = [call for call in list(self._requested_calls) if call.name == name]
        # smolagents passes the same object on, which distinguishes calls with equal arguments. Without arguments it
        # makes a new one: then any call of this name will do.
        matching = [call for call in candidates if call.arguments is arguments] or [
            call for call in candidates if (call.arguments or {}) == arguments
        ]
        for call in matching:
            try:
                self._requested_calls.remove(call)
            except ValueError:  # Another thread was faster.
                continue
            return str(call.id)
        return None

    def _ended(self, error: BaseException | None) -> None:
        if isinstance(error, AgentParsingError) and self.generation is not None:
            self.generation.failed(error)


@guarded
def begin_turn(kind: TurnKind, number: int | None) -> TurnFrame:
    """Begins the frame of a turn. ``number``: smolagents' number of the step."""
    return TurnFrame(kind, number)


@guarded
def begin_tool(name: str, arguments: Any) -> ToolFrame:
    """Begins the frame of a tool, or of a managed agent, that is about to be called in this context."""
    enclosing = active()
    tool_call_id = enclosing.take_call_id(name, arguments) if isinstance(enclosing, TurnFrame) else None
    frame = ToolFrame(name, tool_call_id=tool_call_id, arguments=json_snapshot(arguments))
    while enclosing is not None and not isinstance(enclosing, (TurnFrame, AgentFrame)):
        enclosing = enclosing.parent
    if isinstance(enclosing, TurnFrame) and enclosing.generation is not None:
        # Linked by the step, as the id may be smolagents' own, which is in no answer of the model.
        frame.run.step_id = enclosing.generation.step_id
    return frame


@guarded
def set_tool_result(frame: ToolFrame, result: Any) -> None:
    """Sets the result of a tool run."""
    frame.run.result = json_snapshot(result)


def json_snapshot(value: Any, depth: int = 0) -> Any:
    """A copy of a tool's argument or result, of values that JSON can hold; anything else as text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        return {key: json_snapshot(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        return [json_snapshot(item, depth + 1) for item in value]
    # Not `str()` of an AgentImage or AgentAudio: it would write a file to return its path.
    return object.__repr__(value) if isinstance(value, AgentType) else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as failure:
        return f"<{type(value).__name__}: its str() raised {type(failure).__name__}>"
