"""How a call finds its frame where LangChain tells of a model in a task of its own.

An async text model is told of in tasks that end before it is called: what they enter is not seen where the call is
made. Both contexts come from the one in which LangChain gathers its handlers. There a passage is entered, an object
that they share: the tasks put the frame behind it, and the call finds it there.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING

from rollout_trace.integration import Frame
from rollout_trace.integration import enter as enter_frame
from rollout_trace.integration import entered as entered_frame

if TYPE_CHECKING:
    from rollout_trace_langchain.calls import Batch


class Passage(Frame):
    """No frame of its own: the one behind it is meant."""

    def __init__(self, behind: Frame | None) -> None:
        self.parent = behind
        self.agent = self.scope = self.trajectory = None
        self.is_open = False
        self._inner = {}
        self.batch: Batch | None = None
        """What was told of last."""


def enter() -> None:
    """Enters a passage to the frame that was entered before."""
    behind = entered_frame()
    while isinstance(behind, Passage):
        behind = behind.parent
    enter_frame(Passage(behind))


def entered() -> Passage | None:
    """The passage of this context; None where there is none, or one that other threads share."""
    if _get_running_loop() is None:
        return None
    frame = entered_frame()
    return frame if isinstance(frame, Passage) else None
