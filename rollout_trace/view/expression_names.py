"""The names that an expression can use of a trajectory, and the fields of what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any, NamedTuple

from rollout_trace.data.model import (
    Attempt,
    Completion,
    Cost,
    ErrorInfo,
    Step,
    Task,
    TokenIssue,
    ToolCall,
    ToolRun,
    Usage,
)
from rollout_trace.data.trajectory import Trajectory


class Name(NamedTuple):
    """A name of an expression."""

    get: Callable[[Trajectory], Any]
    meaning: str


def _error(error: ErrorInfo | None) -> str | None:
    return None if error is None else f"{error.type}: {error.message}"


def _seconds(run: Trajectory) -> float | None:
    if run.started_at is None or run.ended_at is None:
        return None
    return (run.ended_at - run.started_at).total_seconds()


def _distinct(values: Iterator[str | None]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value is not None]


def _summary(field: str) -> Callable[[Trajectory], Any]:
    """A field of the trajectory's summary."""

    def get(run: Trajectory) -> Any:
        from rollout_trace.view.summary import summarize

        return getattr(summarize(run), field)

    return get


def _text(run: Trajectory) -> str:
    return "\n".join(_texts(run))


def _texts(run: Trajectory) -> Iterator[str]:
    """All texts of messages, answers, tool calls and tool results, a message that steps share once."""
    seen: set[int] = set()
    for step in run.steps:
        for message in step.messages or ():
            if id(message) not in seen:
                seen.add(id(message))
                yield from _strings(message)
        if step.completion is not None:
            done = step.completion
            yield from _strings([done.reasoning, done.content, done.refusal])
            yield from _strings([[call.name, call.arguments] for call in done.tool_calls])
    for tool_run in run.tool_runs:
        yield from _strings([tool_run.name, tool_run.arguments, tool_run.result, _error(tool_run.error)])
    yield from _strings(_error(run.error))


def _strings(value: Any) -> Iterator[str]:
    """The texts in a value of JSON. Without recursion, as values can be nested deeply."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting.extend(reversed(list(one.values())))
        elif isinstance(one, (list, tuple)):
            waiting.extend(reversed(one))


NAMES: dict[str, Name] = {
    "id": Name(lambda run: run.id, "id of the trajectory"),
    "name": Name(lambda run: run.name, "of the agent or program"),
    "status": Name(lambda run: run.status, "completed, failed, aborted, running, or another text"),
    "stop_reason": Name(lambda run: run.stop_reason, "why it ended"),
    "error": Name(lambda run: _error(run.error), "the error as one text; also error.type, error.message, error.status"),
    "reward": Name(lambda run: run.reward, "the reward, None: not scored"),
    "rewards": Name(lambda run: run.rewards, 'named rewards: rewards.format or rewards["format"]'),
    "metrics": Name(lambda run: run.metrics, "named measurements: metrics.turns"),
    "metadata": Name(lambda run: run.metadata, "set by the user: metadata.split"),
    "note": Name(lambda run: (run.metadata or {}).get("note"), 'metadata["note"]'),
    "environment": Name(lambda run: run.environment, "what ran: environment.git.commit"),
    "task": Name(lambda run: None if run.task is None else run.task.id, "id of the task; also task.id, task.data"),
    "task_id": Name(lambda run: None if run.task is None else run.task.id, "the same as task"),
    "group": Name(lambda run: run.group_id, "id of the group"),
    "group_id": Name(lambda run: run.group_id, "the same as group"),
    "index": Name(lambda run: run.rollout_index, "position in the group, from 0"),
    "rollout_index": Name(lambda run: run.rollout_index, "the same as index"),
    "episode": Name(lambda run: run.episode_id, "id of the episode: of the outermost trajectory"),
    "episode_id": Name(lambda run: run.episode_id, "the same as episode"),
    "parent": Name(lambda run: run.parent_id, "id of the trajectory inside which it was opened"),
    "parent_id": Name(lambda run: run.parent_id, "the same as parent"),
    "forked_from": Name(
        lambda run: None if run.forked_from is None else run.forked_from.id,
        "id of the trajectory that it went on from",
    ),
    "attempt": Name(_summary("attempt"), "the attempt of rt.collect that it is"),
    "started_at": Name(lambda run: run.started_at, 'when it began, as text: started_at > "2026-11-21T08"'),
    "ended_at": Name(lambda run: run.ended_at, "when it ended, as text"),
    "seconds": Name(_seconds, "from its begin to its end"),
    "steps": Name(lambda run: run.steps, "list of its steps: any(step.status == 'error' for step in steps)"),
    "n_steps": Name(lambda run: len(run.steps), "number of steps"),
    "tool_runs": Name(lambda run: run.tool_runs, "list of its tool runs: any(run.name == 'bash' for run in tool_runs)"),
    "n_tool_runs": Name(lambda run: len(run.tool_runs), "number of tool runs"),
    "tool_errors": Name(lambda run: sum(one.error is not None for one in run.tool_runs), "tool runs with an error"),
    "tools": Name(lambda run: _distinct(one.name for one in run.tool_runs), "names of the tools that ran"),
    "agents": Name(lambda run: _distinct(step.agent for step in run.steps), "names of the agents of its steps"),
    "models": Name(lambda run: _distinct(one.model or one.response_model for one in run.steps), "models of its steps"),
    "calls": Name(lambda run: len({step.call_id for step in run.steps}), "number of calls"),
    "input_tokens": Name(lambda run: run.n_input_tokens, "prompt tokens of all calls"),
    "output_tokens": Name(lambda run: run.n_output_tokens, "sampled tokens of all calls"),
    "cost": Name(lambda run: None if run.cost is None else run.cost.amount, "of all calls, in its currency"),
    "currency": Name(lambda run: None if run.cost is None else run.cost.currency, "of the cost, such as USD"),
    "latency": Name(_summary("latency"), "seconds, sum over its calls"),
    "first_token": Name(_summary("first_token"), "seconds to the first token, mean over its calls"),
    "rows": Name(_summary("rows"), "number of training rows"),
    "tokens": Name(_summary("tokens"), "tokens of all rows"),
    "trained": Name(_summary("trained"), "tokens of all rows that are trained on"),
    "left_out": Name(_summary("left_out"), "steps that no row has, by reason: left_out.error > 0"),
    "findings": Name(_summary("findings"), "number of findings by code: 'truncated' in findings"),
    "grade": Name(_summary("grade"), "the worst grade of its findings: fatal, warning or info"),
    "drift": Name(_summary("drift"), "number of drifts by kind; true where there is any"),
    "excerpt": Name(_summary("excerpt"), "the beginning of the first message of a user"),
    "text": Name(_text, "all text of messages, answers, tool calls and results"),
}
"""Computed when an expression uses them, once a trajectory."""

PARTS: dict[str, Callable[[Trajectory], Any]] = {
    "task": lambda run: run.task,
    "error": lambda run: run.error,
}
"""Names that stand for a text alone, and for an object where a field of theirs is asked for: ``task.data``."""

_OF_STEP = (
    "id call_id choice index agent protocol engine model response_model response_id messages tools sampling "
    "completion finish_reason stop_reason prompt_token_ids completion_token_ids logprobs token_source logprobs_mode "
    "token_issue usage cost started_at latency time_to_first_token attempts status error reward advantage trainable "
    "policy_version metadata extra"
)
_WHOLE: tuple[Any, ...] = (ToolRun, ToolCall, Completion, Attempt, ErrorInfo, TokenIssue, Usage, Cost, Task)
FIELDS: dict[type, frozenset[str]] = {kind: frozenset(one.name for one in fields(kind)) for kind in _WHOLE}
FIELDS[Step] = frozenset(_OF_STEP.split())
"""The fields that can be read of objects; of mappings, the keys."""


def plain(value: Any) -> Any:
    """A value as expressions have it: times as text in UTC (ISO 8601), arrays as lists."""
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    return value
