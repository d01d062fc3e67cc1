"""The fields of steps, tool runs and trajectories as a line has them, whatever value they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from rollout_trace import guard
from rollout_trace.data.extras import ExtraIssue
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
from rollout_trace.file.bodies import body_record
from rollout_trace.file.times import milliseconds, time_text

# Converters, one for each kind of field. Where they return None, the field is left out.


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _code(value: Any) -> str | int:
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else str(value)


def _whole(value: Any) -> int | None:
    return int(value)


def _choice(value: int) -> int | None:
    return int(value) or None


def _finite(value: Any, name: str = "a reward, a metric or an advantage") -> int | float | None:
    if isinstance(value, int):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isfinite(number):
        return number
    warn_not_finite(name, value)
    return None


def warn_not_finite(what: str, value: Any) -> None:
    guard.warn_once("not-finite", f"{what} is {value!r}, not a finite number: it is written to the file as null.")


def _finite_each(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: None if value is None else _finite(value) for name, value in values.items()}


def _advantage(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (list, tuple)):
        return [None if one is None else _finite(one) for one in value]
    return _finite(value)


def _untrainable(value: Any) -> bool | None:
    return None if value else False


def _mapping(value: Any) -> dict[Any, Any]:
    return dict(value) if isinstance(value, Mapping) else {"value": value}


def _unchanged(value: Any) -> Any:
    return value


Field = tuple[str, str, "type | None", Callable[[Any], Any]]


def _fields(names: str, usual: type | None, convert: Callable[[Any], Any], suffix: str = "") -> list[Field]:
    """Fields of one kind. A value of exactly the type ``usual`` is written without conversion."""
    return [(name, name + suffix, usual, convert) for name in names.split()]


FieldWriter = Callable[[Any, "dict[str, Any]"], "dict[str, Any]"]


def _field_writer(kind: type, *groups: list[Field]) -> FieldWriter:
    """Returns a function that adds the fields of an object to a record, without those that are None."""
    rows = [row[1:] for group in groups for row in group]
    # One `attrgetter` for all fields is faster than a `getattr` for each.
    values_of = attrgetter(*(row[0] for group in groups for row in group))

    def add(item: Any, record: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(item, kind):
            raise TypeError(
                f"expected {kind.__name__}, got {item!r}. Make one with rollout_trace.{kind.__name__}(...)."
            )
        for value, (key, usual, convert) in zip(values_of(item), rows, strict=True):
            if value is not None:
                if type(value) is not usual:
                    value = convert(value)
                    if value is None:
                        continue
                record[key] = value
        return record

    return add


def _one(add: FieldWriter) -> Callable[[Any], dict[str, Any]]:
    return lambda item: add(item, {})


def _each(add: FieldWriter) -> Callable[[Any], list[Any] | None]:
    return lambda items: [add(item, {}) for item in items] if items else None


_usage = _field_writer(
    Usage, _fields("input output cache_read cache_write reasoning", int, _whole), _fields("extra", dict, _mapping)
)
_cost = _field_writer(Cost, _fields("amount", None, _finite), _fields("currency source", str, _text))
_issue = _field_writer(TokenIssue, _fields("code message", str, _text))
_extra_issue = _field_writer(ExtraIssue, _fields("field code message", str, _text))
error = _field_writer(
    ErrorInfo,
    _fields("type message", str, _text),
    _fields("code", str, _code),
    _fields("status", int, _whole),
)
_attempt = _field_writer(
    Attempt,
    _fields("started_at", None, time_text),
    _fields("duration", None, milliseconds, "_ms"),
    _fields("status", int, _whole),
    _fields("error", None, _one(error)),
    _fields("request_id content_type", str, _text),
)
_tool_call = _field_writer(ToolCall, _fields("id name arguments type", str, _text), _fields("extra", dict, _mapping))
_completion = _field_writer(
    Completion,
    _fields("role", str, _text),
    _fields("content", str, _unchanged),
    _fields("reasoning", str, _text),
    _fields("tool_calls", None, _each(_tool_call)),
    _fields("refusal", str, _text),
    _fields("extra", dict, _mapping),
)
_HEAD = [
    *_fields("id call_id", str, _text),
    *_fields("choice", None, _choice),
    *_fields("agent protocol engine model response_model response_id", str, _text),
]
_TAIL = [
    *_fields("sampling", dict, _mapping),
    *_fields("completion", None, _one(_completion)),
    *_fields("token_source logprobs_mode", str, _text),
    *_fields("token_issue", None, _one(_issue)),
    *_fields("finish_reason", str, _text),
    *_fields("stop_reason", str, _code),
    *_fields("usage", None, _one(_usage)),
    *_fields("cost", None, _one(_cost)),
    *_fields("started_at", None, time_text),
    *_fields("latency time_to_first_token", None, milliseconds, "_ms"),
    *_fields("attempts", None, _each(_attempt)),
    *_fields("status", str, _text),
    *_fields("error", None, _one(error)),
    *_fields("reward", None, _finite),
    *_fields("advantage", None, _advantage),
    *_fields("trainable", None, _untrainable),
    *_fields("policy_version", str, _code),
    *_fields("metadata", dict, _mapping),
    *_fields("request_bytes response_bytes", None, body_record),
    *_fields("extra", dict, _mapping),
    *_fields("extra_issues", None, _each(_extra_issue)),
]
_step_head, _step_tail = _field_writer(Step, _HEAD), _field_writer(Step, _TAIL)
CONVERTERS = {name: convert for name, _, _, convert in (*_HEAD, *_TAIL)}
"""By field of a step, what gives its form in a line; None: it is left out."""
_task = _field_writer(Task, _fields("id", str, _text), _fields("data", None, _unchanged))
tool_run = _field_writer(
    ToolRun,
    _fields("tool_call_id name", str, _text),
    _fields("arguments result", None, _unchanged),
    _fields("error", None, _one(error)),
    _fields("started_at", None, time_text),
    _fields("duration", None, milliseconds, "_ms"),
    _fields("step_id", str, _text),
)
trajectory = _field_writer(
    object,
    _fields("id name episode_id parent_id parent_step_id group_id", str, _text),
    _fields("rollout_index", int, _whole),
    _fields("task", None, _one(_task)),
    _fields("status stop_reason", str, _text),
    _fields("error", None, _one(error)),
    _fields("reward", None, _finite),
    _fields("rewards metrics", None, _finite_each),
    _fields("started_at ended_at", None, time_text),
    _fields("environment metadata", dict, _mapping),
)


def step(item: Step, given: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a step.

    Args:
        item: the step.
        given: its fields that the tables of the line give, without those it lacks.
    """
    return _step_tail(item, {**_step_head(item, {}), **given})
