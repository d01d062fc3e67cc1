"""Where a context is: the ``with rt.trajectory()`` block it is in, and the frame that it entered last.

A frame is something that a framework does: an agent runs, a model is called, a tool runs. Blocks and frames lie inside
each other in any order; a call belongs to the innermost frame that is open and takes calls, unless the user opened a
block inside of it.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.record.state import log_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.call import Call

current_scope: ContextVar[Trajectory | None] = ContextVar("rollout_trace_trajectory", default=None)
"""The trajectory whose ``with rt.trajectory()`` block this context is in."""
_entered: ContextVar[Frame | None] = ContextVar("rollout_trace_frame", default=None)


def active() -> Frame | None:
    """The innermost frame of this context that has not ended; None where the user opened a trajectory inside it."""
    frame = _nearest(_entered.get())
    return frame if frame is not None and frame.scope is current_scope.get() else None


def _nearest(frame: Frame | None) -> Frame | None:
    while frame is not None and not (frame.is_open and frame.takes_calls):
        frame = frame.parent
    return frame


def here() -> Trajectory | None:
    """The trajectory of this context: that of the active frame, or of the ``with`` block around."""
    frame = active()
    return current_scope.get() if frame is None else frame.trajectory


def enter(frame: Frame | None) -> Frame | None:
    """Makes a frame this context's, and gives the one before."""
    before = _entered.get()
    _entered.set(frame)
    return before


def entered() -> Frame | None:
    """The frame that this context entered last, open or not."""
    return _entered.get()


class Frame:
    """Something that a framework does. Thread safe where the framework calls its hooks in order."""

    holds_others = True
    """Whether other frames can lie inside."""

    def __init__(self, parent: Frame | None, agent: str | None) -> None:
        around = active() if parent is None else _nearest(parent)
        # A model call is not a place where other things happen, though a context may still be in one.
        self.parent: Frame | None = around if around is None or around.holds_others else around.parent
        """The frame around this one: the given one, or the active one of this context."""
        self.agent: str | None = agent if agent is not None or self.parent is None else self.parent.agent
        """Name of the agent that does it."""
        self.scope = current_scope.get()
        self.trajectory: Trajectory | None = self.scope if self.parent is None else self.parent.trajectory
        """Where it is recorded; None where there is no trajectory, or when the frame has ended."""
        self.is_open = True
        self._inner: dict[Frame, None] = {}
        if self.parent is not None:
            self.parent._inner[self] = None

    @property
    def takes_calls(self) -> bool:
        """Whether what happens in its context is still its own."""
        return True

    def enter(self) -> Self:
        """Makes the frame this context's: calls made in it, and in contexts copied from it, belong to the frame.

        Nothing needs to be undone: a frame that has ended gives way to the one around it.
        """
        enter(self)
        return self

    def end(self, error: BaseException | None = None) -> None:
        """It is over, and so is all that went on inside; ``error`` is what ended it. Only the first end counts."""
        if not self.is_open:
            return
        for inner in list(self._inner):
            inner.abandon()
        self.is_open = False
        if self.parent is not None:
            self.parent._inner.pop(self, None)
        try:
            self._ended(error)
        except Exception as failure:
            guard.failed("end", None, failure)
        self.trajectory = None

    def abandon(self) -> None:
        """What was around it is over, and nobody said how this ended."""
        self.end()

    def forget(self) -> None:
        """Lets go of what it holds: its trajectory is closed, and a context may know the frame for long."""

    def join(self, call: Call) -> None:
        """A call on a wrapped client begins in its context. Only the frame of a model call makes use of it."""

    def _enlist(self) -> None:
        """Has its trajectory end it, if nobody does before."""
        log = log_of(self.trajectory)
        if log is not None:
            log.frames.append(self)

    def _ended(self, error: BaseException | None) -> None:
        """What kinds of frames do at their end."""

    def __enter__(self) -> Self:
        self._before = _entered.get()
        return self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)
        # Not reset(token): a generator may leave the block in another context than it entered.
        enter(self._before)
