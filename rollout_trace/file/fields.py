"""Writes steps, tool runs and trajectories as JSON, without what the tables of a line hold.

msgspec reads a record and checks its types in one pass. A field of another type, and one that is written in another
form than it has, is converted in its place: no value prevents the rest from being written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

import msgspec
import orjson
from msgspec import Raw, Struct, field

from rollout_trace import guard
from rollout_trace.data import model
from rollout_trace.data.extras import ExtraIssue
from rollout_trace.file.plain import OPTIONS, body_record, dumps, milliseconds, time_text
from rollout_trace.file.records import FACTS, SCHEMA

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.records import Rows

Given: TypeAlias = "tuple[int | None, Rows | None, Rows | None, dict[str, Any]]"
"""What the tables of a line give of a step: ``index`` (None: its place), ``messages``, ``tools`` and ``tokens``."""

_UNUSUAL = (msgspec.MsgspecError, TypeError, ValueError, AttributeError, OverflowError)
_LONGEST = 1e15
"""Milliseconds. Of larger numbers msgspec and orjson write the exponent differently."""
_FLAT, _SHORT = 200, 400
"""Brackets, and bytes with as many pairs of them, that cannot be nested as deep as orjson refuses."""
_LEVEL = 3
"""Level of a step's and a tool run's fields in a line: so many objects and lists are around a value."""


def warn_not_finite(what: str, value: Any) -> None:
    """Warns once that a number is written as null."""
    guard.warn_once("not-finite", f"{what} is {value!r}, not a finite number: it is written to the file as null.")


# Conversions of the fields whose type says their form: used where a value is of another type. None: left out.


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _code(value: Any) -> str | int:
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else str(value)


def _choice(value: Any) -> int | None:
    return int(value) or None


def _untrainable(value: Any) -> bool | None:
    return None if value else False


# Conversions of all other fields, by value and level: used for every value. None: left out.


def _raw(value: Any, level: int) -> Raw:
    try:
        data = orjson.dumps(value, option=OPTIONS)
        is_deep = len(data) > _SHORT and data.count(b"[") + data.count(b"{") > _FLAT
    except TypeError:
        is_deep = True
    if is_deep:
        # The limit of orjson is one for the whole line.
        for _ in range(level):
            value = [value]
        data = dumps(value)[level : -level or None]
    return Raw(data)


def _content(value: Any, level: int) -> Any:
    return value if type(value) is str else _raw(value, level)


def _mapping(value: Any, level: int) -> Raw:
    if type(value) is not dict:
        value = dict(value) if isinstance(value, Mapping) else {"value": value}
    return _raw(value, level)


def _time(value: Any, level: int) -> Any:
    # The usual time, which msgspec writes in the form of the file.
    if type(value) is datetime and value.tzinfo is timezone.utc and value.microsecond:
        return value
    return _raw(time_text(value), level)


def _milliseconds(value: Any, level: int) -> Any:
    found = milliseconds(value)
    return found if type(value) is float and -_LONGEST < found < _LONGEST else _raw(found, level)


def _finite(value: Any) -> int | float | None:
    if isinstance(value, int):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isfinite(number):
        return number
    warn_not_finite("a reward, a metric or an advantage", value)
    return None


def _number(value: Any, level: int) -> Raw | None:
    found = _finite(value)
    return None if found is None else _raw(found, level)


def _numbers(values: Mapping[Any, Any], level: int) -> Raw:
    return _raw({name: None if value is None else _finite(value) for name, value in values.items()}, level)


def _advantage(value: Any, level: int) -> Raw | None:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (list, tuple)):
        return _raw([None if one is None else _finite(one) for one in value], level)
    return _number(value, level)


def _body(value: bytes, level: int) -> Raw:
    return _raw(body_record(value), level)


class _Part(Struct, omit_defaults=True, gc=False):
    """A part of a line. What is None, or has its usual value, is left out."""


class _Writer:
    """Makes the parts of one kind.

    Args:
        part: each field is annotated with its conversion: of what has another type; where the type is ``Any``, of every
            value; or the writer of the parts that it holds.
        kind: what a part is made of.
    """

    def __init__(self, part: type[_Part], kind: type) -> None:
        self._part, self._kind = part, kind
        fields = [(one.name, *get_args(one.type)) for one in msgspec.structs.fields(part)]
        self._inner = [(name, convert) for name, _, convert in fields if isinstance(convert, _Writer)]
        self._others = [(name, convert) for name, of, convert in fields if of is Any and convert is not None]
        known = {name for name, _ in (*self._inner, *self._others)}
        self._typed = [(name, convert) for name, of, convert in fields if of is not Any and name not in known]
        self._finish = self._compiled()
        # msgspec looks at a type when it first reads it, and 0.22 takes the process down where two threads are first:
        # here it looks while the module is imported.
        msgspec.json.Decoder(part)

    def _compiled(self) -> Callable[[Any, Any, int], None]:
        """Compiles what puts the form of the line in the place of each value of a part, as ``dataclasses`` would do it.

        A loop over the fields, of which most are None, takes as long as all else that is done for a step.
        """
        names: dict[str, Any] = {"Raw": Raw, "kind": self._kind, "refuse": self._refuse}
        lines = ["def finish(part, item, level):", " if not isinstance(item, kind): refuse(item)"]
        for name, convert in self._others:
            names[f"to_{name}"] = convert
            lines.append(f" if part.{name} is not None: part.{name} = to_{name}(part.{name}, level)")
        for name, writer in self._inner:
            names[f"to_{name}"] = writer._finish
            if getattr(self._part(), name) is None:
                is_made, place = (
                    f"part.{name} is not None and type(part.{name}) is not Raw",
                    f"part.{name}, item.{name}",
                )
                lines.append(f" if {is_made}: to_{name}({place}, level + 1)")
            else:
                lines.append(f" if part.{name} and type(part.{name}) is tuple:")
                lines.append(f"  for one, each in zip(part.{name}, item.{name}): to_{name}(one, each, level + 2)")
        exec("\n".join(lines), names)
        finish: Callable[[Any, Any, int], None] = names["finish"]
        return finish

    def _refuse(self, item: Any) -> None:
        name = self._kind.__name__
        raise TypeError(f"expected {name}, got {item!r}. Make one with rollout_trace.{name}(...).")

    def __call__(self, item: Any, level: int) -> Any:
        """Makes the part of an item whose fields have a level.

        Raises:
            TypeError: the item, or what it holds in the place of a record, is of another kind.
        """
        try:
            # With all parts inside it at once.
            part = msgspec.convert(item, self._part, from_attributes=True)
        except _UNUSUAL:
            part = self._converted(item, level)
        self._finish(part, item, level)
        return part

    def _converted(self, item: Any, level: int) -> _Part:
        """Makes a part field by field; the parts inside it are finished."""
        if not isinstance(item, self._kind):
            self._refuse(item)
        part = self._part()
        for name, _ in self._others:
            setattr(part, name, getattr(item, name))
        for name, convert in self._typed:
            value = getattr(item, name)
            value = None if value is None else convert(value)
            if value is not None:
                setattr(part, name, Raw(dumps(value)))
        for name, writer in self._inner:
            value = getattr(item, name)
            if getattr(part, name) is not None:
                if value:
                    setattr(part, name, [writer(one, level + 2) for one in value])
            elif value is not None:
                setattr(part, name, Raw(_encode(writer(value, level + 1))))
        return part


_Text: TypeAlias = Annotated[str | None, _text]
_Code: TypeAlias = Annotated[str | int | None, _code]
_Whole: TypeAlias = Annotated[int | None, int]
_Time: TypeAlias = Annotated[Any, _time]
_Milliseconds: TypeAlias = Annotated[Any, _milliseconds]
_Mapping: TypeAlias = Annotated[Any, _mapping]
_Given: TypeAlias = Annotated[Any, None]
"""Set by who writes the part."""


class _Usage(_Part):
    input: _Whole = None
    output: _Whole = None
    cache_read: _Whole = None
    cache_write: _Whole = None
    reasoning: _Whole = None
    extra: _Mapping = None


class _Cost(_Part):
    amount: Annotated[Any, _number] = None
    currency: _Text = None
    source: _Text = None


class _Issue(_Part):
    code: _Text = None
    message: _Text = None


class _ExtraIssue(_Part):
    field: _Text = None
    code: _Text = None
    message: _Text = None


class _Error(_Part):
    type: _Text = None
    message: _Text = None
    code: _Code = None
    status: _Whole = None


_usage = _Writer(_Usage, model.Usage)
_cost = _Writer(_Cost, model.Cost)
_issue = _Writer(_Issue, model.TokenIssue)
_extra_issue = _Writer(_ExtraIssue, ExtraIssue)
_error = _Writer(_Error, model.ErrorInfo)


class _Attempt(_Part):
    started_at: _Time = None
    duration: _Milliseconds = field(default=None, name="duration_ms")
    status: _Whole = None
    error: Annotated[_Error | None, _error] = None
    request_id: _Text = None
    content_type: _Text = None


class _ToolCall(_Part):
    id: _Text = None
    name: _Text = None
    arguments: _Text = None
    type: _Text = None
    extra: _Mapping = None


_attempt = _Writer(_Attempt, model.Attempt)
_tool_call = _Writer(_ToolCall, model.ToolCall)


class _Completion(_Part):
    role: _Text = None
    content: Annotated[Any, _content] = None
    reasoning: _Text = None
    tool_calls: Annotated[tuple[_ToolCall, ...], _tool_call] = ()
    refusal: _Text = None
    extra: _Mapping = None


_completion = _Writer(_Completion, model.Completion)


class _Step(_Part):
    id: _Text = None
    call_id: _Text = None
    choice: Annotated[int, _choice] = 0
    agent: _Text = None
    protocol: _Text = None
    engine: _Text = None
    model: _Text = None
    response_model: _Text = None
    response_id: _Text = None
    index: _Given = None
    # The stored forms are read, which makes no lists, and replaced by what the line has.
    _stored_messages: _Given = field(default=None, name="messages")
    _stored_tools: _Given = field(default=None, name="tools")
    _stored_logprobs: _Given = field(default=None, name="tokens")
    sampling: _Mapping = None
    completion: Annotated[_Completion | None, _completion] = None
    token_source: _Text = None
    logprobs_mode: _Text = None
    token_issue: Annotated[_Issue | None, _issue] = None
    finish_reason: _Text = None
    stop_reason: _Code = None
    usage: Annotated[_Usage | None, _usage] = None
    cost: Annotated[_Cost | None, _cost] = None
    started_at: _Time = None
    latency: _Milliseconds = field(default=None, name="latency_ms")
    time_to_first_token: _Milliseconds = field(default=None, name="time_to_first_token_ms")
    attempts: Annotated[tuple[_Attempt, ...], _attempt] = ()
    status: _Text = None
    error: Annotated[_Error | None, _error] = None
    reward: Annotated[Any, _number] = None
    advantage: Annotated[Any, _advantage] = None
    trainable: Annotated[bool, _untrainable] = True
    policy_version: _Code = None
    metadata: _Mapping = None
    request_bytes: Annotated[Any, _body] = None
    response_bytes: Annotated[Any, _body] = None
    extra: _Mapping = None
    extra_issues: Annotated[tuple[_ExtraIssue, ...], _extra_issue] = ()


class _Task(_Part):
    id: _Text = None
    data: Annotated[Any, _raw] = None


class _ToolRun(_Part):
    tool_call_id: _Text = None
    name: _Text = None
    arguments: Annotated[Any, _raw] = None
    result: Annotated[Any, _raw] = None
    error: Annotated[_Error | None, _error] = None
    started_at: _Time = None
    duration: _Milliseconds = field(default=None, name="duration_ms")
    step_id: _Text = None


_task = _Writer(_Task, model.Task)


class _Trajectory(_Part):
    id: _Text = None
    name: _Text = None
    episode_id: _Text = None
    parent_id: _Text = None
    parent_step_id: _Text = None
    group_id: _Text = None
    rollout_index: _Whole = None
    task: Annotated[_Task | None, _task] = None
    status: _Text = None
    stop_reason: _Text = None
    error: Annotated[_Error | None, _error] = None
    reward: Annotated[Any, _number] = None
    rewards: Annotated[Any, _numbers] = None
    metrics: Annotated[Any, _numbers] = None
    started_at: _Time = None
    ended_at: _Time = None
    environment: _Mapping = None
    metadata: _Mapping = None


_step = _Writer(_Step, model.Step)
_tool_run = _Writer(_ToolRun, model.ToolRun)
_trajectory = _Writer(_Trajectory, object)
_encoder = msgspec.json.Encoder()


def steps_json(steps: Iterable[model.Step], given: Iterable[Given]) -> bytes:
    """The JSON of a line's steps. ``given``: what the tables of the line have of each.

    Raises:
        TypeError: one is none, or holds something else in the place of a record.
    """
    return _encode(list(map(_step_part, steps, given)))


def step_json(step: model.Step, given: Given = (None, None, None, {})) -> bytes:
    """The JSON of a step. Raises as ``steps_json``."""
    return _encode(_step_part(step, given))


def _step_part(step: model.Step, given: Given) -> _Step:
    part: _Step = _step(step, _LEVEL)
    index, part._stored_messages, part._stored_tools, tokens = given
    part.index = index if index is None or type(index) is int else _raw(index, _LEVEL)
    part._stored_logprobs = Raw(dumps(tokens)) if tokens else None
    return part


def facts_record(step: model.Step) -> dict[str, Any]:
    """What a step has beside messages, answer and tokens, as a line has it: for formats with a free place for it."""
    record = json.loads(step_json(step))
    return {name: record[name] for name in FACTS if name in record}


def tool_run_json(run: model.ToolRun) -> bytes:
    """The JSON of a tool run. Raises as ``steps_json``."""
    return _encode(_tool_run(run, _LEVEL))


def run_record(run: model.ToolRun) -> dict[str, Any]:
    """A tool run as a line has it; without its result where that is a text, which formats have themselves."""
    record = json.loads(tool_run_json(run))
    return {name: value for name, value in record.items() if name != "result" or not isinstance(value, str)}


def trajectory_json(trajectory: Trajectory) -> bytes:
    """The JSON of a trajectory without its steps and tool runs. Raises as ``steps_json``."""
    fields = _encode(_trajectory(trajectory, 1))[1:]
    return b'{"schema":"%s"%s%s' % (SCHEMA.encode(), b"" if fields == b"}" else b",", fields)


def _encode(part: _Part | list[_Step]) -> bytes:
    try:
        return _encoder.encode(part)
    except (TypeError, ValueError, OverflowError):
        # A class made of `str`, half a surrogate pair, or a number of more than 64 bits.
        return _encoder.encode(_escaped(part))


def _escaped(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_escaped, value))
    if isinstance(value, _Part):
        for name in value.__struct_fields__:
            setattr(value, name, _escaped(getattr(value, name)))
    is_long = type(value) is int and not -(2**63) <= value < 2**64
    return Raw(dumps(value)) if is_long or isinstance(value, str) else value
