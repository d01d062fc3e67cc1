"""``rollout-trace fork``: a program goes on from a recorded step.

In the command's process, ``variable`` says what to go on from; in the first Python process of the program, ``start``
has its calls answered. There the fork's trajectory is the first one without a parent that has the name, and the task,
of the recorded one: the program's own, or one that it opens.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.errors import ForkDifference
from rollout_trace.file.find import of_episode, with_id
from rollout_trace.guard import printable
from rollout_trace.record import process_end, program

from ._fork_branch import Branch, by_parent
from .fork import Fork, OnDifference, Tools

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

VARIABLE = "ROLLOUT_TRACE_FORK"


def fork_of(files: Sequence[str], id: str, step: int, on_difference: OnDifference, tools: Tools) -> ProgramFork:
    """Makes the fork of a trajectory of files, with its sub-agents.

    Raises:
        LookupError: there is no such trajectory.
        ValueError: there is no such step, or a call before it has no answer to give again.
    """
    found = next((one for one in with_id(list(files), id) if one.head.id == id), None)
    if found is None:
        raise LookupError(f"there is no trajectory {id} in {', '.join(files)}")
    origin = found.load()
    family = [] if origin.episode_id is None else of_episode(list(files), origin.episode_id)
    children = [one.load() for one in family if one.head.id != origin.id]
    return ProgramFork(Branch(origin, step, by_parent(children)), on_difference, tools, has_children=True)


def variable(files: Sequence[str], id: str, step: int, on_difference: OnDifference, tools: Tools) -> str:
    """What a program is told, in an environment variable: the arguments of ``fork_of``."""
    return json.dumps([[os.path.abspath(one) for one in files], id, step, on_difference, tools])


def start(*, is_first: bool) -> None:
    """Has the calls of this process answered. Called when its recorder starts.

    Args:
        is_first: whether it is the first Python process of the program. Those that it starts are left alone.
    """
    if not is_first:
        guard.warn_once(
            "fork-process",
            "the calls of this process go to the model: rollout-trace fork answers those of the program's first one.",
        )
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
        if self.root.trajectory is None and self._is_it(trajectory):
            self.begin(trajectory)
            origin = self.root.origin
            # The program's own has the id of its task alone, and no group.
            trajectory.task, trajectory.group_id = origin.task, trajectory.group_id or origin.group_id
        elif self.root.trajectory is None:
            self._foreign[trajectory.id] = trajectory.name
        else:
            super()._opened(trajectory)

    def _is_it(self, trajectory: Trajectory) -> bool:
        origin = self.root.origin
        task, own = (None if one.task is None else one.task.id for one in (origin, trajectory))
        return trajectory.parent_id is None and trajectory.name == origin.name and task == own

    def _answer_other(self, here: Trajectory) -> str | None:
        name = self._foreign.get(here.id)
        if self.root.trajectory is None and name is not None and self.difference is None:
            wanted = _described(self.root.origin)
            return self._differs(self.root, f"it was made in the trajectory {_described(here)}, and not in {wanted}")
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
        if self.difference is not None:
            return self.difference
        return f"no trajectory {_described(self.root.origin)} was opened: no call was answered from the recording."


def _described(trajectory: Any) -> str:
    task = "" if trajectory.task is None else f" of the task {trajectory.task.id!r}"
    return f"{trajectory.name!r}{task}"
