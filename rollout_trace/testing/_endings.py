"""How an answer ended, whatever its provider calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.data.model import CUT_OFF
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_STOP = frozenset({"stop", "end_turn", "stop_sequence", "STOP", "eos", "eos_token", "completed"})
_CALLS = frozenset({"tool_calls", "tool_use", "function_call"})


def ends_as(step: Step, reason: str | None) -> bool:
    """Whether a step's answer ended for a reason, or for what its provider calls so; None: for any but a limit."""
    found = step.finish_reason
    if reason is None:
        return found is not None and found not in CUT_OFF
    return found == reason or _kind(step) == reason


def _kind(step: Step) -> str | None:
    """The reason as OpenAI's chat names it; None where it has no name there."""
    found = step.finish_reason
    if found in CUT_OFF:
        return "length"
    if found in _CALLS:
        return "tool_calls"
    if found not in _STOP:
        return None
    # Google's STOP is the end of an answer with calls too.
    return "tool_calls" if found == "STOP" and step.completion is not None and step.completion.tool_calls else "stop"


def ending_text(step: Step) -> str:
    """How the answer ended, after a comma."""
    if step.finish_reason is None:
        return "but none was recorded"
    return f"found {printable(repr(step.finish_reason), 80)}"
