"""The current trajectory block and the current frame, held in context variables; and the calls that belong to them.

A frame is one activity of a framework: an agent run, a model call, a tool run. Trajectory blocks and frames nest in any
order. A call belongs, from its start, to the trajectory that its client is bound to, else to the innermost frame that
is open and takes calls, unless the user opened a ``with rt.trajectory()`` block inside that frame; else to the orphans.
"""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.record import program
from rollout_trace.record.call import just_ended
from rollout_trace.record.decoder import deferred, drain
from rollout_trace.record.log import StepLog
from rollout_trace.record.state import log_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.call import Call

current_scope: ContextVar[Trajectory | None] = ContextVar("rollout_trace_trajectory", default=None)
"""The trajectory whose ``with rt.trajectory()`` block this context is in."""
current_frame: ContextVar[Frame | None] = ContextVar("rollout_trace_frame", default=None)
"""Returns the frame that this context entered last, open or not."""


def active() -> Frame | None:
    """Returns the innermost open frame of this context; None if the user opened a trajectory block inside it."""
    frame = _nearest_open(current_frame.get())
    return frame if frame is not None and frame.scope is current_scope.get() else None


def _nearest_open(frame: Frame | None) -> Frame | None:
    while frame is not None and not (frame.is_open and frame.takes_calls):
        frame = frame.parent
    return frame


def here() -> Trajectory | None:
    """The trajectory of this context: the active frame's, else that of the surrounding ``with`` block; or None."""
    frame = active()
    return current_scope.get() if frame is None else frame.trajectory


def enter(frame: Frame | None) -> Frame | None:
    """Sets the frame of this context and returns the previous one."""
    before = current_frame.get()
    current_frame.set(frame)
    return before


def entered() -> Frame | None:
    """Returns the frame that this context entered last, open or not."""
    return current_frame.get()


class Frame:
    """One activity of a framework, such as an agent run. Base class of ``AgentFrame``, ``ModelFrame``, ``ToolFrame``.

    Frames nest: ending a frame ends those inside it. Thread-safe if the framework calls a frame's hooks in order.
    """

    holds_others = True
    """Whether other frames can be children of this one."""
    takes_calls = True
    """Whether calls made in its context still belong to it."""

    def __init__(self, parent: Frame | None, agent: str | None) -> None:
        outer = active() if parent is None else _nearest_open(parent)
        if outer is not None and not outer.holds_others:
            # A model call has no children: a context may still be inside one when the agent's next activity begins.
            outer = outer.parent
        self.parent: Frame | None = outer
        """The enclosing frame: the one passed in, or the active one of this context."""
        self.agent: str | None = agent if agent is not None or outer is None else outer.agent
        """Name of the agent, inherited from the parent if not passed in."""
        self.scope = scope = current_scope.get()
        """The trajectory of the ``with`` block that the frame began in."""
        self.trajectory: Trajectory | None = scope if outer is None else outer.trajectory
        """The trajectory that the frame is recorded in; None without one, and after the frame has ended."""
        self.is_open = True
        """Whether the frame is still open."""
        self._inner: dict[Frame, None] = {}
        if outer is not None:
            outer._inner[self] = None

    def enter(self) -> Self:
        """Makes this the current frame: calls made in this context, and in copies of it, belong to the frame.

        No counterpart is needed: when the frame has ended, its parent is the active frame again.
        """
        enter(self)
        return self

    def end(self, error: BaseException | None = None) -> None:
        """Ends the frame and every open frame inside it; ``error`` is the exception that ended it, if any.

        Calling it again does nothing.
        """
        if not self.is_open:
            return
        # Inner frames first: a trajectory that one of them opened is written with this one's, if that is open still.
        if self._inner:
            for inner in list(self._inner):
                inner.abandon()
        # Before `_ended`: it may close the trajectory, which abandons all its open frames.
        self.is_open = False
        if self.parent is not None:
            self.parent._inner.pop(self, None)
        try:
            self._ended(error)
        except Exception as failure:
            guard.failed("end", None, failure)
        self.trajectory = None

    def abandon(self) -> None:
        """Ends the frame because an enclosing frame ended and no hook reported an outcome."""
        self.end()

    def forget(self) -> None:
        """Drops references to recorded data once the trajectory is closed; contexts may keep the frame alive."""

    def join(self, call: Call) -> None:
        """Assigns a call that begins on a wrapped client in this context. Only model frames use it."""

    def _enlist(self) -> None:
        """Registers the frame, so that closing the trajectory ends it."""
        log = log_of(self.trajectory)
        if log is not None:
            log.frames.append(self)

    def _ended(self, error: BaseException | None) -> None:
        """Hook for subclasses: runs once, at the end, while ``trajectory`` is still set."""

    def __enter__(self) -> Self:
        self._before = current_frame.get()
        return self.enter()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)
        # Not reset(token): a generator may leave the block in another context than it entered.
        enter(self._before)


# Calls

ORPHANS_KEPT = 1000
"""Most calls outside every trajectory that are kept; older ones are dropped and counted."""

threads_carry = False
"""Whether threads take over the trajectory of their starter. Set by ``process``."""

_orphans = StepLog(keep=ORPHANS_KEPT)


def _after_fork() -> None:
    """A forked process has no orphans of its own yet."""
    global _orphans
    _orphans = StepLog(keep=ORPHANS_KEPT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def orphans() -> list[Step]:
    """Returns the steps of the latest calls made outside any trajectory, at most 1000 calls."""
    return _orphans.steps()


def place(call: Call) -> None:
    """Adds a call that begins to its trajectory, or to the orphans."""
    guard.call_began()
    # Here, in the user's code: the garbage collector ends calls too, and must not decode them.
    if just_ended or deferred:
        drain()
    bound = call.settings.trajectory
    frame = active()
    of_context = current_scope.get() if frame is None else frame.trajectory
    trajectory = of_context if bound is None else bound()
    log = log_of(trajectory)
    # Outside of every trajectory, or in one of the process that this one was forked from.
    is_outside = trajectory is None and bound is None if log is None else not log.is_ours
    if is_outside and program.takes_calls():
        trajectory = program.of_call(trajectory, datetime.fromtimestamp(call.started, timezone.utc))
        log = log_of(trajectory)
    # Refused: a trajectory closed meanwhile by another thread, or one of the process that this one was forked from.
    if log is not None and trajectory is not None and log.add(call):
        call.agent = trajectory.name if bound is not None or frame is None else frame.agent or trajectory.name
        # A bound client may call inside a frame of another trajectory: that frame is about other calls.
        if frame is not None and frame.trajectory is trajectory:
            frame.join(call)
        return
    guard.count("orphans")
    if _orphans.size == ORPHANS_KEPT:
        guard.count("orphans_dropped")
    _orphans.add(call)
    _warn(trajectory if log is None or log.is_ours else None)


def _warn(closed: Trajectory | None) -> None:
    """Warns of a call that no trajectory takes: once of each of its causes.

    Args:
        closed: the trajectory of this process that it was made in, where that has closed already.
    """
    thread = threading.current_thread()
    kept = "It is kept in rt.orphans(), not in a file."
    if closed is not None:
        guard.warn_once(
            "orphan-closed",
            f"a model call was made in the trajectory {closed.name!r}, which had closed already, in the thread "
            f"{thread.name!r}. {kept} Keep the trajectory open until its calls are made. Join or await, inside its "
            "block, the threads and tasks that make them.",
        )
    elif thread is threading.main_thread():
        guard.warn_once(
            "orphan",
            f"a model call was made outside every open trajectory. {kept} Wrap the run in `with rt.trajectory():`; in "
            "a thread use rt.propagate(function) or rt.bind(client, trajectory).",
        )
    elif threads_carry:
        guard.warn_once(
            "orphan-thread",
            f"a model call was made outside every open trajectory, in the thread {thread.name!r}. {kept} Open the "
            "trajectory before you start the thread or submit the task. If the thread makes a run of its own, wrap "
            "that run in `with rt.trajectory():`. A thread that was started before rt.instrument(), or that takes its "
            "jobs from a queue, needs rt.propagate(function).",
        )
    else:
        guard.warn_once(
            "orphan-thread",
            f"a model call was made outside every open trajectory, in the thread {thread.name!r}. {kept} Threads do "
            "not inherit a trajectory by themselves. Call rt.instrument(threads=True) when the program begins, give "
            "the thread rt.propagate(function), or give it a client from rt.bind(client, trajectory). If the thread "
            "makes a run of its own, wrap that run in `with rt.trajectory():`.",
        )
