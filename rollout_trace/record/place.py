"""Assignment of calls to trajectories, at their start: by the client's binding, else by context. Else: orphans."""

from __future__ import annotations

import os
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.record import program
from rollout_trace.record.call import deferred, drain, pending
from rollout_trace.record.log import StepLog
from rollout_trace.record.scope import active, current_scope
from rollout_trace.record.state import log_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.call import Call

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
    """The steps of the latest calls made outside every trajectory, at most 1000 calls."""
    return _orphans.steps()


def place(call: Call) -> None:
    """Adds a call that begins to its trajectory, or to the orphans."""
    guard.call_began()
    # Here, in the user's code: the garbage collector ends calls too, and must not decode them.
    if pending.ended or deferred:
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
    if log is not None and trajectory is not None and log.admit(call):
        call.agent = trajectory.name if bound is not None or frame is None else frame.agent or trajectory.name
        # A bound client may call inside a frame of another trajectory: that frame is about other calls.
        if frame is not None and frame.trajectory is trajectory:
            frame.join(call)
        return
    guard.count("orphans")
    if _orphans.size == ORPHANS_KEPT:
        guard.count("orphans_dropped")
    _orphans.admit(call)
    _warn(trajectory if log is None or log.is_ours else None)


def _warn(closed: Trajectory | None) -> None:
    """Warns of a call that no trajectory takes: once of each of its causes.

    Args:
        closed: the trajectory of this process that it was made in, where that has closed already.
    """
    thread = threading.current_thread()
    kept = "it is kept in rt.orphans(), not in a file."
    if closed is not None:
        guard.warn_once(
            "orphan-closed",
            f"a model call was made in the trajectory {closed.name!r}, which had closed already, in the thread "
            f"{thread.name!r}; {kept} Keep the trajectory open until its calls have been made: join or await, in its "
            "block, the threads and tasks that make them.",
        )
    elif thread is threading.main_thread():
        guard.warn_once(
            "orphan",
            f"a model call was made outside every open trajectory; {kept} Wrap the run in `with rt.trajectory():`; in "
            "a thread use rt.propagate(function) or rt.bind(client, trajectory).",
        )
    elif threads_carry:
        guard.warn_once(
            "orphan-thread",
            f"a model call was made outside every open trajectory, in the thread {thread.name!r}; {kept} Open the "
            "trajectory before the thread is started or the task submitted; where the thread's run is one of its own, "
            "wrap it in `with rt.trajectory():`. A thread that was started before rt.instrument(), or that takes its "
            "jobs from a queue, needs rt.propagate(function).",
        )
    else:
        guard.warn_once(
            "orphan-thread",
            f"a model call was made outside every open trajectory, in the thread {thread.name!r}; {kept} Threads do "
            "not take over the trajectory of their starter: call rt.instrument(threads=True) when the program begins, "
            "or start the thread, or submit the task, with rt.propagate(function); rt.bind(client, trajectory) needs "
            "neither. Where the thread's run is one of its own, wrap it in `with rt.trajectory():`.",
        )
