"""The trajectory, in another process, that this process was started by: the parent of those that it opens.

It reaches a process through the environment variable ``ROLLOUT_TRACE_PARENT``, a child of ``multiprocessing`` through
an attribute of its process object, and a worker process of a pool with each task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace import guard

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

OUTPUT = "ROLLOUT_TRACE_OUTPUT"
"""Variable: absolute path of the file that a child process appends its trajectories to."""
ENGINE = "ROLLOUT_TRACE_ENGINE"
"""Variable: name of the engine that its clients ask, as for ``rt.instrument(engine=)``."""
RUN = "ROLLOUT_TRACE_RUN"
"""Variable: id of the run, 32 hex digits."""
PARENT = "ROLLOUT_TRACE_PARENT"
"""Variable: ``EPISODE_ID:TRAJECTORY_ID``, or ``EPISODE_ID:TRAJECTORY_ID:STEP_ID``."""
NAME = "ROLLOUT_TRACE_NAME"
"""Variable: name of the program's trajectory."""
TASK = "ROLLOUT_TRACE_TASK"
"""Variable: id of its task."""
ATTRIBUTE = "_rollout_trace_parent"
"""Attribute of a ``multiprocessing`` process: the text of an ``Ancestor``. It is pickled with it, or inherited."""


class Ancestor(NamedTuple):
    """The trajectory that started this process."""

    episode_id: str
    trajectory_id: str
    step_id: str | None = None
    """The step after which it did; None if it had none, or it is not known."""

    @property
    def text(self) -> str:
        """The value of ``ROLLOUT_TRACE_PARENT``."""
        return ":".join(part for part in self if part is not None)


class _Task(NamedTuple):
    id: str
    ancestor: Ancestor | None


_task: ContextVar[_Task | None] = ContextVar("rollout_trace_task", default=None)
"""The task of a pool that runs here: it may come from another trajectory than the one that started the process."""

task_closers: list[Callable[[str, BaseException | None], Any]] = []
"""Called at the end of a pool's task, in its process: with the id of the task, and the exception that ended it."""

program: Callable[[], Trajectory | None] | None = None
"""Gives the program's own trajectory, where it has been opened; set by what opens it. Never opens one."""


def ancestor() -> Ancestor | None:
    """The parent of the trajectories that have none in this process; None if it is not known."""
    task = _task.get()
    if task is not None:
        return task.ancestor
    # The process object is newer than the environment: `multiprocessing` starts processes with that of this one.
    # Looked up, not imported: a process of `multiprocessing` has it.
    module = sys.modules.get("multiprocessing.process")
    text = None if module is None else getattr(module.current_process(), ATTRIBUTE, None)
    return parse(text if isinstance(text, str) else os.environ.get(PARENT))


def parse(text: str | None) -> Ancestor | None:
    """Reads a value of ``ROLLOUT_TRACE_PARENT``; what is none is logged once, and is None."""
    if not text:
        return None
    parts = text.split(":", 2)
    if len(parts) < 2 or not all(parts):
        guard.warn_once(
            "ancestor",
            f"{PARENT}={text!r:.200} names no trajectory: those of this process begin episodes of their own. Expected "
            "EPISODE_ID:TRAJECTORY_ID or EPISODE_ID:TRAJECTORY_ID:STEP_ID, as rt.child_environment() gives it.",
        )
        return None
    return Ancestor(*parts)


def task() -> str | None:
    """Id of the pool's task that runs here, new for each; None outside one."""
    task = _task.get()
    return None if task is None else task.id


def begin_task(parent: Ancestor | None) -> Token[_Task | None]:
    """Begins a pool's task in its process: ``ancestor()`` is the trajectory that it was submitted in, or None."""
    return _task.set(_Task(os.urandom(16).hex(), parent))


def end_task(begun: Token[_Task | None], error: BaseException | None) -> None:
    """Ends it: ``error`` is the exception that it raised. Runs the functions of ``task_closers``."""
    task = _task.get()
    try:
        if task is not None:
            guard.run_all("task", *(partial(close, task.id, error) for close in task_closers))
    finally:
        _task.reset(begun)
