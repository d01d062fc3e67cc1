"""The tools that an agent ran: as they were recorded, and where they were not, as its conversation shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_trace.data.model import ErrorInfo, Step, ToolCall, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.view.threads import threads_of
from rollout_trace.wire.chat_messages import as_text, convert, grouped


@dataclass(slots=True, kw_only=True)
class InferredToolRun(ToolRun):
    """A tool run that was not recorded: the model called the tool, and a later request may contain its result.

    ``arguments`` is the raw text that the model wrote, ``result`` the content that the model read, None if no later
    request has one. Times are unknown. ``error`` is set if the request marks the result as an error (Anthropic's
    ``is_error``).
    """

    has_result: bool = False
    """Whether a later request has the result: the agent ran the tool, or answered in its place."""


def runs_of(trajectory: Trajectory) -> list[ToolRun]:
    """The tool runs of a trajectory, and a run for each tool call without one, in the order in which the model asked.

    Runs that no recorded completion asked for stand by their times, those without a time at the end.
    """
    steps, recorded = trajectory.steps, list(trajectory.tool_runs)
    results = _results(steps)
    found: list[tuple[int, ToolRun]] = []
    for at, step in enumerate(steps):
        if step.status in ("superseded", "cached") or step.completion is None:
            continue
        for call in step.completion.tool_calls:
            run = _take(recorded, step, call)
            found.append((at, run if run is not None else _inferred(step, call, results.get(at, []))))
    # A stable sort: a run stands behind the calls of the step that was the last to begin before it.
    found += [(_place(steps, run), run) for run in recorded]
    return [run for _, run in sorted(found, key=lambda one: one[0])]


def _take(recorded: list[ToolRun], step: Step, call: ToolCall) -> ToolRun | None:
    """Takes the recorded run of a tool call out of the list."""

    def is_of(run: ToolRun) -> bool:
        if run.step_id not in (None, step.id):
            return False
        if run.tool_call_id is not None:
            return run.tool_call_id == call.id
        # Recorded without the id: the first of the tool's runs is that of its first call.
        return run.name is not None and run.name == call.name

    found = next(filter(is_of, recorded), None)
    if found is not None:
        # By identity: two runs may be equal.
        del recorded[next(at for at, run in enumerate(recorded) if run is found)]
    return found


def _place(steps: Sequence[Step], run: ToolRun) -> int:
    if run.step_id is not None:
        return next((at for at, step in enumerate(steps) if step.id == run.step_id), len(steps))
    if run.started_at is None:
        return len(steps)
    begun = [at for at, step in enumerate(steps) if step.started_at is not None and step.started_at <= run.started_at]
    return max(begun, default=-1)


def _inferred(step: Step, call: ToolCall, results: list[dict[str, Any]]) -> InferredToolRun:
    message = _taken_result(results, call)
    run = InferredToolRun(tool_call_id=call.id, name=call.name, arguments=call.arguments, step_id=step.id)
    if message is None:
        return run
    content = as_text(message.get("content"))
    run.has_result = True
    if message.get("is_error"):
        run.error = ErrorInfo(type="ToolError", message=content if isinstance(content, str) else repr(content))
    else:
        run.result = content
    return run


def _taken_result(results: list[dict[str, Any]], call: ToolCall) -> dict[str, Any] | None:
    """Takes the message with the result of a call: the one with its id; of protocols without ids, its tool's first."""

    def is_of(message: dict[str, Any]) -> bool:
        given = message.get("tool_call_id")
        if given is not None and call.id is not None:
            return bool(given == call.id)
        return message.get("name", message.get("tool_name")) in (None, call.name)

    at = next((at for at, message in enumerate(results) if is_of(message)), None)
    return None if at is None else results.pop(at)


def _results(steps: Sequence[Step]) -> dict[int, list[dict[str, Any]]]:
    """The tool messages that answer the calls of each step, by its index.

    They are among the new messages of the first request that continues the step. One that was made from the same
    conversation in other messages (a summary, another order) continues none: there the ids of the calls decide.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    asked_by = _asked_by(steps)
    for at, (step, link) in enumerate(zip(steps, threads_of(steps), strict=True)):
        # A request that was tried again has the same results again.
        known = {source: list(messages) for source, messages in found.items()}
        for message in _tool_messages(step, link.repeated if link.continues is not None else 0):
            source = asked_by.get(message.get("tool_call_id"))
            sources = _choices(steps, link.continues) if link.continues is not None else [source]
            for one in sources:
                if one is not None and one < at and message not in known.get(one, ()):
                    found.setdefault(one, []).append(message)
    return found


def _asked_by(steps: Iterable[Step]) -> dict[Any, int]:
    """By id of a tool call that is of one step alone: the index of the step."""
    asked = [
        (call.id, at)
        for at, step in enumerate(steps)
        for call in (step.completion.tool_calls if step.completion is not None else ())
        if call.id is not None
    ]
    counts = Counter(identity for identity, _ in asked)
    return {identity: at for identity, at in asked if counts[identity] == 1}


def _choices(steps: Sequence[Step], at: int) -> list[int]:
    """The indices of the steps of one call: which of its choices the agent went on from, the ids of the calls tell."""
    return [other for other, step in enumerate(steps) if step.call_id == steps[at].call_id]


def _tool_messages(step: Step, repeated: int) -> list[dict[str, Any]]:
    groups = grouped(step.protocol, list(step.messages or ())[repeated:])
    messages = [message for group in groups if group for message in convert(step.protocol, group)]
    return [message for message in messages if isinstance(message, dict) and message.get("role") == "tool"]
