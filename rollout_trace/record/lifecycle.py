"""Opening and closing of trajectories; a closed one is passed on to be written."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace._python import place_of_caller
from rollout_trace.data import costs
from rollout_trace.data.model import amend, error_info, shared
from rollout_trace.data.trajectory import complete_later, stored_tool_runs
from rollout_trace.record import ancestry, fallback, process_end
from rollout_trace.record.destination import attach, write_closed
from rollout_trace.record.log import StepLog
from rollout_trace.record.provenance import Pending
from rollout_trace.record.recording import open_recordings
from rollout_trace.record.redaction import cut_keys
from rollout_trace.record.state import TrajectoryState, state_of
from rollout_trace.record.tool_links import link_tool_runs
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
    """Closes a trajectory and passes it on to be written. Nothing is decoded here. Never raises, save under pytest."""
    state = state_of(trajectory)
    if state is not None and _opened.pop(id(trajectory), None) is None:
        # Closed already, by the end of the process: a daemon thread may leave its block after that.
        return
    try:
        try:
            if state is not None and state.log is not None:
                _close(trajectory, state, state.log, error)
        finally:
            write_closed(trajectory, parent)
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
    recordings = [*open_recordings(), *filter(None, [fallback.opened()])]
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
    state = TrajectoryState(StepLog(), place_of_caller())
    attach(state, trajectory)
    trajectory._recorder = state
    _opened[id(trajectory)] = (trajectory, parent)
    if when_opened:
        guard.run_all("open", *(partial(tell, trajectory) for tell in when_opened))


def _close(trajectory: Trajectory, state: TrajectoryState, log: StepLog, error: BaseException | None) -> None:
    """Closes the log. The steps are decoded when they are read, or on the thread that writes the trajectory."""
    state.completion, state.closed_log = _complete, log
    try:
        # The log first: ending its frames may set fields of the trajectory.
        guard.run_all("close", log.close, partial(_set_outcome, trajectory, error))
    finally:
        # Last: until here the steps are those of an open trajectory.
        state.log = None


def _complete(trajectory: Trajectory) -> None:
    """Completes the fields that depend on the final steps. A part that fails does not keep the others from running."""
    guard.run_all(
        "close",
        partial(_name_agent, trajectory),
        lambda: costs.fill_provider_costs(trajectory.steps),
        partial(link_tool_runs, trajectory),
        partial(_warn_if_no_ids, trajectory),
        *(partial(change, trajectory) for change in _changes(trajectory)),
        # Last: the others may copy texts that hold one.
        partial(cut_keys, trajectory),
    )


def _changes(trajectory: Trajectory) -> list[Callable[[Trajectory], object]]:
    state = state_of(trajectory)
    return [] if state is None else state.at_completion


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
    if not warns_of_missing_ids:
        return
    no_ids = [
        step
        for step in trajectory.steps
        if step.engine is None
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
            f"{len(no_ids)} of {len(trajectory.steps)} steps of trajectory {trajectory.name!r} hold no token ids: the "
            "server was not asked for them. If it can send them, name its engine, e.g. "
            'rt.wrap_openai(client, engine="vllm"), rt.instrument(engine="vllm") or rt.collect(..., engine="vllm").',
        )
