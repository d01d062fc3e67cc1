"""``rollout-trace fork``: continues a program from a recorded step.

In the command's process, ``variable`` says what to go on from; in the first Python process of the program, ``start``
has its calls answered. There the fork's trajectory is the first one without a parent that has the name, and the task,
of the recorded one: the program's own, or one that it opens.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from rollout_trace import guard
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.errors import ForkDifference
from rollout_trace.file.addresses import is_address
from rollout_trace.file.find import of_episode, of_id, stripped
from rollout_trace.guard import printable
from rollout_trace.process import exits
from rollout_trace.record import process_end, program

from ._fork_branch import Branch, by_parent
from .fork import Fork, OnDifference, Tools

VARIABLE = "ROLLOUT_TRACE_FORK"


def fork_of(
    files: Sequence[str], id: str, line: str, step: int, on_difference: OnDifference, tools: Tools
) -> ProgramFork:
    """Makes the fork of a trajectory of files, with its sub-agents. ``line``: ``mark_of`` its line, where ids repeat.

    Raises LookupError where there is no such trajectory, and ValueError as ``rt.fork``.
    """
    found = next((one for one in of_id(files, id) if mark_of(one.line) == line), None)
    if found is None:
        raise LookupError(f"there is no trajectory {id} in {', '.join(files)}, or its line has changed")
    origin = found.load()
    family = [] if origin.episode_id is None else of_episode(list(files), origin.episode_id)
    children = [one.load() for one in family if one.head.id != origin.id]
    return ProgramFork(Branch(origin, step, by_parent(children)), on_difference, tools, has_children=True)


def mark_of(line: bytes) -> str:
    """Returns a mark that identifies a line of a file."""
    return hashlib.sha256(stripped(line)).hexdigest()


def variable(files: Sequence[str], *others: Any) -> str:
    """Returns the environment variable with the arguments of ``fork_of`` for a program."""
    return json.dumps([[one if is_address(one) else os.path.abspath(one) for one in files], *others])


def start(*, is_first: bool) -> None:
    """Answers this process's calls, where it ``is_first`` of the program. Called when its recorder starts."""
    if not is_first:
        # Not said here: the program may read what its processes print.
        exits.is_unanswered = True
        return
    try:
        fork_of(*json.loads(os.environ[VARIABLE])).start()
    except Exception as error:
        # The program would pay for all of its calls.
        sys.stderr.write(f"Error: the fork could not be started: {printable(guard.describe(error))}\n")
        sys.stderr.flush()
        os._exit(2)


class ProgramFork(Fork):
    """A fork whose trajectory the program opens."""

    def start(self) -> None:
        """Answers calls from now on, until the process ends."""
        self._stack.enter_context(self.answering())
        self._process = os.getpid()
        process_end.add_closer(self._end, first=True)

    def _opened(self, trajectory: Trajectory) -> None:
        with self._lock:
            if self.root.trajectory is not None or not self._is_it(trajectory):
                super()._opened(trajectory)
                return
            self.begin(trajectory)
            origin = self.root.origin
            # The program's own has the id of its task alone, and no group.
            trajectory.task, trajectory.group_id = origin.task, trajectory.group_id or origin.group_id

    def _is_it(self, trajectory: Trajectory) -> bool:
        origin = self.root.origin
        task, own = (None if one.task is None else one.task.id for one in (origin, trajectory))
        return trajectory.parent_id is None and trajectory.name == origin.name and task == own

    def _answer_other(self, here: Trajectory) -> str | None:
        if here.id not in self._foreign:
            guard.warn_once(
                "fork-other",
                f"the calls of the trajectory {_described(here)} go to the model: those of "
                f"{_described(self.root.origin)} are answered.",
            )
        return super()._answer_other(here)

    def _end(self) -> None:
        """Says how it went, before the program's trajectory is closed."""
        if os.getpid() != self._process:
            # One that was forked: it is answered by the server of the original.
            return
        difference = self._outcome()
        self._stack.close()
        branch = self.root.trajectory
        if difference is None:
            return
        if branch is not None and branch is program.opened():
            program.close(error=ForkDifference(difference))
        if sys.stderr is not None:
            for line in difference.splitlines():
                sys.stderr.write(f"rollout-trace: {printable(line)}\n")

    def _outcome(self) -> str | None:
        if self.root.trajectory is not None:
            return self.ended()
        return f"no trajectory {_described(self.root.origin)} was opened: no call was answered from the recording."


def _described(trajectory: Any) -> str:
    task = "" if trajectory.task is None else f" of the task {trajectory.task.id!r}"
    return f"{trajectory.name!r}{task}"
