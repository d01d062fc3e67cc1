"""Writes steps, tool runs and trajectories as JSON, without what the tables of a line hold.

msgspec reads a record and checks its types in one pass. A field of another type, and one that is written in another
form than it has, is converted in its place: no value prevents the rest from being written.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import orjson
from msgspec import Raw, Struct, field

from rollout_trace import guard
from rollout_trace.data import model
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.extras import ExtraIssue
from rollout_trace.data.trainer_tokens import TrainerTokens
from rollout_trace.data.trajectory import ForkedFrom, Trajectory
from rollout_trace.file.extras import trainer_json
from rollout_trace.file.plain import OPTIONS, body_record, dumps, milliseconds, time_text
from rollout_trace.file.records import FACTS, SCHEMA

if TYPE_CHECKING:
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


def _trainer(value: Any, level: int) -> Raw | None:
    found = trainer_json(value) if isinstance(value, TrainerTokens) else value
    return Raw(dumps(found)) if found else None


def _body(value: bytes, level: int) -> Raw:
    return _raw(body_record(value), level)


_FORMS: dict[str, Any] = {}
"""By the type of a field, as its class has it, without None."""


class _Part(Struct, omit_defaults=True, gc=False):
    """A part of a line. What is None, or has its usual value, is left out."""


class _Form(NamedTuple):
    """The form of a field in a line."""

    of: Any
    """The type of values that msgspec writes as they are."""
    convert: Any
    """What converts others: with ``of`` Any, all but None. Or the writer of the parts inside; None: it is given."""
    usual: Any = None
    name: str = "{}"
    """In the line."""


class _Writer:
    """Makes the parts of one kind.

    Args:
        kind: what a part is made of.
        names: of its fields, in their order in a line; None: all of the class, in its order.
        forms: of the fields whose type does not say it.
    """

    def __init__(self, kind: type, names: str | None = None, **forms: _Form) -> None:
        self._kind = kind
        types = {one.name: str(one.type).removesuffix(" | None") for one in dataclasses.fields(kind)}
        found = {name: forms.get(name) or _FORMS[types[name]] for name in (names.split() if names else types)}
        self._inner = [(name, form.convert) for name, form in found.items() if isinstance(form.convert, _Writer)]
        self._others = [(name, form.convert) for name, form in found.items() if form.of is Any and form.convert]
        done = dict([*self._inner, *self._others])
        self._typed = [(name, form.convert) for name, form in found.items() if form.convert and name not in done]
        fields = [(name, one.of, field(default=one.usual, name=one.name.format(name))) for name, one in found.items()]
        part: Any = msgspec.defstruct(kind.__name__, fields, bases=(_Part,), omit_defaults=True, gc=False)
        # msgspec looks at a type when it first reads it, and 0.22 takes the process down where two threads are first:
        # here it looks while the module is imported.
        msgspec.json.Decoder(part)
        self._part = part
        self._finish = self._compiled()
        _FORMS[kind.__name__] = _Form(part | None, self)
        _FORMS[f"tuple[{kind.__name__}, ...]"] = _Form(tuple[part, ...], self, ())

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
                lines.append(f" if part.{name} is not None and type(part.{name}) is not Raw:")
                lines.append(f"  to_{name}(part.{name}, item.{name}, level + 1)")
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

    def _converted(self, item: Any, level: int) -> Any:
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


_TEXT, _WHOLE = _Form(str | None, _text), _Form(int | None, int)
_TIME, _NUMBER, _MAPPING, _RAW = _Form(Any, _time), _Form(Any, _number), _Form(Any, _mapping), _Form(Any, _raw)
_MILLISECONDS = _Form(Any, _milliseconds, name="{}_ms")
_FORMS.update(
    {
        **dict.fromkeys(("str", "StepStatus", "TokenSource", "LogprobsMode", "CostSource", "Reason"), _TEXT),
        **dict.fromkeys(("Mapping[str, Any]", "dict[str, Any]"), _MAPPING),
        **dict.fromkeys(("Any", "object"), _RAW),
        "int": _WHOLE,
        "str | int": _Form(str | int | None, _code),
        "str | Sequence[Any]": _Form(Any, _content),
        "datetime": _TIME,
        "dict[str, float]": _Form(Any, _numbers),
        "float | Sequence[float]": _Form(Any, _advantage),
        "TrainerTokens": _Form(Any, _trainer),
        "bytes": _Form(Any, _body),
        "bool": _Form(bool, _untrainable, True),
    }
)
for _kind in (model.Usage, model.TokenIssue, ExtraIssue, model.ErrorInfo, model.ToolCall, model.Completion, model.Task):
    _Writer(_kind)
_Writer(ForkedFrom, step=_Form(int, int, -1))
_Writer(ExactTurn, n_requests=_Form(int, _choice, 0), seconds=_NUMBER)
_Writer(model.Cost, amount=_NUMBER)
_Writer(model.Attempt, duration=_MILLISECONDS)
_tool_run = _Writer(model.ToolRun, duration=_MILLISECONDS)
_step = _Writer(
    model.Step,
    "id call_id choice agent protocol engine model response_model response_id index _stored_messages _stored_tools "
    "_stored_logprobs sampling completion token_source logprobs_mode token_issue finish_reason stop_reason usage cost "
    "started_at latency time_to_first_token attempts status error reward advantage trainable policy_version metadata "
    "request_bytes response_bytes extra extra_issues exact_turn trainer",
    choice=_Form(int, _choice, 0),
    index=_Form(Any, None),
    # The stored forms are read, which makes no lists, and replaced by what the line has.
    _stored_messages=_Form(Any, None, name="messages"),
    _stored_tools=_Form(Any, None, name="tools"),
    _stored_logprobs=_Form(Any, None, name="tokens"),
    latency=_MILLISECONDS,
    time_to_first_token=_MILLISECONDS,
    reward=_NUMBER,
)
_trajectory = _Writer(
    Trajectory,
    "id name episode_id parent_id parent_step_id group_id rollout_index task status stop_reason error reward rewards "
    "metrics started_at ended_at environment metadata forked_from",
    reward=_NUMBER,
)
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


def _step_part(step: model.Step, given: Given) -> Any:
    part = _step(step, _LEVEL)
    index, part._stored_messages, part._stored_tools, tokens = given
    part.index = index if index is None or type(index) is int else _raw(index, _LEVEL)
    part._stored_logprobs = Raw(dumps(tokens)) if tokens else None
    return part


def facts_record(step: model.Step) -> dict[str, Any]:
    """Returns what a step has besides messages, answer and tokens, as in a line, for formats with room for it."""
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


def _encode(part: Any) -> bytes:
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
