"""A trajectory and those opened inside it: what they pass on to each other; frozen as they closed, to be written."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rollout_trace._threads import lock_for
from rollout_trace.data import user_values
from rollout_trace.data.episodes import episode_of, lineage
from rollout_trace.data.model import Task
from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, stored_tool_runs, with_values
from rollout_trace.file.addresses import is_address
from rollout_trace.record import ancestry
from rollout_trace.record.bounds import held_bytes
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.journal import TrajectoryJournal
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
    """One trajectory of an episode, with its fields as they were at the close: what is set later is not written."""

    __slots__ = ("_tool_runs", "_values", "journal", "log", "size", "state", "trajectory")

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.state: TrajectoryState | None = state_of(trajectory)
        self.log = None if self.state is None else self.state.closed_log
        """Its calls; None where all have ended and been decoded."""
        self.journal = None if self.state is None else self.state.journal
        """Where it is kept until its line is written; None without a journal."""
        # What users put into them stays theirs: an environment's state changes with its next run.
        self._values = {
            name: value if type(value) in _PLAIN else _frozen(value)
            for name, value in zip(_AT_CLOSE, _values_of(trajectory), strict=True)
        }
        self._tool_runs = [(run, _frozen(run.arguments), _frozen(run.result)) for run in stored_tool_runs(trajectory)]
        log_size = 0 if self.log is None else self.log.size_in_memory()
        self.size = _OF_ONE + held_bytes((self._values, self._tool_runs), set()) + log_size
        """Roughly, the bytes that it occupies in memory."""

    @property
    def whole_journal(self) -> TrajectoryJournal | None:
        """Its journal, where that has all of the completed trajectory."""
        return self.journal if self.journal is not None and self.journal.is_whole else None

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


class Episode:
    """A closed outermost trajectory and those opened inside it, which are written together."""

    __slots__ = ("_logs", "is_queued", "is_written", "members", "size")

    def __init__(self, trajectories: list[Trajectory]) -> None:
        self.members = [Member(one) for one in trajectories]
        self._logs = [one.log for one in self.members if one.log is not None]
        self.is_queued = True
        """Whether its bytes count as queued: not while it waits for a running call."""
        self.is_written = False
        """Set once the episode was written, or could not be."""
        self.size = sum(one.size for one in self.members)
        """Roughly, the bytes that it occupies in memory."""

    @property
    def is_running(self) -> bool:
        """Whether a call of it has not ended, such as a stream that is still being read."""
        return any(log.is_running for log in self._logs)

    def on_call_end(self, notify: Callable[[], object]) -> None:
        """Has ``notify`` called whenever a call of it ends, perhaps by the garbage collector."""
        for log in self._logs:
            log.on_call_end = notify

    def abandon(self) -> None:
        """Ends its running calls; what has arrived of them is kept."""
        for log in self._logs:
            log.abandon()


# Trajectories inside each other

# Reentrant: while the lock is held, the garbage collector may close an agent (a generator), and its trajectory.
_lock = lock_for(__name__)


def closed_inside(trajectory: Trajectory) -> list[Trajectory]:
    """A trajectory and those opened inside it, at any depth, that have closed: what is written together."""
    return [trajectory, *trajectory._children]


def to_write(trajectory: Trajectory, parent: Trajectory | None) -> list[Trajectory] | None:
    """A closed trajectory and those inside it; None where they are written with its parent, which is open."""
    # A parent that closes in another thread meanwhile has either collected this child, or is seen as closed here.
    with _lock:
        episode = closed_inside(trajectory)
        if parent is not None:
            _inherit(episode, parent)
            if parent.is_open:
                parent._children.extend(episode)
                return None
        return episode


def reward_children(trajectory: Trajectory, name: str | None, value: float) -> None:
    """Sets a reward, or its part called ``name``, on the trajectories opened inside, at any depth.

    Closed ones get it now, the others when they close.
    """
    state = state_of(trajectory)
    if state is None:
        return
    # Without the lock a child that closes in another thread meanwhile could miss the reward.
    with _lock:
        state.child_rewards[name] = (value, trajectory.id)
        for child in trajectory._children:
            _inherit_reward(child, name, value, trajectory.id)


def change_episode(trajectory: Trajectory, how: Callable[[Trajectory], object]) -> None:
    """Has a function change a trajectory and those opened inside it, at any depth, before they are written.

    Each is changed when its steps are final, at once where they are; also those that close later.
    """
    with _lock:
        _change(closed_inside(trajectory), how)


def _change(episode: list[Trajectory], how: Callable[[Trajectory], object]) -> None:
    for one in episode:
        state = state_of(one)
        if state is not None:
            state.for_inside.append(how)
        if state is None or not state.add_completion(how):
            how(one)


def _inherit(episode: list[Trajectory], parent: Trajectory) -> None:
    """Gives closed trajectories the rewards and changes that ``parent`` has for those inside it."""
    state = state_of(parent)
    if state is None:
        return
    for name, (value, giver_id) in state.child_rewards.items():
        for one in episode:
            _inherit_reward(one, name, value, giver_id)
    for how in state.for_inside:
        _change(episode, how)


def _inherit_reward(child: Trajectory, name: str | None, value: float, giver_id: str) -> None:
    state = state_of(child)
    if state is None:
        return
    # The nearest outer trajectory wins: a later value replaces only one from the same giver.
    passed_on = state.child_rewards.get(name)
    if passed_on is None or passed_on[1] == giver_id:
        state.child_rewards[name] = (value, giver_id)
    current = child.reward if name is None else (child.rewards or {}).get(name)
    # Kept: a reward set on the child itself, also over an inherited one, or inherited from a nearer trajectory.
    if current is not None and state.inherited_rewards.get(name) != (current, giver_id):
        return
    state.inherited_rewards[name] = (value, giver_id)
    # Past `Trajectory.__setattr__`: it would warn of a reward on a closed trajectory without calls.
    if name is None:
        object.__setattr__(child, "reward", value)
    else:
        rewards = user_values.named_numbers({**(child.rewards or {}), name: value}, user_values.Rewards)
        object.__setattr__(child, "rewards", rewards)
    if state.journal is not None:
        state.journal.was_set("reward" if name is None else "rewards", value)


# Other processes


class OtherProcesses:
    """What a recording notes at its end for other processes, which write trajectories of the same episodes.

    Args:
        output: its file or folder; None, or an address, at which nothing can be noted.
    """

    def __init__(self, output: str | None) -> None:
        self._output = None if output is None or is_address(output) else output
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
        if self._output is not None and ancestry.ancestor() is not None and not os.path.isdir(self._output):
            self._size = os.path.getsize(self._output) if os.path.exists(self._output) else 0

    def add(self, episode: Episode) -> None:
        """Takes closed trajectories that are to be written."""
        outermost = episode.members[0].trajectory
        if self._size is not None and outermost.parent_id is not None:
            self._around.add(episode_of(outermost))
        for member in episode.members:
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
            # Imported on use, here and below: most recordings need no reader.
            from rollout_trace.file.annotate import attempts_in, leave_out

            # Who started this process has perhaps written since that the attempt was thrown away. What it wrote
            # before it looked itself is seen here; what is written after that, it sees.
            thrown = attempts_in(self._output, since=self._size).thrown
            leave_out(self._output, thrown & self._around)
        if self._rewarded:
            self._give_rewards(self._output)

    def _give_rewards(self, output: str) -> None:
        """Notes rewards for trajectories that have no such one of their own; the innermost giver's counts."""
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
