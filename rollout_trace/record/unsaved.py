"""Trajectories that closed outside every recording: if the program reads none of them then, its end says so."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.data.trajectory import complete_later

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory

_count = 0
_was_read = False


def reset() -> None:
    """Forgets them. For a forked process: they are the original process's."""
    global _count, _was_read
    _count, _was_read = 0, False
    atexit.unregister(tell)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset)


def note(trajectory: Trajectory) -> None:
    """Notes a complete trajectory that goes to no file, and whether its steps are read from now on.

    Under pytest nothing is noted: tests open trajectories for what happens inside them.
    """
    global _count
    # Its plugins close some when no test runs, where it sets only its version.
    if not trajectory.steps or not os.environ.keys().isdisjoint(("PYTEST_CURRENT_TEST", "PYTEST_VERSION")):
        return
    if not _count:
        atexit.register(tell)
    _count += 1
    if not _was_read:
        complete_later(trajectory, steps=_Unread(trajectory.steps))


class _Unread:
    """The steps of a trajectory, which are noted as read when it is called."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps

    def __call__(self) -> Any:
        global _was_read
        _was_read = True
        return self.steps


def steps_of(trajectory: Trajectory) -> Sequence[Step]:
    """The steps of a trajectory, for the recorder itself: they are not noted as read."""
    later = (trajectory._later or {}).get("steps")
    steps: Sequence[Step] = later.steps if isinstance(later, _Unread) else trajectory.steps
    return steps


def tell() -> None:
    """Warns of what was noted, at the end of the process."""
    if _count and not _was_read:
        what = "1 trajectory was" if _count == 1 else f"{_count} trajectories were"
        guard.warn(
            f"{what} recorded and not written: no rt.recording() was open, and no steps were read after "
            f"{'it' if _count == 1 else 'they'} had closed. Put the runs inside "
            '`with rt.recording("rollouts.jsonl"):` to keep them.'
        )
