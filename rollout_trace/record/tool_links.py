"""Links from tool runs to the steps whose completions requested them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.data.model import Step, ToolCall, ToolRun
    from rollout_trace.data.trajectory import Trajectory


def link_tool_runs(trajectory: Trajectory) -> None:
    """Sets ``step_id`` on the tool runs that have a ``tool_call_id`` and no step yet."""
    requests: dict[str, list[tuple[Step, ToolCall]]] = {}
    for step in trajectory.steps:
        for call in step.completion.tool_calls if step.completion is not None else ():
            if isinstance(call.id, str):
                requests.setdefault(call.id, []).append((step, call))
    for run in trajectory.tool_runs:
        if run.step_id is None and isinstance(run.tool_call_id, str):
            # As the steps have it, out of which keys of this process's clients were cut.
            candidates = requests.get(credentials.cut(run.tool_call_id))
            if candidates is not None:
                run.step_id = _requesting_step(run, candidates).id


def _requesting_step(run: ToolRun, candidates: list[tuple[Step, ToolCall]]) -> Step:
    """The step that requested a run, among those with a tool call of its id.

    Servers may repeat ids in every turn (``call_0``), so the id alone does not decide. Each test keeps the candidates
    that pass it, or all if none does; the last of those left is returned.
    """
    tests: tuple[Callable[[Step, ToolCall], bool], ...] = (
        lambda step, call: call.name == run.name,
        lambda step, call: _same_arguments(run.arguments, call.arguments),
        lambda step, call: step.status not in ("superseded", "error"),
        lambda step, call: _is_before(step, 0.0, run),
        # From the first token on, not the end: a tool may run while the stream that requested it is still open.
        lambda step, call: _is_before(step, step.time_to_first_token or step.latency or 0.0, run),
    )
    for passes in tests if len(candidates) > 1 else ():
        candidates = [candidate for candidate in candidates if passes(*candidate)] or candidates
    return candidates[-1][0]


def _same_arguments(passed: Any, written: str | None) -> bool:
    """Whether a tool got the arguments that the model wrote, as text or decoded."""
    if written is None or isinstance(passed, str):
        return bool(passed == written)
    try:
        decoded: object = json.loads(written)
        return bool(decoded == passed)
    except ValueError:
        return False


def _is_before(step: Step, seconds: float, run: ToolRun) -> bool:
    """Whether the run began at least ``seconds`` after the step; False if a time is unknown."""
    if step.started_at is None or run.started_at is None:
        return False
    return step.started_at.timestamp() + seconds <= run.started_at.timestamp()
