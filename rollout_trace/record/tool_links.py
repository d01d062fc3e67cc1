"""Which step asked for a tool run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.data.model import Step, ToolCall, ToolRun
    from rollout_trace.data.trajectory import Trajectory


def link_tool_runs(trajectory: Trajectory) -> None:
    """Sets the ``step_id`` of the tool runs that have a call's id and no step yet."""
    asked: dict[str, list[tuple[Step, ToolCall]]] = {}
    for step in trajectory.steps:
        for call in step.completion.tool_calls if step.completion is not None else ():
            if isinstance(call.id, str):
                asked.setdefault(call.id, []).append((step, call))
    for run in trajectory.tool_runs:
        if run.step_id is None and isinstance(run.tool_call_id, str) and run.tool_call_id in asked:
            run.step_id = _asker(run, asked[run.tool_call_id]).id


def _asker(run: ToolRun, askers: list[tuple[Step, ToolCall]]) -> Step:
    """The step that asked for a run, of those with a call of its id.

    Servers may give the calls of every turn the same ids (``call_0``), so that the id alone does not decide. Each test
    keeps the candidates that pass it, or all where none does; of what is left the last is the one.
    """
    tests: tuple[Callable[[Step, ToolCall], bool], ...] = (
        lambda step, call: call.name == run.name,
        lambda step, call: _are_arguments(run.arguments, call.arguments),
        lambda step, call: step.status not in ("superseded", "error"),
        lambda step, call: _is_before(step, 0.0, run),
        # A tool may run while the stream that asked for it is still open.
        lambda step, call: _is_before(step, step.time_to_first_token or step.latency or 0.0, run),
    )
    for is_right in tests if len(askers) > 1 else ():
        askers = [asker for asker in askers if is_right(*asker)] or askers
    return askers[-1][0]


def _are_arguments(given: Any, written: str | None) -> bool:
    """A tool got what the model wrote, as it is or decoded."""
    if written is None or isinstance(given, str):
        return bool(given == written)
    try:
        decoded: object = json.loads(written)
        return bool(decoded == given)
    except ValueError:
        return False


def _is_before(step: Step, seconds: float, run: ToolRun) -> bool:
    """The run began so many seconds after the step did, or later."""
    if step.started_at is None or run.started_at is None:
        return False
    return step.started_at.timestamp() + seconds <= run.started_at.timestamp()
