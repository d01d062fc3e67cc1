"""Which recording a trajectory belongs to: its journal when it opens, and where it is written when it has closed."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.record import fallback, families, process_end
from rollout_trace.record.recording import current_recording, open_recordings
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.recording import recording
    from rollout_trace.record.state import TrajectoryState

# Reentrant: while the lock is held, the garbage collector may close an agent (a generator), and its trajectory.
_lock = threading.RLock()


def _after_fork() -> None:
    """Renews the lock in a forked process: another thread may have held it at the fork."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Where the state is, not where it is used: a process may use recordings and no client.
    os.register_at_fork(after_in_child=_after_fork)


def recording_here() -> recording | None:
    """The open recording that a trajectory belongs to which opens in this context; None without one."""
    own = current_recording()
    if own is None and len(others := open_recordings()) == 1:
        own = others[0]
    if own is None or not own.is_open:
        own = fallback.for_the_rest()
    return own if own is not None and own.is_open else None


def attach(state: TrajectoryState, trajectory: Trajectory) -> None:
    """Sets the recording that a trajectory opens in, and the journal that keeps its calls until it is written."""
    own = recording_here()
    if own is not None:
        state.recording = own
        guard.run_all("exit", process_end.watch_forked)
        if own.journal is not None and state.log is not None:
            state.journal = state.log.journal = own.journal.trajectory(trajectory)


def reward_children(trajectory: Trajectory, name: str | None, value: float) -> None:
    """Sets a reward, or its part called ``name``, on the trajectories opened inside, now or when they close."""
    # Without the lock a child that closes in another thread meanwhile could miss the reward.
    with _lock:
        families.give_to_children(trajectory, name, value)


def change_family(trajectory: Trajectory, how: Callable[[Trajectory], object]) -> None:
    """Has a function change a trajectory and those opened inside it, at any depth, when each is complete."""
    with _lock:
        families.change([trajectory, *trajectory._children], how)


def write_closed(trajectory: Trajectory, parent: Trajectory | None) -> None:
    """Adds a closed trajectory to its open parent, to be written with it; without an open parent queues it.

    Outside every recording it is completed at once, unless a call of it still runs: then when its steps are read.
    """
    if (state := state_of(trajectory)) is not None and state.journal is not None:
        state.journal.closed(trajectory)
    # A parent that closes in another thread meanwhile has either collected this child, or is seen as closed here.
    with _lock:
        family = [trajectory, *trajectory._children]
        if parent is not None:
            families.inherit(family, parent)
            if parent.is_open:
                parent._children.extend(family)
                return
    target, missing = _target_recording(family[0])
    if target is not None and not target.write(family):
        # Left by another thread meanwhile.
        target, missing = None, _ENDED
    if target is None and (target := fallback.for_the_rest()) is not None and not target.write(family):
        target, missing = None, _ENDED
    if target is None:
        if missing is not None:
            _warn_lost(family, missing)
        guard.run_all("silence", *(partial(_complete, one) for one in family))


def _complete(trajectory: Trajectory) -> None:
    """Completes a trajectory that no recording writes."""
    state = state_of(trajectory)
    if state is not None and state.complete(trajectory) is None:
        state.was_closed(trajectory)


_ENDED = "its recording had ended before it did"


def _target_recording(trajectory: Trajectory) -> tuple[recording | None, str | None]:
    """The recording that a closed trajectory is for, and why it has none where it should have one.

    It is the recording of this context, unless the trajectory opened in another one: its agent may be closed by the
    garbage collector, or by the end of the process, in the context of any other. In a thread without a recording it is
    the one that the trajectory opened in, or the only open one.
    """
    own = current_recording()
    state = state_of(trajectory)
    opened_in: recording | None = None if state is None else state.recording
    if opened_in is not None and opened_in.is_open and (own is None or not own.is_inside(opened_in)):
        return opened_in, None
    if own is not None:
        return (own, None) if own.is_open else (None, _ENDED)
    others = open_recordings()
    if not others:
        return None, None if opened_in is None else _ENDED
    return (others[0], None) if len(others) == 1 else (None, "several recordings are open")


def _warn_lost(family: list[Trajectory], reason: str) -> None:
    state = state_of(family[0])
    guard.count("recorder_errors")
    guard.count("trajectories_lost", len(family))
    kept = ""
    if state is not None and state.journal is not None and state.journal.has_records:
        kept = " The journal has its calls that ended before: rt.recover() reads it."
    # Not once per process: every time a trajectory is lost.
    guard.warn(
        f"trajectory {family[0].id} was not written to a file: {reason}, and nothing says that another is meant. In a "
        f"thread use rt.propagate(function), or open the recording there.{kept}"
    )
