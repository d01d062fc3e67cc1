"""``rt.tool_run``: tool executions reported by the user's own agent loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.data.model import ToolRun
from rollout_trace.record.frames import ToolFrame
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


@contextmanager
def tool_run(name: str, *, tool_call_id: str | None = None, arguments: Any = None) -> Iterator[ToolRun]:
    """Records and times one execution of a tool in the current trajectory. Set ``result`` on the yielded ``ToolRun``.

    An exception of the tool is recorded and re-raised. Outside a trajectory the run is yielded but recorded nowhere.
    A run that begins or ends after its trajectory has closed causes a warning: a file that was written before lacks the
    run, or its result.

    Args:
        name: of the tool.
        tool_call_id: the model's id of the tool call; links the run to the step that requested it.
        arguments: as the tool gets them; copied.
    """
    with ToolFrame(name, tool_call_id=tool_call_id, arguments=_snapshot(arguments)) as frame:
        trajectory = frame.trajectory
        _warn_if_closed(trajectory, name, "began")
        try:
            yield frame.run
        finally:
            _warn_if_closed(trajectory, name, "ended")


def _warn_if_closed(trajectory: Trajectory | None, name: str, what: str) -> None:
    if trajectory is None or trajectory.is_open:
        return
    state = state_of(trajectory)
    named = f"{trajectory.name!r} ({trajectory.id})"
    if state is not None and state.log is not None:
        guard.warn_once(
            "tool-run-in-a-fork",
            f"tool run {name!r} {what} in a process that was forked inside its trajectory {named}, which is the other "
            "process's: it is recorded nowhere. Use rt.tool_run there, around what waits for this process.",
        )
    else:
        opened_at = None if state is None else state.opened_at
        guard.warn_once(
            "tool-run-after-close",
            f"tool run {name!r} {what} when its trajectory {named}, opened at {opened_at}, had closed: a file that the "
            "trajectory was written to does not have it whole. End tool runs inside the `with rt.trajectory()` block.",
        )


def _snapshot(arguments: Any) -> Any:
    """A copy of the arguments, since a tool may change them; the arguments themselves if they cannot be copied."""
    try:
        return copy.deepcopy(arguments)
    except Exception:
        return arguments
