"""Slots in the context, through which an async call finds a frame that was opened in another task.

LangChain reports the start of an async text model in tasks of their own, which end before the model is called: a frame
that they enter is not visible where the call is made. Both contexts are copies of the one in which LangChain collects
its handlers. A slot that is entered there is shared by the copies: the task sets the slot's frame, and the call finds
it.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace.integration import Frame, ModelFrame
from rollout_trace.integration import enter as enter_frame
from rollout_trace.integration import entered as entered_frame

if TYPE_CHECKING:
    from rollout_trace_langchain.run import Run


class Batch:
    """Prompts of one batch. LangChain reports the start of each of them before it calls the model."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters
        self.latest: Run | None = None
        """The run of the latest prompt."""
        self.frames: list[ModelFrame] = []
        """The frames of its prompts, in order; only for text models."""


class ContextSlot(Frame):
    """A placeholder that counts as closed, so that its parent is the active frame. The parent may be replaced."""

    agent = scope = trajectory = None
    is_open = False
    batch: Batch | None = None
    """The batch that LangChain reported last."""

    def __init__(self, target: Frame | None) -> None:
        # Not the base's: it would skip a closed frame or a model call, and list the slot among the frame's inner ones.
        self.parent = target


def enter() -> None:
    """Enters a slot with the frame that was entered before."""
    # Earlier slots are skipped, or they would form a chain that grows with each call.
    target = entered_frame()
    while isinstance(target, ContextSlot):
        target = target.parent
    enter_frame(ContextSlot(target))


def current() -> ContextSlot | None:
    """The slot of this context; None without an event loop: threads with copies of the context would share it."""
    if _get_running_loop() is None:
        return None
    frame = entered_frame()
    return frame if isinstance(frame, ContextSlot) else None
