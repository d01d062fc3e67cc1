"""State of the recorder for one trajectory, kept outside of the record; and what is written once it has closed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import finalize

from rollout_trace import guard
from rollout_trace.data.model import Task
from rollout_trace.data.trajectory import (
    TRAJECTORY_FIELDS,
    new_trajectory,
    set_final_steps,
    stored_tool_runs,
    with_values,
)
from rollout_trace.record import unsaved
from rollout_trace.record.decoder import deferred, held_bytes

if TYPE_CHECKING:
    from rollout_trace.data.model import ToolRun
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.journal import TrajectoryJournal
    from rollout_trace.record.log import StepLog


@dataclass(slots=True, eq=False)
class TrajectoryState:
    """Recorder state, created when a trajectory opens.

    It outlives the close: children may still end, rewards may still be set, and the file is written after it.
    """

    log: StepLog | None
    """The recorded calls; None once the trajectory has closed."""
    opened_at: str | None
    """File and line of the user's code that opened it; None if missing calls should cause no warning."""
    children_opened: int = 0
    """Number of trajectories opened directly inside, closed or not."""
    child_rewards: dict[str | None, tuple[float, str]] = field(default_factory=dict)
    """Rewards for the trajectories inside, by name (None is ``reward`` itself): value and id of the giver."""
    inherited_rewards: dict[str | None, tuple[float, str]] = field(default_factory=dict)
    """Rewards received from an outer trajectory, by name: value and id of that trajectory."""
    recording: Any = None
    """The ``rt.recording`` that was open where the trajectory began; None without one."""
    closed_log: StepLog | None = None
    """The recorded calls of a closed trajectory, until all have ended and been decoded."""
    completion: Callable[[Trajectory], None] | None = None
    """Completes the trajectory's fields from its final steps. Runs once."""
    at_completion: list[Callable[[Trajectory], object]] = field(default_factory=list)
    """What else changes the trajectory then."""
    for_inside: list[Callable[[Trajectory], object]] = field(default_factory=list)
    """What changes the trajectories that were opened inside, when they are complete."""
    journal: TrajectoryJournal | None = None
    """Where the trajectory is kept until its line is written; None without a journal."""
    _completed_by: int | None = None
    """The thread that completes the trajectory now. In a forked process it may be one of the other process."""
    handed_to: str | None = None
    """The target of the recording that writes it; None while it is open."""

    def __getstate__(self) -> dict[str, Any]:
        if self.log is not None:
            raise TypeError("an open trajectory cannot be pickled or deep-copied. Do so after it has closed.")
        # What belongs to this process stays here: a copy's steps are those that the original has now.
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _OF_THE_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for item in fields(self):
            setattr(self, item.name, state.get(item.name))

    def add_completion(self, change: Callable[[Trajectory], object]) -> bool:
        """Adds to ``at_completion``; False where the trajectory is complete."""
        log = self.log or self.closed_log
        if log is None:
            return False
        with log.completing:
            if self.log is None and self.closed_log is None:
                return False
            self.at_completion.append(change)
            return True

    def complete(self, trajectory: Trajectory) -> StepLog | None:
        """Decodes a closed trajectory's calls and completes its fields, once nothing runs any more.

        Returns the log where that is not possible yet; None where it is done.
        """
        if self.log is not None:
            return self.log
        log = self.closed_log
        if log is None:
            return None
        with log.completing:
            # Another thread has completed it while this one waited for the lock, or this one is doing so.
            is_done = self.closed_log is None or self._completed_by == threading.get_ident()
            return None if is_done or self._finish(trajectory, log) else log

    def _finish(self, trajectory: Trajectory, log: StepLog) -> bool:
        """Completes the trajectory; False where a call still runs. It counts as complete even if decoding fails."""
        # Asked once: a call that ends meanwhile would count as decoded.
        if log.is_running:
            return False
        self._completed_by = threading.get_ident()
        failed: Exception | None = None
        try:
            try:
                set_final_steps(trajectory, log.steps())
                if self.completion is not None:
                    self.completion(trajectory)
                log.trim()
            except Exception as failure:
                failed = failure
            # Other threads may read the steps without the lock from here on.
            self.closed_log = self.completion = None
            log.clear()
            if failed is not None:
                guard.failed("close", None, failed)
        finally:
            # Interrupted by Ctrl-C, or forked in the middle: it is begun anew, so nothing is let go of before.
            self._completed_by = None
        return True

    def was_set(self, trajectory: Trajectory, name: str, value: Any) -> None:
        """Warns about a field set after the close, or a reward set on a closed trajectory without recorded calls."""
        if self.journal is not None:
            self.journal.was_set(name, value)
        if self.handed_to is not None:
            guard.warn_once(
                "set-after-close",
                f"Trajectory.{name} was set after the trajectory had closed: its line in {self.handed_to} does not "
                "have it. Set it inside the `with rt.trajectory()` block, or add it with rt.annotate().",
            )
        if name in ("reward", "rewards") and value is not None and self.log is None:
            self._warn(trajectory, f"is scored {value!r} at {guard.place_of_caller()}")

    def was_written(self, trajectory: Trajectory, target: object) -> None:
        """Warns if the trajectory that was written has no recorded calls."""
        self._warn(trajectory, f"was written to {target}")

    def was_closed(self, trajectory: Trajectory) -> None:
        """Warns if the trajectory has a reward but no recorded calls. For trajectories that go to no file."""
        # Inherited ones are no sign that calls were expected here.
        scores = [(None, trajectory.reward), *(trajectory.rewards or {}).items()]
        own = [one for name, one in scores if one is not None and name not in self.inherited_rewards]
        if own:
            self._warn(trajectory, f"was scored {own[0]!r}")

    def _warn(self, trajectory: Trajectory, event: str) -> None:
        """Warns of a closed trajectory without recorded calls, once per line of user code that opens such ones.

        ``event``: what was done with it, as the warning puts it, such as ``was written to rollouts.jsonl``.
        """
        missing = None if self.opened_at is None else _missing(trajectory, self.children_opened)
        if missing is not None:
            what, remedy = missing
            guard.warn_once(
                f"silent:{what}:{self.opened_at}",
                f"trajectory {trajectory.name!r}, opened at {self.opened_at}, {event}, but {what}. {remedy}",
            )


_OF_THE_PROCESS = frozenset(
    {"log", "closed_log", "completion", "at_completion", "for_inside", "journal", "recording", "_completed_by"}
)


def state_of(trajectory: Trajectory) -> TrajectoryState | None:
    """The recorder state of a trajectory; None if it was never opened (read from a file, or made by hand)."""
    recorder = trajectory._recorder
    return recorder if isinstance(recorder, TrajectoryState) else None


def log_of(trajectory: Trajectory | None) -> StepLog | None:
    """The log of an open trajectory; None for a closed one, or without a trajectory."""
    # Not through `state_of`: this is on the path of every call.
    recorder = None if trajectory is None else trajectory._recorder
    return recorder.log if isinstance(recorder, TrajectoryState) else None


# What a trajectory without recorded calls lacks


is_instrumented: Callable[[], bool] = bool
"""Whether every client of the process is recorded already, so that wrapping one is no remedy. Set by ``process``."""

_UNSEEN = "The process is instrumented, but a client with HTTP code of its own, on sockets or native, is not recorded."

_CACHE = (
    " If a cache answered, there was no call: the caches of dspy and litellm give all samples of a group the first "
    "answer. Turn the cache off: dspy.LM(..., cache=False), litellm.disable_cache()."
)


def _missing(trajectory: Trajectory, children_opened: int) -> tuple[str, str] | None:
    """Returns what a closed trajectory lacks, with the likely remedy; None if nothing is wrong."""
    # Where a reward is set after the close, the program itself has not read them.
    steps = unsaved.steps_of(trajectory)
    if not steps:
        died = trajectory.error is not None or trajectory.status == "aborted"
        closed_children = [child for child in trajectory._children if child.parent_id == trajectory.id]
        if died or len(closed_children) < children_opened or any(map(unsaved.steps_of, trajectory._children)):
            # No mistake of the user's: it failed before its first call, or its children make the calls, maybe still.
            return None
        nothing = "no model call was recorded in it"
        scored = _CACHE if trajectory.reward is not None else ""
        if is_instrumented():
            thread = "A worker thread that takes its jobs from a queue needs rt.propagate(function)."
            return nothing, f"{_UNSEEN} {thread}{scored}"
        return (
            nothing,
            "Call rt.instrument(), which records every client of the process, or wrap the client that the agent calls: "
            "rt.wrap_openai(client). A framework needs its hook, and its model record(llm). A thread needs "
            f"rt.instrument() or rt.propagate(function).{scored}",
        )
    codes = [None if step.token_issue is None else step.token_issue.code for step in steps]
    if "not_on_wire" in codes and {"not_on_wire", "cached"}.issuperset(codes):
        unseen = (
            "none of its model calls was seen on the wire: its steps hold what a framework's hook reported, without "
            "token ids"
        )
        if is_instrumented():
            return unseen, _UNSEEN
        return (
            unseen,
            "Give the framework's model to record(llm), or wrap the client that it uses: rt.wrap_openai(client) or "
            "rt.wrap_anthropic(client).",
        )
    return None


# Closed trajectories, as they are written

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

    __slots__ = ("_tool_runs", "_values", "is_outermost", "journal", "log", "size", "state", "trajectory")

    def __init__(self, trajectory: Trajectory, *, is_outermost: bool) -> None:
        self.trajectory = trajectory
        self.is_outermost = is_outermost
        """Whether it closed just now."""
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
        self.size = _OF_ONE + held_bytes([*self._values.values(), self._tool_runs], set()) + log_size
        """Roughly, the bytes that it occupies in memory."""

    @property
    def id(self) -> str:
        """The trajectory's id, as its line has it."""
        return str(self._values["id"])

    @property
    def is_in_journal(self) -> bool:
        """Whether the journal has the line as it is now, but for its steps."""
        return (
            self.journal is not None
            and self.journal.has_fields
            # One inside another one may have been changed between its close and that of the outer one.
            and self.is_outermost
            and not (self._tool_runs or (self.state is not None and self.state.inherited_rewards))
        )

    @property
    def whole_journal(self) -> TrajectoryJournal | None:
        """Its journal, where that has all of the completed trajectory."""
        return self.journal if self.journal is not None and self.journal.is_whole else None

    def complete(self) -> None:
        """Decodes the calls. Does nothing if that is done."""
        if self.state is not None:
            self.state.complete(self.trajectory)

    def let_go(self) -> None:
        """It is in its file: it is not needed in the journal any more, and here only while somebody has it."""
        log = self.log
        if log is not None:
            # It would keep the episode, and with it all of them.
            log.on_call_end = None
            # At once, if nobody has it. Not there: whoever lets go of it last may be the garbage collector.
            last = finalize(self.trajectory, deferred.append, log.let_go)
            last.atexit = False
            del self.trajectory
            if last.alive:
                # Whoever has it may read its steps.
                log.take_back()
        if self.journal is not None:
            self.journal.written()

    def line_without_steps(self) -> bytes:
        """The line with the values of the close, but for its steps. Decodes nothing."""
        # Imported on use: trajectories are opened without any file, too.
        from rollout_trace.file.fields import tool_run_json, trajectory_json

        values = {**self._values, "steps": [], "tool_runs": [], "environment": self.trajectory.environment}
        runs = b",".join(map(tool_run_json, self._closed_runs()))
        return b'%s,"tool_runs":[%s]}' % (trajectory_json(new_trajectory(values))[:-1], runs)

    def as_closed(self) -> Trajectory:
        """A copy of the completed trajectory with the values of the close. It shares the steps with the original."""
        return with_values(self.trajectory, {**self._values, "tool_runs": self._closed_runs()})

    def _closed_runs(self) -> list[ToolRun]:
        # Not when it closed: their links to steps are made only when the trajectory is completed.
        return [replace(run, arguments=arguments, result=result) for run, arguments, result in self._tool_runs]


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
        self.members = [Member(one, is_outermost=one is trajectories[0]) for one in trajectories]
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
        """Calls ``notify`` whenever one of its calls ends, perhaps by the garbage collector."""
        for log in self._logs:
            log.on_call_end = notify

    def abandon(self) -> None:
        """Ends its running calls; what has arrived of them is kept."""
        for log in self._logs:
            log.abandon()
