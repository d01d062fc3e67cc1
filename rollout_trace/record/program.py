"""The program's trajectory: takes the calls that a process makes outside of every ``rt.trajectory`` block.

Only where ``start`` was called, as ``rollout-trace run`` does. It is opened by the first such call, and closed at the
end of the process. Each task of a process pool has its own. A test's own trajectory takes its
place while the test runs.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import datetime
from typing import NamedTuple

from rollout_trace import guard
from rollout_trace.data.trajectory import Trajectory, to_task
from rollout_trace.record import ancestry, lifecycle, process_end
from rollout_trace.record.recording import current_recording, set_current_recording
from rollout_trace.record.state import log_of


class _Opened(NamedTuple):
    trajectory: Trajectory
    parent: Trajectory | None
    """Of the process that this one was forked from."""


is_on = False
"""Whether calls outside of every trajectory have one."""
_of_test: Trajectory | None = None
"""The trajectory of the test that runs, which takes such calls then."""
_opened: dict[str | None, _Opened] = {}
"""By the task of a process pool that they belong to; None: the program itself."""
_of_origin: Trajectory | None = None
"""The program's trajectory of the process that this one was forked from, as it was then."""
# Reentrant: the garbage collector may close an agent, and call something, while the lock is held.
_lock = threading.RLock()


def _after_fork() -> None:
    """A forked process has none yet."""
    global _lock, _of_origin
    _lock = threading.RLock()
    if (own := _opened.get(None)) is not None:
        _of_origin = own.trajectory
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def start() -> None:
    """Assigns later calls of this process outside any trajectory to the program's trajectory."""
    global is_on
    is_on = True
    ancestry.program = opened
    ancestry.close_task = _close_task


def takes_calls() -> bool:
    """Whether a call outside of every trajectory has one all the same."""
    return is_on or _of_test is not None


def lend(trajectory: Trajectory | None) -> None:
    """Gives the calls outside of every trajectory to this one, which its caller opens and closes; None: no more."""
    global _of_test
    _of_test = trajectory
    ancestry.program = opened if takes_calls() else None


def opened() -> Trajectory | None:
    """The open trajectory of the program, or of the pool's task that runs here; None if there is none yet."""
    if _of_test is not None and _of_test.is_open:
        return _of_test
    own = _opened.get(ancestry.task()) if is_on else None
    return own.trajectory if own is not None and own.trajectory.is_open else None


def of_call(here: Trajectory | None, started: datetime) -> Trajectory | None:
    """The trajectory for a call that begins outside of those of this process; it is opened by the first one.

    Args:
        here: the trajectory of this context, which is one of the process that this one was forked from; or None.
        started: when the call began. The trajectory begins with the earliest of them.
    """
    if _of_test is not None and (log := log_of(_of_test)) is not None and log.is_ours:
        return _of_test
    if not is_on:
        return None
    with _lock:
        task = ancestry.task()
        own = _opened.get(task)
        if own is None and not process_end.is_running():
            own = _opened[task] = _open(here or (_of_origin if task is None else None))
        if own is None:
            return None
        begun = own.trajectory.started_at
        if own.trajectory.is_open and begun is not None and started < begun:
            # Opening it may take long, for the first call's imports; of two calls in threads the later may open it.
            own.trajectory.started_at = started
        return own.trajectory


def _open(parent: Trajectory | None) -> _Opened:
    # Without an ancestor all processes of a run share its id as that of their episode.
    task, episode = to_task(os.environ.get(ancestry.TASK)), os.environ.get(ancestry.RUN)
    trajectory = Trajectory(name=_name(), task=task, episode_id=episode)
    # Not into a recording of the program that happens to be open now: it is left long before the program ends.
    before = current_recording()
    set_current_recording(lifecycle.fallback_recording())
    try:
        lifecycle.begin(trajectory, parent)
    finally:
        set_current_recording(before)
    return _Opened(trajectory, parent)


def _name() -> str:
    given = os.environ.get(ancestry.NAME)
    if given:
        return given
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        # `python -m name`, and of a package `name.__main__`.
        return str(spec.name).removesuffix(".__main__")
    file = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return "python" if file in ("", "-", "-c", "-m") else os.path.splitext(file)[0]


def close(status: str | None = None, error: BaseException | None = None) -> None:
    """Closes all that is open: ``error`` is the exception that ends the program, ``status`` replaces the outcome."""
    with _lock:
        tasks = list(_opened)
    for task in tasks:
        _close(task, status, error)


def _close(task: str | None, status: str | None, error: BaseException | None) -> None:
    with _lock:
        own = _opened.pop(task, None)
    if own is None:
        return
    if status is not None and own.trajectory.status == "running":
        own.trajectory.status = status
    lifecycle.finish(own.trajectory, own.parent, error)


def _close_task(task: str, error: BaseException | None) -> None:
    guard.run_all("close", lambda: _close(task, None, error))
