"""What a frame of smolagents knows beyond a frame: a turn of the agent's loop, and what was asked for in it."""

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
"""Levels of a value that are looked into: one may hold itself."""

TurnKind: TypeAlias = Literal["action", "planning", "final_answer"]


class TurnFrame(Frame):
    """One turn of an agent's loop: at most one call of the model that counts, and the tools it asked for."""

    def __init__(self, kind: TurnKind, number: int | None) -> None:
        super().__init__(None, None)
        self.metadata: Mapping[str, Any] = {"turn": kind, "step_number": number}
        """For the steps of the model calls inside: the kind of turn, and smolagents' number of the agent's step."""
        self.generation: ModelFrame | None = None
        """The latest model call."""
        self._asked: list[ToolCall] = []

    def saw(self, item: Any) -> None:
        """Of what the turn yields: a tool call, before it is run."""
        if isinstance(item, ToolCall):
            self._asked.append(item)

    def claim(self, name: str, arguments: Any) -> str | None:
        """The id of the call that is about to run, once; None where nobody asked for it."""
        of_name = [call for call in list(self._asked) if call.name == name]
        # smolagents hands on the very object; of calls without arguments one is as good as another.
        same = [call for call in of_name if call.arguments is arguments] or [
            call for call in of_name if (call.arguments or {}) == arguments
        ]
        for call in same:
            try:
                self._asked.remove(call)
            except ValueError:  # Another thread was faster.
                continue
            return str(call.id)
        return None

    def _ended(self, error: BaseException | None) -> None:
        if isinstance(error, AgentParsingError) and self.generation is not None:
            self.generation.failed(error)


@guarded
def begin_turn(kind: TurnKind, number: int | None) -> TurnFrame:
    """A turn of the agent's loop begins."""
    return TurnFrame(kind, number)


@guarded
def begin_tool(name: str, arguments: Any) -> ToolFrame:
    """A tool, or a managed agent, is about to be called in this context."""
    around = active()
    tool_call_id = around.claim(name, arguments) if isinstance(around, TurnFrame) else None
    frame = ToolFrame(name, tool_call_id=tool_call_id, arguments=plain(arguments))
    while around is not None and not isinstance(around, (TurnFrame, AgentFrame)):
        around = around.parent
    if isinstance(around, TurnFrame) and around.generation is not None:
        # The id may be smolagents' own, which the model has never seen.
        frame.run.step_id = around.generation.step_id
    return frame


@guarded
def tool_gave(frame: ToolFrame, result: Any) -> None:
    """A tool returned."""
    frame.run.result = plain(result)


def plain(value: Any, depth: int = 0) -> Any:
    """A value of a tool's as it is now: as JSON holds it where it can, else as text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        return {key: plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        return [plain(item, depth + 1) for item in value]
    # The text of an AgentImage or AgentAudio is the path of a file that it would write first.
    return object.__repr__(value) if isinstance(value, AgentType) else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as failure:
        return f"<{type(value).__name__}: its str() raised {type(failure).__name__}>"
