"""This process among others: the trajectory that started it, and what is noted for the processes that it starts.

It is the parent of those that this process opens. It reaches a process through the environment variable
``ROLLOUT_TRACE_PARENT``, a child of ``multiprocessing`` through an attribute of its process object, and a worker
process of a pool with each task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace import guard

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.state import Member

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

close_task: Callable[[str, BaseException | None], object] | None = None
"""Called at the end of a pool's task, in its process, with the id of the task and the exception that ended it; set as
``program`` is."""

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
    """Parses a value of ``ROLLOUT_TRACE_PARENT``; an invalid one is logged once and gives None."""
    if not text:
        return None
    parts = text.split(":", 2)
    if len(parts) < 2 or not all(parts):
        guard.warn_once(
            "ancestor",
            f"{PARENT}={text!r:.200} names no trajectory: trajectories of this process begin new episodes. Expected "
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
    """Ends it: ``error`` is the exception that it raised."""
    task = _task.get()
    try:
        if task is not None and close_task is not None:
            close_task(task.id, error)
    finally:
        _task.reset(begun)


class OtherProcesses:
    """Notes that a recording writes at its end for other processes with trajectories of the same episodes.

    Args:
        output: its file or folder; None where nothing can be noted, as at an address.
    """

    def __init__(self, output: str | None) -> None:
        self._output = output
        self.started: set[str] = set()
        """Episodes in which a process was started."""
        self._rewards: dict[str, dict[str | None, float]] = {}
        """By the id of the trajectory that gives them, and the name of the part."""
        self._rewarded: set[str] = set()
        """Their episodes."""
        self._size: int | None = None
        """Of the file when the recording began; None where no trajectory of another process is around it."""
        self._around: set[str] = set()
        """Episodes of trajectories that were opened inside those of another process."""
        if self._output is not None and ancestor() is not None and not os.path.isdir(self._output):
            self._size = os.path.getsize(self._output) if os.path.exists(self._output) else 0

    def add(self, members: list[Member]) -> None:
        """Takes the closed trajectories of an episode, the outermost one first."""
        # On use, here and below: a process that is started may never make a call.
        from rollout_trace.data.episodes import episode_of

        outermost = members[0].trajectory
        if self._size is not None and outermost.parent_id is not None:
            self._around.add(episode_of(outermost))
        for member in members:
            one, state = member.trajectory, member.state
            if state is not None and state.child_rewards and episode_of(one) in self.started:
                given = {name: value for name, (value, giver) in state.child_rewards.items() if giver == one.id}
                self._rewards[one.id] = given
                self._rewarded.add(episode_of(one))

    def note(self) -> None:
        """Notes in the output what follows from the trajectories of the other processes that are written by now.

        Raises:
            WriteError, OSError: the output cannot be read, or the notes cannot be written.
        """
        # Not of a device.
        if self._output is None or not (os.path.isfile(self._output) or os.path.isdir(self._output)):
            return
        if self._around and self._size is not None:
            from rollout_trace.file.annotate import attempts_in, leave_out

            # Who started this process has perhaps written since that the attempt was thrown away. What it wrote
            # before it looked itself is seen here; what is written after that, it sees.
            thrown = attempts_in(self._output, since=self._size).thrown
            leave_out(self._output, thrown & self._around)
        if self._rewarded:
            self._give_rewards(self._output)

    def _give_rewards(self, output: str) -> None:
        """Notes rewards for trajectories that have no such one of their own; the innermost giver's counts."""
        from rollout_trace.data.episodes import lineage
        from rollout_trace.file.annotate import append_notes, checked_note, of_episodes

        found = [(file, one.id, one.parent_id, one.reward, one.rewards or {})
                 for file, one in of_episodes(output, self._rewarded)]  # fmt: skip
        parents = {own: parent for _, own, parent, _, _ in found}
        notes: dict[str, list[dict[str, Any]]] = {}
        for file, own, _, reward, rewards in found:
            given: dict[str | None, float] = {}
            for giver in lineage(own, parents):
                given = {**(self._rewards.get(giver, {}) if giver != own else {}), **given}
            parts = {name: value for name, value in given.items() if name is not None and name not in rewards}
            whole = given.get(None) if reward is None else None
            if parts or whole is not None:
                notes.setdefault(file, []).append(checked_note(own, {"reward": whole, "rewards": parts}))
        for file, of_file in notes.items():
            append_notes(file, of_file)
