"""Opening and closing of trajectories; a closed one is passed on to be written."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace._caller import place_of_caller
from rollout_trace.data import costs
from rollout_trace.data.model import amend, error_info
from rollout_trace.engines.profiles import can_request_ids
from rollout_trace.record.log import StepLog
from rollout_trace.record.provenance import Pending
from rollout_trace.record.recording import write_closed
from rollout_trace.record.state import TrajectoryState, state_of
from rollout_trace.record.tool_links import link_tool_runs

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


def begin(trajectory: Trajectory, parent: Trajectory | None) -> None:
    """Opens a trajectory, as a child of ``parent`` if that is open."""
    parent_state = None if parent is None else state_of(parent)
    if parent is not None and parent_state is not None:
        parent_state.children_opened += 1
        # A parent that has closed (its context was copied into a task that goes on) may be written already: what is
        # opened inside it then is an episode of its own.
        if parent_state.log is not None:
            trajectory.episode_id, trajectory.parent_id = parent.episode_id, parent.id
            trajectory.parent_step_id = parent_state.log.last_step_id()
    try:
        _open(trajectory)
    except Exception as failure:
        guard.failed("open", None, failure)


def finish(trajectory: Trajectory, parent: Trajectory | None, error: BaseException | None) -> None:
    """Closes a trajectory and has it written, even if completing it failed. Never raises, save under pytest."""
    try:
        try:
            _close(trajectory, error)
        finally:
            write_closed(trajectory, parent)
    except Exception as failure:
        guard.failed("close", None, failure)


def _open(trajectory: Trajectory) -> None:
    trajectory.status = "running"
    trajectory.started_at = datetime.now(timezone.utc)
    # Collected when it is read. Past `__setattr__`, whose field is a dict.
    object.__setattr__(trajectory, "environment", Pending())
    trajectory._recorder = TrajectoryState(StepLog(), place_of_caller())


def _close(trajectory: Trajectory, error: BaseException | None) -> None:
    """Decodes all calls and completes the trajectory. A part that fails does not keep the others from running."""
    state = state_of(trajectory)
    if state is None or state.log is None:
        return
    guard.run_all(
        "close",
        # First: the others read the steps.
        partial(_store_steps, trajectory, state, state.log),
        partial(_set_outcome, trajectory, error),
        partial(_name_agent, trajectory),
        lambda: costs.fill_provider_costs(trajectory.steps),
        partial(link_tool_runs, trajectory),
        partial(_warn_if_no_ids, trajectory),
    )


def _store_steps(trajectory: Trajectory, state: TrajectoryState, log: StepLog) -> None:
    """Stores the decoded steps on the trajectory. It counts as closed even if decoding fails."""
    try:
        steps = log.close()
    except Exception:
        state.log, trajectory.steps = None, []
        raise
    state.log, trajectory.steps = None, steps


def _set_outcome(trajectory: Trajectory, error: BaseException | None) -> None:
    trajectory.ended_at = datetime.now(timezone.utc)
    if error is not None:
        trajectory.error = error_info(error)
    # Any other status was set by the user.
    if trajectory.status == "running":
        failed = "failed" if isinstance(error, Exception) else "aborted"
        trajectory.status = "completed" if error is None else failed


def _name_agent(trajectory: Trajectory) -> None:
    for step in trajectory.steps:
        if step.agent is None:
            amend(step, agent=trajectory.name)


def _warn_if_no_ids(trajectory: Trajectory) -> None:
    no_ids = [
        step
        for step in trajectory.steps
        if step.engine is None
        and step.status == "ok"
        and step.completion_token_ids is None
        # Of a protocol without ids, no `engine=` would help.
        and can_request_ids(step.protocol)
    ]
    if no_ids:
        guard.warn_once(
            "no-ids",
            f"{len(no_ids)} of {len(trajectory.steps)} steps of trajectory {trajectory.name!r} hold no token ids: the "
            "server was not asked for them. If it can send them, wrap the client with its engine, e.g. "
            'rt.wrap_openai(client, engine="vllm").',
        )
