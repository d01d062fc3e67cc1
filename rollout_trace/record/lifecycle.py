"""Opening and closing of trajectories, and the recording of each: its journal first, then where it is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from rollout_trace import credentials, guard
from rollout_trace._threads import lock_for
from rollout_trace.data import costs, user_values
from rollout_trace.data.model import amend, error_info, shared
from rollout_trace.data.trajectory import complete_later, stored_tool_runs
from rollout_trace.record import ancestry, process_end, unsaved
from rollout_trace.record.call_steps import link_tool_runs
from rollout_trace.record.log import StepLog
from rollout_trace.record.provenance import Pending
from rollout_trace.record.recording import current_recording, open_recordings, recording
from rollout_trace.record.redaction import cut_keys
from rollout_trace.record.state import TrajectoryState, log_of, state_of
from rollout_trace.wire.profiles import can_request_ids

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

before_opening: list[Callable[[], object]] = []
"""Run before a trajectory opens: an instrumented process looks for libraries whose import it has not seen."""

when_opened: list[Callable[[Trajectory], object]] = []
"""Called with each trajectory that has opened: the test that runs keeps those that its agent opens."""


def begin(trajectory: Trajectory, parent: Trajectory | None, *, is_root: bool = False) -> None:
    """Opens a trajectory, as a child of ``parent`` if that is open, else of the one that started this process.

    ``is_root``: of neither.
    """
    if before_opening:
        guard.run_all("open", *before_opening)
    parent_state = None if parent is None else state_of(parent)
    is_child = False
    if parent is not None and parent_state is not None:
        parent_state.children_opened += 1
        # A parent that has closed (its context was copied into a task that goes on) may be written already: what is
        # opened inside it then is an episode of its own.
        if parent_state.log is not None:
            is_child = True
            trajectory.episode_id, trajectory.parent_id = parent.episode_id, parent.id
            trajectory.parent_step_id = parent_state.log.last_step_id()
    try:
        if not (is_child or is_root) and (elsewhere := ancestry.ancestor()) is not None:
            trajectory.episode_id, trajectory.parent_id, trajectory.parent_step_id = elsewhere
        _open(trajectory, parent)
    except Exception as failure:
        guard.failed("open", None, failure)


def finish(trajectory: Trajectory, parent: Trajectory | None, error: BaseException | None) -> None:
    """Closes a trajectory and queues it for writing, without decoding it. Never raises, except under pytest."""
    state = state_of(trajectory)
    if state is not None and _opened.pop(id(trajectory), None) is None:
        # Closed already, by the end of the process: a daemon thread may leave its block after that.
        return
    try:
        try:
            if state is not None and state.log is not None:
                _close(trajectory, state, state.log, error)
        finally:
            write_closed(trajectory, parent, state)
    except Exception as failure:
        guard.failed("close", None, failure)


def discard(trajectory: Trajectory, parent: Trajectory | None) -> bool:
    """Closes a trajectory in which nothing was recorded, as if it had not been opened.

    False, and nothing is done, where it has a call, a tool run or a trajectory opened inside it.
    """
    state = state_of(trajectory)
    if state is None or state.log is None or state.log.size or state.log.frames:
        return False
    if state.children_opened or stored_tool_runs(trajectory) or _opened.pop(id(trajectory), None) is None:
        return False
    if parent is not None and (outer := state_of(parent)) is not None:
        outer.children_opened -= 1
    state.log.close()
    state.log = None
    if state.journal is not None:
        # It may have a field that was set: left there, the trajectory would be recovered.
        state.journal.written()
    return True


def abort_open() -> None:
    """Closes every trajectory that is open in this process, innermost first, as ``aborted``. For its end."""
    # A copy: other threads still open and close some.
    opened = list(_opened.values())
    recordings = [*open_recordings(), *filter(None, [_fallback])]
    targets = ", ".join(dict.fromkeys(one.name for one in recordings))
    for trajectory, parent in reversed(opened):
        if trajectory.status == "running":
            trajectory.status = "aborted"
        finish(trajectory, parent, None)
    if opened and targets:
        count = "1 trajectory was" if len(opened) == 1 else f"{len(opened)} trajectories were"
        guard.warn(f"{count} open when the process ended, and closed as 'aborted' to be written to {targets}.")


process_end.add_closer(abort_open, first=True)

warns_of_missing_ids = True
"""Whether a trajectory without token ids is logged, once a process. A summary of the whole run has them already."""

_opened: dict[int, tuple[Trajectory, Trajectory | None]] = {}
"""The open trajectories of this process with their parents, in the order they were opened.

By the identity of the object: users may set another ``id``.
"""

if hasattr(os, "register_at_fork"):
    # Those of the original process are its own to close.
    os.register_at_fork(after_in_child=_opened.clear)


def _open(trajectory: Trajectory, parent: Trajectory | None) -> None:
    trajectory.status = "running"
    trajectory.started_at = datetime.now(timezone.utc)
    # Collected when it is read: it takes up to 50 ms once a process.
    complete_later(trajectory, environment=Pending())
    log = StepLog()
    if parent is not None and (outer := log_of(parent)) is not None:
        log.policy_version = outer.policy_version
    state = TrajectoryState(log, guard.place_of_caller())
    if (own := recording_here()) is not None:
        state.recording = own
        guard.run_all("exit", process_end.watch_forked)
        # Keeps its calls until it is written.
        state.journal = log.journal = None if own.journal is None else own.journal.trajectory(trajectory)
        if state.journal is not None and own.is_followed:
            # Imported on use: few programs need it.
            from rollout_trace.record.set_aside import restored

            log.restore = partial(restored, state.journal.id)
    trajectory._recorder = state
    _opened[id(trajectory)] = (trajectory, parent)
    if when_opened:
        guard.run_all("open", *(partial(tell, trajectory) for tell in when_opened))


def _close(trajectory: Trajectory, state: TrajectoryState, log: StepLog, error: BaseException | None) -> None:
    """Closes the log. The steps are decoded when they are read, or on the thread that writes the trajectory."""
    state.completion, state.closed_log = complete_fields, log
    try:
        # The log first: ending its frames may set fields of the trajectory.
        guard.run_all("close", log.close, partial(_set_outcome, trajectory, error))
    finally:
        # Last: until here the steps are those of an open trajectory.
        state.log = None


def complete_fields(trajectory: Trajectory) -> None:
    """Completes the fields that depend on the final steps. A part that fails does not keep the others from running."""
    state = state_of(trajectory)
    guard.run_all(
        "close",
        partial(_name_agent, trajectory),
        lambda: costs.fill_provider_costs(trajectory.steps),
        partial(link_tool_runs, trajectory),
        partial(_warn_if_no_ids, trajectory),
        *(partial(change, trajectory) for change in (() if state is None else state.at_completion)),
        # Last: the others may copy texts that hold one.
        lambda: cut_keys(trajectory) if credentials.any_known() else None,
    )


def _set_outcome(trajectory: Trajectory, error: BaseException | None) -> None:
    # Past `__setattr__`, which would write each of them to the journal: `closed` writes them all at once.
    put = partial(object.__setattr__, trajectory)
    put("ended_at", datetime.now(timezone.utc))
    if error is not None:
        put("error", error_info(error))
    # Any other status was set by the user.
    if trajectory.status == "running":
        failed = "failed" if isinstance(error, Exception) else "aborted"
        put("status", "completed" if error is None else failed)


def _name_agent(trajectory: Trajectory) -> None:
    for step in trajectory.steps:
        if step.agent is None:
            amend(step, agent=trajectory.name)


def _warn_if_no_ids(trajectory: Trajectory) -> None:
    no_ids = [
        step
        for step in trajectory.steps
        if warns_of_missing_ids
        and step.engine is None
        and step.status == "ok"
        and shared(step, "completion_token_ids") is None
        # Otherwise ids were there, and are withheld.
        and (step.token_issue is None or step.token_issue.code == "ids_missing")
        # Of a protocol without ids, no `engine=` would help.
        and can_request_ids(step.protocol)
    ]
    if no_ids:
        guard.warn_once(
            "no-ids",
            f"{len(no_ids)} of {len(trajectory.steps)} steps of trajectory {trajectory.name!r} hold no token ids, "
            "because the server was not asked for them. If it can send them, name its engine, such as "
            'rt.wrap_openai(client, engine="vllm"), rt.instrument(engine="vllm") or rt.collect(..., engine="vllm").',
        )


# Trajectories inside each other

# Reentrant: while the lock is held, the garbage collector may close an agent (a generator), and its trajectory.
_lock = lock_for(__name__)


def closed_inside(trajectory: Trajectory) -> list[Trajectory]:
    """A trajectory and those opened inside it, at any depth, that have closed: what is written together."""
    return [trajectory, *trajectory._children]


def to_write(trajectory: Trajectory, parent: Trajectory | None) -> list[Trajectory] | None:
    """A closed trajectory and those inside it; None where they are written with its parent, which is open.

    They inherit the rewards and changes that the parent has for those inside it.
    """
    # A parent that closes in another thread meanwhile has either collected this child, or is seen as closed here.
    with _lock:
        episode = closed_inside(trajectory)
        if parent is None:
            return episode
        if (outer := state_of(parent)) is not None:
            for name, (value, giver_id) in outer.child_rewards.items():
                for one in episode:
                    _inherit_reward(one, name, value, giver_id)
            for how in outer.for_inside:
                _change(episode, how)
        if not parent.is_open:
            return episode
        parent._children.extend(episode)
        return None


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
    """Applies a function to a trajectory and those opened inside it, at any depth, before they are written.

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


# The recording of a trajectory


def recording_here() -> recording | None:
    """Returns the open recording to which a trajectory opened in this context would belong; None without one."""
    own = current_recording()
    if own is None and len(others := open_recordings()) == 1:
        own = others[0]
    if own is None or not own.is_open:
        own = fallback_recording()
    return own if own is not None and own.is_open else None


def write_closed(trajectory: Trajectory, parent: Trajectory | None, state: TrajectoryState | None) -> None:
    """Adds a closed trajectory to its open parent, to be written with it; without an open parent queues it.

    Outside every recording it is completed at once, unless a call of it still runs: then when its steps are read.
    """
    if state is not None and state.journal is not None:
        state.journal.closed(trajectory)
    together = to_write(trajectory, parent)
    if together is None:
        return
    target, missing = _target_recording(None if state is None else state.recording)
    if target is not None and target.write(together):
        return
    rest = fallback_recording()
    if rest is not None and rest.write(together):
        return
    if target is not None or rest is not None:
        # Left by another thread meanwhile.
        missing = _ENDED
    if missing is not None:
        _warn_lost(together, missing)

    def complete(one: Trajectory) -> None:
        if (own := state_of(one)) is not None and own.complete(one) is None:
            own.was_closed(one)
            if missing is None:
                unsaved.note(one)

    guard.run_all("silence", *(partial(complete, one) for one in together))


_ENDED = "its recording had ended before it did"


def _target_recording(opened_in: recording | None) -> tuple[recording | None, str | None]:
    """The recording that a closed trajectory is for, and why it has none where it should have one.

    It is the recording of this context, unless the trajectory was opened in another one (``opened_in``): its agent may
    be closed by the garbage collector, or by the end of the process, in the context of any other. In a thread without a
    recording it is the one that the trajectory was opened in, or the only open one.
    """
    own = current_recording()
    if opened_in is not None and opened_in.is_open and (own is None or not own.is_inside(opened_in)):
        return opened_in, None
    if own is not None:
        return (own, None) if own.is_open else (None, _ENDED)
    others = open_recordings()
    if not others:
        return None, None if opened_in is None else _ENDED
    return (others[0], None) if len(others) == 1 else (None, "several recordings are open, none of them its own")


def _warn_lost(trajectories: list[Trajectory], reason: str) -> None:
    first = trajectories[0]
    state = state_of(first)
    guard.count("recorder_errors")
    guard.count("trajectories_lost", len(trajectories))
    kept = ""
    if state is not None and state.journal is not None and state.journal.has_records:
        kept = " The journal has its calls that ended before: rt.recover() reads it."
    # Not once per process: every time a trajectory is lost.
    guard.warn(
        f"trajectory {first.id} was not written to a file: {reason}. In a thread use rt.propagate(function), or open "
        f"the recording there.{kept}"
    )


# The recording of what has no other: of a process whose output was named when it was started. A program's own
# `rt.recording` goes before it.

_fallback_path: str | None = None
_fallback: recording | None = None
_fallback_lock = lock_for(__name__, "_fallback_lock")


def use_fallback(path: str | None) -> None:
    """Sets the file for trajectories without their own recording; None removes it.

    One that is open is ended first, and what was closed is written. The file is created when a trajectory needs it.
    """
    global _fallback_path
    with _fallback_lock:
        end_fallback()
        _fallback_path = path
    if path is not None:
        guard.run_all("exit", lambda: process_end.watch(for_good=True))


def fallback_path() -> str | None:
    """The file of the fallback recording; None without one."""
    return _fallback_path


def fallback_recording() -> recording | None:
    """The fallback recording, opened if need be; None where there is none, or its file cannot be opened."""
    global _fallback_path, _fallback
    with _fallback_lock:
        if _fallback is None and _fallback_path is not None:
            try:
                one = recording(_fallback_path)
                one.open_without_block()
                _fallback = one
            except (OSError, ValueError, ImportError) as error:
                name, _fallback_path = _fallback_path, None
                guard.count("recorder_errors")
                guard.warn(f"nothing was recorded to {name}: {guard.describe(error)}")
        return _fallback


def end_fallback() -> None:
    """Ends the fallback recording: what has closed is written. For the end of the process, when all is closed."""
    global _fallback
    with _fallback_lock:
        one, _fallback = _fallback, None
    if one is not None:
        one.end_with_process(time.monotonic() + process_end.CLOSE_TIMEOUT)


process_end.add_closer(end_fallback)
