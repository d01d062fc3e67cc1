"""Encodes a trajectory as the bytes of its line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace import credentials, guard
from rollout_trace._pace import give_way, in_slices
from rollout_trace.data.extras import ExtraIssue, JSONText
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
    shared,
)
from rollout_trace.data.trajectory import new_trajectory
from rollout_trace.file.arrays import ROWS, DistinctRows, encoded, fragment
from rollout_trace.file.bodies import body_record
from rollout_trace.file.distinct import DistinctTokens, DistinctValues
from rollout_trace.file.exchanges import encode_exchanges
from rollout_trace.file.extras import extras_of, json_line
from rollout_trace.file.plain import dumps
from rollout_trace.file.records import SCHEMA
from rollout_trace.file.times import milliseconds, time_text

if TYPE_CHECKING:
    from rollout_trace.data.rows import AnyArray
    from rollout_trace.data.token_texts import PackedTexts
    from rollout_trace.data.trajectory import Trajectory

# Bits, without the sign, of the one float32 whose shortest decimal text, read as a double and then rounded to float32,
# gives its neighbour. Written as a double it is restored exactly.
_MISROUNDED_BITS = 0x15AE43FD


def encode(trajectory: Trajectory) -> bytes:
    """The line of a trajectory, its newline included. Keys of this process's clients are cut out of it.

    Raises:
        ValueError: the trajectory is open, a step has more or fewer logprobs than completion ids, or the pieces of an
            exchange do not make its response.
    """
    if trajectory.is_open:
        raise ValueError(
            f"trajectory {trajectory.name!r} ({trajectory.id}) is still open and cannot be written. "
            "Write it after its `with rt.trajectory(...)` block has ended."
        )
    give_way()
    record, rows = _line(trajectory)
    give_way()
    line = dumps(record, orjson.OPT_APPEND_NEWLINE)
    give_way()
    if credentials.found_in(line):
        # Rare: steps are cut when they are decoded. By fields first, so that no ids stay of a text that changes.
        from rollout_trace.data.redact import redacted

        record, rows = _line(redacted(trajectory, credentials.change))
        line = credentials.cut_bytes(dumps(record, orjson.OPT_APPEND_NEWLINE))
    # Put in behind the search for keys too, which it does by exchange: a size of a body that was cut has to fit.
    exchanges = encode_exchanges(trajectory.exchanges) if trajectory.exchanges else b"[]"
    if exchanges != b"[]":
        line = b'%s,"exchanges":%s}\n' % (line[:-2], exchanges)
    return line if rows.is_empty else _with_arrays(line, rows)


def _with_arrays(line: bytes, rows: DistinctRows) -> bytes:
    """The line with the table of arrays as its last field.

    Put in as bytes, behind the search for keys: of hundreds of MB one copy less, and no key is found in numbers.
    """
    parts: list[bytes] = []
    for array in (array for name in ROWS for array in rows.table(name)):
        head = dumps({"dtype": array.dtype.name, "shape": array.shape})[:-1]
        parts += (b"," if parts else b',"arrays":[', head, b',"data":"', encoded(array), b'"}')
    return b"".join((line[:-2], *parts, b"]}\n"))


def _line(trajectory: Trajectory) -> tuple[dict[str, Any], DistinctRows]:
    """The record of a trajectory, and the arrays that it refers to."""
    messages = DistinctValues([shared(step, "messages") for step in trajectory.steps])
    tools = DistinctValues([shared(step, "tools") for step in trajectory.steps])
    tokens, rows = DistinctTokens(), DistinctRows(trajectory.steps)
    steps = [_step(step, at, messages, tools, tokens, rows) for at, step in in_slices(enumerate(trajectory.steps))]
    give_way()
    _prepare_logprobs(steps)
    line = _trajectory(trajectory, {"schema": SCHEMA})
    line["messages"], line["tools"], line["segments"] = messages.rows, tools.rows, tokens.table()
    line["steps"], line["tool_runs"] = steps, [_tool_run(run, {}) for run in trajectory.tool_runs]
    return line, rows


def trajectory_record(trajectory: Trajectory) -> dict[str, Any]:
    """The fields of a trajectory as its line has them, without steps and tool runs."""
    return _trajectory(trajectory, {"schema": SCHEMA})


def tool_run_record(run: ToolRun) -> dict[str, Any]:
    """A tool run as its line has it."""
    return _tool_run(run, {})


PARTS = ("messages", "tools", "segments", "steps")
"""The parts of a line that ``in_parts`` returns; of steps with arrays, one for each field of ``ROWS`` is added."""


def in_parts(steps: list[Step]) -> list[bytes]:
    """The tables and the steps of a line, each as JSON: the beginning of each repeats that of the steps before.

    Together the added parts are the table of arrays. Each grows at one place: a field for itself, its shape at the end.
    """
    line, rows = _line(new_trajectory({"id": "", "steps": steps}))
    parts = [dumps(line[name]) for name in PARTS]
    if not rows.is_empty:
        parts += [dumps([_shape_last(array) for array in rows.table(name)]) for name in ROWS]
    return parts


def from_parts(parts: list[bytes]) -> bytes:
    """The line, without an id, of what ``in_parts`` returned.

    Raises:
        ValueError: another number of parts.
    """
    if len(parts) not in (len(PARTS), len(PARTS) + len(ROWS)):
        raise ValueError(f"expected {len(PARTS)} or {len(PARTS) + len(ROWS)} parts, got {len(parts)}")
    fields = [b'"%s":%s' % (name.encode(), text) for name, text in zip(PARTS, parts, strict=False)]
    arrays = b",".join(text[1:-1] for text in parts[len(PARTS) :] if text != b"[]")
    return b'{"schema":"%s","id":"",%s,"arrays":[%s]}' % (SCHEMA.encode(), b",".join(fields), arrays)


def _shape_last(array: AnyArray) -> dict[str, Any]:
    record = fragment(array)
    return {name: record[name] for name in ("dtype", "data", "shape")}


def _step(
    step: Step,
    at: int,
    messages: DistinctValues,
    tools: DistinctValues,
    tokens: DistinctTokens,
    rows: DistinctRows,
) -> dict[str, Any]:
    record = _step_head(step, {})
    if step.index != at:
        record["index"] = step.index
    messages_span, tools_span = shared(step, "messages"), shared(step, "tools")
    if messages_span is not None:
        record["messages"] = messages.add(messages_span)
    if tools_span is not None:
        record["tools"] = tools.add(tools_span)
    token_record = _tokens(step, tokens)
    token_record.update(extras_of(step, at, rows))
    if token_record:
        record["tokens"] = token_record
    return _step_tail(step, record)


def _tokens(step: Step, tokens: DistinctTokens) -> dict[str, Any]:
    record = tokens.add(step)
    logprobs, top_logprobs = shared(step, "logprobs"), shared(step, "top_logprobs")
    if logprobs is not None:
        end = record.get("end")
        if end is not None and len(logprobs) != end - record.get("prompt", 0):
            raise ValueError(
                f"step {step.id} has {end - record.get('prompt', 0)} completion ids and {len(logprobs)} logprobs: one "
                "of them is wrong. Give one logprob for each id, or set what cannot be trusted to None."
            )
        record["logprobs"] = logprobs
    if top_logprobs is not None:
        is_text = isinstance(top_logprobs, JSONText)
        record["top_logprobs"] = orjson.Fragment(json_line(top_logprobs)) if is_text else top_logprobs
    texts = shared(step, "token_texts")
    if texts is not None:
        _check_texts(step, texts, record, logprobs)
        plain = texts.plain()
        record["texts"] = texts.get() if plain is None else plain
    return record


def _check_texts(step: Step, texts: PackedTexts, record: dict[str, Any], logprobs: Any) -> None:
    end = record.get("end")
    sampled = end - record.get("prompt", 0) if end is not None else None if logprobs is None else len(logprobs)
    if sampled is not None and len(texts) != sampled:
        raise ValueError(
            f"step {step.id} has {sampled} completion tokens and {len(texts)} token_texts. Give one text for each, or "
            "set what cannot be trusted to None: dataclasses.replace(step, token_texts=None)."
        )


def _prepare_logprobs(steps: list[dict[str, Any]]) -> None:
    """Warns of logprobs that are not finite, and makes doubles of those that float32 text would not restore.

    All logprobs of a line are checked in one array, which is faster than a check for each step.
    """
    with_logprobs = [step for step in steps if "logprobs" in step.get("tokens", ())]
    if not with_logprobs:
        return
    records = [step["tokens"] for step in with_logprobs]
    import numpy as np

    values = np.concatenate([tokens["logprobs"] for tokens in records])
    total = float(np.add.reduce(values, dtype=np.float64))
    if not math.isfinite(total) and not all(
        _has_missing_logprobs(step) or np.isfinite(step["tokens"]["logprobs"]).all() for step in with_logprobs
    ):
        _warn_not_finite("a logprob", total)
    if bool(((values.view(np.int32) & 0x7FFFFFFF) == _MISROUNDED_BITS).any()):
        for tokens in records:
            tokens["logprobs"] = tokens["logprobs"].astype(np.float64)


def _has_missing_logprobs(record: dict[str, Any]) -> bool:
    """Whether the step's issue is missing logprobs, which are NaN in memory and null in files: no warning is needed."""
    issue = record.get("token_issue")
    return issue is not None and issue["code"] == "logprobs_incomplete"


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
    _warn_not_finite(name, value)
    return None


def _warn_not_finite(what: str, value: Any) -> None:
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
_error = _field_writer(
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
    _fields("error", None, _one(_error)),
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
_step_head = _field_writer(
    Step,
    _fields("id call_id", str, _text),
    _fields("choice", None, _choice),
    _fields("agent protocol engine model response_model response_id", str, _text),
)
_step_tail = _field_writer(
    Step,
    _fields("sampling", dict, _mapping),
    _fields("completion", None, _one(_completion)),
    _fields("token_source logprobs_mode", str, _text),
    _fields("token_issue", None, _one(_issue)),
    _fields("finish_reason", str, _text),
    _fields("stop_reason", str, _code),
    _fields("usage", None, _one(_usage)),
    _fields("cost", None, _one(_cost)),
    _fields("started_at", None, time_text),
    _fields("latency time_to_first_token", None, milliseconds, "_ms"),
    _fields("attempts", None, _each(_attempt)),
    _fields("status", str, _text),
    _fields("error", None, _one(_error)),
    _fields("reward", None, _finite),
    _fields("advantage", None, _advantage),
    _fields("trainable", None, _untrainable),
    _fields("policy_version", str, _code),
    _fields("metadata", dict, _mapping),
    _fields("request_bytes response_bytes", None, body_record),
    _fields("extra", dict, _mapping),
    _fields("extra_issues", None, _each(_extra_issue)),
)
_task = _field_writer(Task, _fields("id", str, _text), _fields("data", None, _unchanged))
_tool_run = _field_writer(
    ToolRun,
    _fields("tool_call_id name", str, _text),
    _fields("arguments result", None, _unchanged),
    _fields("error", None, _one(_error)),
    _fields("started_at", None, time_text),
    _fields("duration", None, milliseconds, "_ms"),
    _fields("step_id", str, _text),
)
_trajectory = _field_writer(
    object,
    _fields("id name episode_id parent_id parent_step_id group_id", str, _text),
    _fields("rollout_index", int, _whole),
    _fields("task", None, _one(_task)),
    _fields("status stop_reason", str, _text),
    _fields("error", None, _one(_error)),
    _fields("reward", None, _finite),
    _fields("rewards metrics", None, _finite_each),
    _fields("started_at ended_at", None, time_text),
    _fields("environment metadata", dict, _mapping),
)
