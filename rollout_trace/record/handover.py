"""What a recording is given of closed trajectories: the trajectories, and the values that their fields have then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Task
from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, stored_tool_runs, with_values
from rollout_trace.record.bounds import held_bytes
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.state import TrajectoryState

_LATER = frozenset({"steps", "tool_runs", "environment"})
"""Fields that are complete only on the recording's thread; reading them here would decode the calls."""

_AT_CLOSE = tuple(name for name in TRAJECTORY_FIELDS if name not in _LATER)
_values_of = attrgetter(*_AT_CLOSE)
_PLAIN = frozenset({type(None), str, int, float, bool, datetime})
"""Types of values that nobody can change."""
_OF_ONE = 16 * 1024
"""Roughly, the bytes that a trajectory occupies beside its calls' bodies and what users put into it."""


class Member:
    """One trajectory of a family, with its fields as they were at the close: what is set later is not written."""

    __slots__ = ("_tool_runs", "_values", "size", "state", "trajectory")

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.state: TrajectoryState | None = state_of(trajectory)
        # What users put into them stays theirs: an environment's state changes with its next run.
        self._values = {
            name: value if type(value) in _PLAIN else _frozen(value)
            for name, value in zip(_AT_CLOSE, _values_of(trajectory), strict=True)
        }
        self._tool_runs = [(run, _frozen(run.arguments), _frozen(run.result)) for run in stored_tool_runs(trajectory)]
        log = None if self.state is None else self.state.closed_log
        self.size = _OF_ONE + held_bytes((self._values, self._tool_runs), set())
        """Roughly, the bytes that it occupies in memory."""
        if log is not None:
            self.size += log.size_in_memory()

    def complete(self) -> None:
        """Decodes the calls. Does nothing if that is done."""
        if self.state is not None:
            self.state.complete(self.trajectory)

    def as_closed(self) -> Trajectory:
        """A copy of the completed trajectory with the values of the close. It shares the steps with the original."""
        # Their links to steps are made only when the trajectory is completed.
        runs = [replace(run, arguments=arguments, result=result) for run, arguments, result in self._tool_runs]
        return with_values(self.trajectory, {**self._values, "tool_runs": runs})


def _frozen(value: Any) -> Any:
    """A copy as deep as its dicts and lists, and those of a task; other objects are shared."""
    if isinstance(value, Task):
        return replace(value, data=_frozen(value.data))
    try:
        return _copied(value, {})
    except RecursionError:
        # Too deep to be written either; the writer reports it.
        return value


def _copied(value: Any, seen: dict[int, Any]) -> Any:
    kind = type(value)
    if kind not in _CONTAINERS and not isinstance(value, (dict, list)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    if kind is tuple:
        return tuple(_copied(one, seen) for one in value)
    if kind is set:
        return set(value)
    copied = seen[id(value)] = copy.copy(value)
    # Past the methods of a class of its own, such as one that checks what is put in.
    if isinstance(copied, dict):
        for key, one in value.items():
            dict.__setitem__(copied, key, _copied(one, seen))
    else:
        list.__setitem__(copied, slice(None), [_copied(one, seen) for one in value])
    return copied


_CONTAINERS = frozenset({dict, list, tuple, set})


class Family:
    """A closed outermost trajectory and those opened inside it, which are written together."""

    __slots__ = ("is_queued", "is_written", "members", "size")

    def __init__(self, trajectories: list[Trajectory]) -> None:
        self.members = [Member(one) for one in trajectories]
        self.is_queued = True
        """Whether its bytes count as queued: not while it waits for a running call."""
        self.is_written = False
        """Set once the family was written, or could not be."""
        self.size = sum(one.size for one in self.members)
        """Roughly, the bytes that it occupies in memory."""

    @property
    def is_running(self) -> bool:
        """Whether a call of it has not ended, such as a stream that is still being read."""
        return any(log.is_running for log in (state.closed_log for state in self._states()) if log is not None)

    def on_call_end(self, notify: Callable[[], object]) -> None:
        """Has ``notify`` called whenever a call of it ends, perhaps by the garbage collector."""
        for state in self._states():
            if (log := state.closed_log) is not None:
                log.on_call_end = notify

    def abandon(self) -> None:
        """Ends its running calls; what has arrived of them is kept."""
        for state in self._states():
            if (log := state.closed_log) is not None:
                log.abandon()

    def _states(self) -> list[TrajectoryState]:
        return [one.state for one in self.members if one.state is not None]
