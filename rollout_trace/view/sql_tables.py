"""The tables of ``rollout-trace query``: their columns, and the rows of a trajectory. Times are in UTC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rollout_trace.file.plain import dumps
from rollout_trace.view.summary import finite, summarize
from rollout_trace.wire.chat_messages import as_text

if TYPE_CHECKING:
    from rollout_trace.data.model import ErrorInfo, Step, ToolRun
    from rollout_trace.data.trajectory import Trajectory

Row = dict[str, Any]


class Table(NamedTuple):
    """A table."""

    columns: dict[str, str]
    """Name to DuckDB's type."""
    rows: Callable[[Trajectory, str, int], Iterator[Row]]
    """The rows of a trajectory, given the path of its file and the number of its line. A key may be missing: NULL."""


def _columns(text: str) -> dict[str, str]:
    """Columns by type: ``TYPE: name name; TYPE: name``."""
    found = {}
    for part in text.split(";"):
        kind, _, names = part.partition(":")
        found.update(dict.fromkeys(names.split(), kind.strip()))
    return found


_TRAJECTORIES = _columns("""
    VARCHAR: file; BIGINT: line;
    VARCHAR: id name task_id group_id; BIGINT: rollout_index attempt; VARCHAR: episode_id parent_id;
    VARCHAR: status stop_reason error; DOUBLE: reward; MAP(VARCHAR, DOUBLE): rewards metrics;
    TIMESTAMP: started_at ended_at; DOUBLE: seconds; BIGINT: n_steps n_calls; VARCHAR[]: agents models;
    BIGINT: input_tokens output_tokens; DOUBLE: cost; VARCHAR: currency; DOUBLE: latency first_token;
    BIGINT: n_tool_runs tool_errors n_rows tokens trained; MAP(VARCHAR, BIGINT): left_out findings;
    VARCHAR: grade; MAP(VARCHAR, BIGINT): drift; VARCHAR: excerpt note; JSON: task metadata environment
""")
_STEPS = _columns("""
    VARCHAR: trajectory_id; BIGINT: index; VARCHAR: id call_id; BIGINT: choice;
    VARCHAR: agent protocol engine model response_model status finish_reason error;
    TIMESTAMP: started_at; DOUBLE: latency first_token; BIGINT: attempts n_prompt n_completion;
    DOUBLE: mean_logprob; BIGINT: input_tokens output_tokens cache_read_tokens cache_write_tokens reasoning_tokens;
    DOUBLE: cost; VARCHAR: currency; DOUBLE: temperature reward; BOOLEAN: trainable;
    VARCHAR: policy_version token_source token_issue; BIGINT: n_messages n_tools; VARCHAR[]: tool_calls;
    VARCHAR: text reasoning; JSON: sampling metadata
""")
_TOOL_RUNS = _columns("""
    VARCHAR: trajectory_id step_id tool_call_id name arguments result error_type error; TIMESTAMP: started_at;
    DOUBLE: seconds
""")
_FINDINGS = _columns("VARCHAR: trajectory_id step_id code grade message; BIGINT: position")


def _trajectory(run: Trajectory, path: str, line: int) -> Iterator[Row]:
    found: Row = msgspec.to_builtins(summarize(run))
    renamed = {
        "task": "task_id",
        "group": "group_id",
        "index": "rollout_index",
        "episode": "episode_id",
        "parent": "parent_id",
        "steps": "n_steps",
        "calls": "n_calls",
        "tool_runs": "n_tool_runs",
        "rows": "n_rows",
    }
    row = {renamed.get(name, name): value for name, value in found.items()}
    # Counts that are their default are left out of what is shown: here they are known.
    zeros = ("n_steps", "n_calls", "n_tool_runs", "tool_errors", "n_rows", "tokens", "trained")
    empty: Row = {"agents": [], "models": [], "left_out": {}, "findings": {}, "drift": {}, "name": "agent"}
    yield {
        **dict.fromkeys(zeros, 0),
        **empty,
        "status": run.status,
        **{name: value for name, value in row.items() if name in _TRAJECTORIES},
        "file": path,
        "line": line,
        "started_at": _time(run.started_at),
        "ended_at": _time(run.ended_at),
        "task": None if run.task is None else run.task.data,
        "metadata": run.metadata,
        "environment": run.environment,
    }


def _steps(run: Trajectory, path: str, line: int) -> Iterator[Row]:
    for step in run.steps:
        yield {**_called(step), **_answered(step), "trajectory_id": run.id}


def _called(step: Step) -> Row:
    same = ("index", "id", "call_id", "choice", "agent", "protocol", "engine", "model", "response_model", "status")
    return {
        **{name: getattr(step, name) for name in same},
        "error": _error(step.error),
        "started_at": _time(step.started_at),
        "latency": step.latency,
        "first_token": step.time_to_first_token,
        "attempts": len(step.attempts),
        "temperature": finite((step.sampling or {}).get("temperature")),
        "n_messages": None if step.messages is None else len(step.messages),
        "n_tools": None if step.tools is None else len(step.tools),
        "sampling": step.sampling,
        "metadata": step.metadata,
    }


def _answered(step: Step) -> Row:
    usage, cost, done = step.usage, step.cost, step.completion
    ids, prompt = step.completion_token_ids, step.prompt_token_ids
    logprobs = step.logprobs
    return {
        "finish_reason": step.finish_reason,
        "n_prompt": None if prompt is None else len(prompt),
        "n_completion": None if ids is None else len(ids),
        "mean_logprob": None if logprobs is None or not len(logprobs) else finite(float(logprobs.mean(dtype=float))),
        "input_tokens": usage and usage.input,
        "output_tokens": usage and usage.output,
        "cache_read_tokens": usage and usage.cache_read,
        "cache_write_tokens": usage and usage.cache_write,
        "reasoning_tokens": usage and usage.reasoning,
        "cost": None if cost is None else finite(cost.amount),
        "currency": cost and cost.currency,
        "reward": finite(step.reward),
        "trainable": step.trainable,
        "policy_version": None if step.policy_version is None else str(step.policy_version),
        "token_source": step.token_source,
        "token_issue": step.token_issue and step.token_issue.code,
        "tool_calls": [] if done is None else [call.name for call in done.tool_calls],
        "text": None if done is None or done.content is None else as_text(done.content),
        "reasoning": done and done.reasoning,
    }


def _tool_runs(run: Trajectory, path: str, line: int) -> Iterator[Row]:
    for one in run.tool_runs:
        yield {**_tool_run(one), "trajectory_id": run.id}


def _tool_run(one: ToolRun) -> Row:
    return {
        "step_id": one.step_id,
        "tool_call_id": one.tool_call_id,
        "name": one.name,
        "arguments": _as_text(one.arguments),
        "result": _as_text(one.result),
        "error_type": one.error and one.error.type,
        "error": _error(one.error),
        "started_at": _time(one.started_at),
        "seconds": one.duration,
    }


def _findings(run: Trajectory, path: str, line: int) -> Iterator[Row]:
    for one in run.check():
        yield {
            "trajectory_id": run.id,
            "step_id": one.step_id,
            "code": one.code,
            "grade": one.grade,
            "message": one.message,
            "position": one.position,
        }


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(timezone.utc).replace(tzinfo=None).isoformat()


def _error(error: ErrorInfo | None) -> str | None:
    return None if error is None else f"{error.type}: {error.message}"


def _as_text(value: Any) -> str | None:
    """A text as it is, another value as JSON."""
    return value if value is None or isinstance(value, str) else dumps(value).decode("utf-8", "replace")


TABLES: dict[str, Table] = {
    "trajectories": Table(_TRAJECTORIES, _trajectory),
    "steps": Table(_STEPS, _steps),
    "tool_runs": Table(_TOOL_RUNS, _tool_runs),
    "findings": Table(_FINDINGS, _findings),
}
