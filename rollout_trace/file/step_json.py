"""The JSON of a line's steps, where their fields hold what they are declared to hold: a fast form of ``fields.step``.

msgspec reads a step and all that it holds in one pass, which checks the types and leaves out what is missing. That
takes a quarter of the time of field by field. Anything unusual is left to ``fields``; the bytes are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import orjson
from msgspec import Raw, Struct, field

from rollout_trace.data.model import Attempt, Completion, Step, ToolCall, Usage
from rollout_trace.file import fields
from rollout_trace.file.plain import OPTIONS
from rollout_trace.file.times import milliseconds

if TYPE_CHECKING:
    from rollout_trace.file.records import Rows

Given: TypeAlias = "tuple[int | None, Rows | None, Rows | None, dict[str, Any]]"
"""What the tables of a line give of a step: ``index`` (None: its place), ``messages``, ``tools`` and ``tokens``."""

_UNUSUAL = (msgspec.MsgspecError, TypeError, ValueError, AttributeError, OverflowError)
_LONGEST = 1e12
"""Seconds. Of larger numbers msgspec and orjson write the exponent differently."""
_FLAT, _SHORT = 200, 400
"""Brackets, and bytes with as many pairs of them, that cannot be nested as deep as orjson refuses."""


class _Part(Struct, omit_defaults=True, gc=False):
    """A part of a step. What is None, or has its usual value, is left out."""


class _Usage(_Part):
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    extra: Any = None


class _ToolCall(_Part):
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    type: str | None = None
    extra: Any = None


class _Completion(_Part):
    role: str | None = None
    content: Any = None
    reasoning: str | None = None
    tool_calls: tuple[_ToolCall, ...] = ()
    refusal: str | None = None
    extra: Any = None


class _Attempt(_Part):
    started_at: Any = None
    duration: float | None = field(default=None, name="duration_ms")
    status: int | None = None
    error: Any = None
    request_id: str | None = None
    content_type: str | None = None


class _Step(_Part):
    id: str | None = None
    call_id: str | None = None
    choice: int = 0
    agent: str | None = None
    protocol: str | None = None
    engine: str | None = None
    model: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    index: int | None = None
    # Of these the stored forms are read, and replaced by what the line has.
    _stored_messages: Any = field(default=None, name="messages")
    _stored_tools: Any = field(default=None, name="tools")
    _stored_logprobs: Any = field(default=None, name="tokens")
    sampling: Any = None
    completion: _Completion | None = None
    token_source: str | None = None
    logprobs_mode: str | None = None
    token_issue: Any = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: _Usage | None = None
    cost: Any = None
    started_at: Any = None
    latency: float | None = field(default=None, name="latency_ms")
    time_to_first_token: float | None = field(default=None, name="time_to_first_token_ms")
    attempts: tuple[_Attempt, ...] = ()
    status: str | None = None
    error: Any = None
    reward: Any = None
    advantage: Any = None
    trainable: bool = True
    policy_version: str | int | None = None
    metadata: Any = None
    request_bytes: Any = None
    response_bytes: Any = None
    extra: Any = None
    extra_issues: tuple[Any, ...] = ()


# msgspec looks at a type when it first reads it, and 0.22 takes the process down where two threads are first: here it
# looks while the module is imported.
msgspec.json.Decoder(_Step)
_encoder = msgspec.json.Encoder()


class _Unusual(ValueError):
    """A step is left to the general form."""


def steps_json(steps: Sequence[Step], given: Sequence[Given]) -> bytes | None:
    """The JSON of the steps; None where one of them is unusual.

    Args:
        steps: of a line.
        given: for each, what the tables of the line have of it.
    """
    try:
        return _encoder.encode(list(map(_step, steps, given)))
    except _UNUSUAL:
        return None


def _step(step: Step, given: Given) -> _Step:
    line = msgspec.convert(step, _Step, from_attributes=True)
    line.index, line._stored_messages, line._stored_tools, tokens = given
    line._stored_logprobs = Raw(orjson.dumps(tokens, option=OPTIONS)) if tokens else None
    if line.sampling is not None:
        line.sampling = _object(line.sampling, 3)
    if line.completion is not None:
        _finish_completion(step.completion, line.completion)
    if line.usage is not None:
        if type(step.usage) is not Usage:
            raise _Unusual
        if line.usage.extra is not None:
            line.usage.extra = _object(line.usage.extra, 4)
    if line.started_at is not None:
        _check_time(line.started_at)
    if line.latency is not None:
        line.latency = _milliseconds(line.latency)
    if line.time_to_first_token is not None:
        line.time_to_first_token = _milliseconds(line.time_to_first_token)
    if line.attempts:
        _finish_attempts(step.attempts, line.attempts)
    if line.extra is not None:
        line.extra = _object(line.extra, 3)
    # One condition: most steps have none of them.
    if not (
        line.token_issue is None
        and line.cost is None
        and line.error is None
        and line.reward is None
        and line.advantage is None
        and line.metadata is None
        and line.request_bytes is None
        and line.response_bytes is None
        and not line.extra_issues
    ):
        _finish_others(line)
    return line


def _finish_completion(completion: Completion | None, line: _Completion) -> None:
    if type(completion) is not Completion:
        raise _Unusual
    if line.content is not None and type(line.content) is not str:
        line.content = _raw(line.content, 4)
    if line.extra is not None:
        line.extra = _object(line.extra, 4)
    for call, found in zip(completion.tool_calls, line.tool_calls, strict=True) if line.tool_calls else ():
        if type(call) is not ToolCall:
            raise _Unusual
        if found.extra is not None:
            found.extra = _object(found.extra, 6)


def _finish_attempts(attempts: Sequence[Attempt], lines: Sequence[_Attempt]) -> None:
    for attempt, line in zip(attempts, lines, strict=True):
        if type(attempt) is not Attempt:
            raise _Unusual
        if line.started_at is not None:
            _check_time(line.started_at)
        if line.duration is not None:
            line.duration = _milliseconds(line.duration)
        if line.error is not None:
            line.error = _raw(fields.error(line.error, {}), 5)


def _finish_others(line: _Step) -> None:
    for name, convert in _OTHERS.items():
        value = getattr(line, name)
        if value is not None:
            value = convert(value)
            setattr(line, name, None if value is None else _raw(value, 3))
    issues: Any = fields.CONVERTERS["extra_issues"](line.extra_issues)
    if issues is not None:
        line.extra_issues = (*map(_raw, issues, repeat(4)),)


_OTHERS = {
    name: fields.CONVERTERS[name]
    for name in ("token_issue", "cost", "error", "reward", "advantage", "metadata", "request_bytes", "response_bytes")
}


def _check_time(value: Any) -> None:
    """Refuses times that msgspec writes in another form than the file has."""
    if type(value) is not datetime or value.tzinfo is not timezone.utc or not value.microsecond:
        raise _Unusual


def _milliseconds(seconds: float) -> float:
    if not -_LONGEST < seconds < _LONGEST:
        raise _Unusual
    return milliseconds(seconds)


def _object(value: Any, level: int) -> Raw:
    if type(value) is not dict:
        raise _Unusual
    return _raw(value, level)


def _raw(value: Any, level: int) -> Raw:
    """The JSON of a value that stands at a level of the line: so many objects and lists around it.

    Raises:
        TypeError: JSON cannot hold it, or it is nested too deeply for its level.
    """
    data = orjson.dumps(value, option=OPTIONS)
    if len(data) > _SHORT and data.count(b"[") + data.count(b"{") > _FLAT:
        # The limit of orjson is one for the whole line.
        for _ in range(level):
            value = [value]
        data = orjson.dumps(value, option=OPTIONS)[level:-level]
    return Raw(data)
