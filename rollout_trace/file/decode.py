"""Decodes and checks the bytes of a line into a trajectory."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from rollout_trace.data.lists import PackedTexts, TableSpan, from_plain
from rollout_trace.data.model import Attempt, Cost, CostSource, Step, ToolRun, new_attempt, new_step
from rollout_trace.data.tokens import Segment, Span, TokenStore, array_of, as_float32
from rollout_trace.data.trajectory import new_trajectory
from rollout_trace.file.arrays import ArrayTable, BadArray
from rollout_trace.file.bodies import BadBody, body_bytes
from rollout_trace.file.exchanges import BadExchange, read_exchanges
from rollout_trace.file.extras import alternatives, read_extras
from rollout_trace.file.ids import RawTrajectory, ids_of_json
from rollout_trace.file.records import (
    NOTE_SCHEMA,
    SCHEMA,
    AttemptRecord,
    BodyRecord,
    CostRecord,
    Head,
    Rows,
    SegmentRecord,
    StepRecord,
    TokensRecord,
    ToolRunRecord,
    TrajectoryRecord,
)
from rollout_trace.file.times import from_milliseconds

if TYPE_CHECKING:
    from rollout_trace.data.exchange import Exchange
    from rollout_trace.data.tokens import FloatArray, IntArray
    from rollout_trace.data.trajectory import Trajectory

T = TypeVar("T")

_head = msgspec.json.Decoder(Head)
# Bytes that are not UTF-8 raise UnicodeDecodeError; msgspec's own errors are ValueErrors only from 0.20 on.
_NOT_JSON = (msgspec.DecodeError, ValueError)


class BadLine(ValueError):
    """A line does not match the format. The message begins with the path in the record, where there is one.

    Args:
        path: ``$.steps[2].tokens.end``; empty: the line as a whole.
        problem: what was expected, and what was found. Without a path, it may begin with one.
        code: name of the rule that is broken: one of ``validate_rules.RULES``.
    """

    def __init__(self, path: str, problem: str, code: str = "wrong-type") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        if not path and problem.startswith("$"):
            path, _, problem = problem.partition(": ")
        self.path, self.problem, self.code = path, problem, code


def decode(line: bytes) -> Trajectory:
    """The trajectory of a line.

    Raises:
        BadLine: the line is not JSON, or does not match the format.
    """
    return build(parse(line))


class Parsed(NamedTuple):
    """A line that was read, before its trajectory is made: what its records say, and their numbers as arrays."""

    record: TrajectoryRecord
    """Without the numbers that are in the other fields."""
    ids: list[IntArray]
    """The own ids of each segment."""
    logprobs: list[FloatArray | None]
    """Of each step."""
    top_logprobs: list[bytes]
    """JSON, of each step; empty where it has none."""


def parse(line: bytes) -> Parsed:
    """Reads a line.

    Raises:
        BadLine: the line is not JSON, or its values are not of the format's types.
    """
    quick = _quickly(line)
    if quick is not None:
        record, ids = quick
    else:
        # Any error is found here.
        record = _TRAJECTORY.decode(line)
        ids = [array_of(segment.ids, "i") for segment in record.segments]
    tokens = [step.tokens for step in record.steps]
    logprobs = [None if one is None else _logprobs(one.logprobs, at) for at, one in enumerate(tokens)]
    # Copied: a `Raw` is a view that keeps the whole line in memory.
    return Parsed(record, ids, logprobs, [b"" if one is None else bytes(one.top_logprobs) for one in tokens])


def _quickly(line: bytes) -> tuple[TrajectoryRecord, list[IntArray]] | None:
    """The record of a line and the ids of its segments; None of a line that may be damaged."""
    try:
        record = _raw_trajectory.decode(line)
    except _NOT_JSON:
        return None
    ids = [ids_of_json(segment.ids) for segment in record.segments]
    if record.schema != SCHEMA or any(one is None for one in ids):
        return None
    for segment in record.segments:
        # A `Raw` keeps the line.
        segment.ids = _NO_IDS
    return record, ids  # type: ignore[return-value]


_raw_trajectory = msgspec.json.Decoder(RawTrajectory)
_NO_IDS = msgspec.Raw(b"[]")


def build(parsed: Parsed) -> Trajectory:
    """The trajectory of a line that was read.

    Raises:
        BadLine: its values do not fit together.
    """
    record = parsed.record
    messages, tools = _Table(record.messages, "messages"), _Table(record.tools, "tools")
    segments, arrays = _Segments(record.segments, parsed.ids), _array_table(record)
    numbers = zip(parsed.logprobs, parsed.top_logprobs, strict=True)
    steps = [
        _step(step, at, messages, tools, segments, arrays, found)
        for at, (step, found) in enumerate(zip(record.steps, numbers, strict=True))
    ]
    copied = {name: getattr(record, name) for name in _TRAJECTORY_COPIED}
    copied.update(steps=steps, tool_runs=list(map(tool_run_of, record.tool_runs)))
    if record.exchanges:
        copied["exchanges"] = _exchanges(record)
    return new_trajectory(copied)


# Parsing


class LineFormat(Generic[T]):
    """Decodes the lines of one schema into records of one type.

    Args:
        schema: what ``schema`` is in these lines: name, slash, version.
        kind: the type of the record, a ``msgspec.Struct`` with a field ``schema``.
    """

    def __init__(self, schema: str, kind: type[T]) -> None:
        self._schema = schema
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, line: bytes) -> T:
        """The record of a line.

        Raises:
            BadLine: the line is not JSON, or does not match the format.
        """
        record = self._parse(line)
        _check_schema(record.schema, self._schema)  # type: ignore[attr-defined]
        return record

    def _parse(self, line: bytes) -> T:
        try:
            return self._decoder.decode(line)
        except msgspec.ValidationError as error:
            raise _validation_error(error, line, self._schema) from error
        except _NOT_JSON as error:
            if b"\\ud" in line or b"\\uD" in line:
                return self._with_lone_surrogates(line, error)
            raise _not_json_error(error) from error

    def _with_lone_surrogates(self, line: bytes, first: Exception) -> T:
        """Decodes a line whose texts have lone surrogates, which models do produce. msgspec refuses them."""
        try:
            value = json.loads(line, parse_constant=_refuse_constant)
        except ValueError:
            raise _not_json_error(first) from first
        try:
            return msgspec.convert(_with_raw(value), self._kind)
        except msgspec.ValidationError as error:
            raise _validation_error(error, line, self._schema) from error
        except UnicodeEncodeError as error:  # Where a time is expected.
            problem = f"expected times as in RFC 3339, got text with half a surrogate pair: {error}"
            raise BadLine("", problem, "bad-time") from error


_TRAJECTORY = LineFormat(SCHEMA, TrajectoryRecord)


def on_a_fresh_stack(function: Callable[..., T], *args: Any) -> T:
    """Calls the function in a thread of its own: the limit of recursion counts the caller's frames too.

    Whether a line can be read must not depend on them.

    Raises:
        BadLine: the limit was reached there as well.
    """
    outcome: list[tuple[T | None, Exception | None]] = []

    def work() -> None:
        try:
            outcome.append((function(*args), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work, name="rollout_trace reader")
    thread.start()
    thread.join()
    found, error = outcome[0]
    if isinstance(error, RecursionError):
        raise BadLine("", "expected values that can be decoded, got lists or objects nested too deeply", "too-deep")
    if error is not None:
        raise error
    return cast("T", found)


def _with_raw(line: Any) -> Any:
    """A decoded line, with the values as bytes that the records have as bytes: ``convert`` takes no others there."""
    steps = line.get("steps") if isinstance(line, dict) else None
    for step in steps if isinstance(steps, list) else ():
        tokens = step.get("tokens") if isinstance(step, dict) else None
        if isinstance(tokens, dict) and "top_logprobs" in tokens:
            tokens["top_logprobs"] = msgspec.Raw(json.dumps(tokens["top_logprobs"], separators=(",", ":")).encode())
    return line


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _not_json_error(error: Exception) -> BadLine:
    if "truncated" in str(error):
        problem = "expected a whole line of JSON, got one that ends inside a value (its writer was stopped?)"
        return BadLine("", problem, "truncated-line")
    code = "not-utf8" if isinstance(error, UnicodeDecodeError) else "not-json"
    return BadLine("", f"expected a line of JSON, got something else: {error}", code)


def _check_schema(schema: str, expected: str) -> None:
    if schema == expected:
        return
    name, _, version = schema.partition("/")
    if name == expected.partition("/")[0] and version.isdigit():
        raise BadLine(
            "$.schema",
            f"expected {expected!r}, got {schema!r}: the line was written by a newer version. "
            "Upgrade in a newer checkout, with: pip install .",
            "newer-version",
        )
    is_note = name == NOTE_SCHEMA.partition("/")[0]
    notes = ". It is a line of notes: read the file that they belong to, and they are applied" if is_note else ""
    raise BadLine("$.schema", f"expected {expected!r}, got {schema!r}{notes}", "unknown-schema")


_RENAMED = {
    "Invalid RFC3339 encoded datetime": "Expected a time as in RFC 3339",
    "Expected datetime with a timezone component": "Expected a time with a time zone",
}


def _validation_error(error: msgspec.ValidationError, line: bytes, schema: str) -> BadLine:
    """The ``BadLine`` for an error of the decoder; adds the value found, which the decoder often leaves out."""
    try:
        # A line of a newer version may fail anywhere: then its version is the reason, not the field.
        _check_schema(_head.decode(line).schema, schema)
    except BadLine as newer:
        return newer
    except _NOT_JSON:
        pass
    return type_error(error, lambda: json.loads(line))


def type_error(error: msgspec.ValidationError, load: Callable[[], Any], prefix: str = "$") -> BadLine:
    """The ``BadLine`` for an error of the decoder.

    Args:
        error: what msgspec found.
        load: the value that was decoded, as ``json`` loads it.
        prefix: path of that value in its line.
    """
    text, _, path = str(error).replace("`", "").replace(" | null", "").partition(" - at ")
    path = path or "$"
    missing = re.fullmatch(r"Object missing required field (\w+)", text)
    if missing:
        problem = "expected a value, got none: the field is required"
        return BadLine(f"{prefix}{path[1:]}.{missing[1]}", problem, "missing-field")
    code = _code(text, f"{prefix}{path[1:]}")
    text = _RENAMED.get(text, text)
    text = text[:1].lower() + text[1:]
    return BadLine(f"{prefix}{path[1:]}", text if ", got " in text else f"{text}, got {_value_at(load, path)}", code)


def _code(text: str, path: str) -> str:
    """The rule that is broken, by the decoder's words and the place."""
    if text in _RENAMED:
        return "bad-time"
    if text.startswith(("Expected int >=", "Expected int <=")):
        return "token-id" if ".ids[" in path else "number-range"
    return "array-data" if "base64" in text else "wrong-type"


def _value_at(load: Callable[[], Any], path: str) -> str:
    try:
        value = load()
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[name] if name else value[int(index)]
    except (ValueError, LookupError, TypeError):
        return "another value"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


# Tokens, messages, tools


class _Table:
    """The table of messages or of tools of a line."""

    def __init__(self, rows: list[Any], name: str) -> None:
        self._rows = rows
        self._name = name

    def pick(self, rows: Rows, at: int) -> TableSpan:
        runs: list[tuple[int, int]] = []
        for row in rows:
            first, end = (row, row + 1) if isinstance(row, int) else row
            if not 0 <= first < end <= len(self._rows):
                raise BadLine(
                    f"$.steps[{at}].{self._name}",
                    f"expected rows of $.{self._name}, which has {len(self._rows)}, got {json.dumps(row)}",
                    "table-rows",
                )
            # Joined, so that a list of single rows takes no more memory than one run.
            if runs and runs[-1][1] == first:
                runs[-1] = runs[-1][0], end
            else:
                runs.append((first, end))
        return TableSpan(self._rows, tuple(runs))


class _Segments:
    """The segments of a line as a tree in which equal prefixes are stored once, however the line split them."""

    def __init__(self, records: list[SegmentRecord], ids: list[IntArray]) -> None:
        self._store = TokenStore()
        # A segment of the line may be part of a longer one in the tree: its own end is kept.
        self._ends: list[int] = []
        self._by_index: list[Segment] = []
        for at, (record, own) in enumerate(zip(records, ids, strict=True)):
            base, start = self._base(record, at)
            self._by_index.append(self._store.attach(base, start, own))
            self._ends.append(start + len(own))
        self._store.finish()

    def __len__(self) -> int:
        return len(self._by_index)

    def end(self, index: int) -> int:
        """Length of the sequence that ends with a segment of the line, in ids, its bases included."""
        return self._ends[index]

    def ending_segment(self, index: int, stop: int) -> Segment:
        """The segment of the tree in which the first ``stop`` ids of a segment of the line end."""
        return self._by_index[index].ending_segment(stop)

    def _base(self, record: SegmentRecord, at: int) -> tuple[Segment | None, int]:
        if record.base is None:
            return None, 0
        index, start = record.base
        if not 0 <= index < at:
            raise BadLine(f"$.segments[{at}].from", f"expected an earlier segment, got segment {index}", "segment-base")
        if not 0 <= start <= self._ends[index]:
            raise BadLine(
                f"$.segments[{at}].from",
                f"expected a length of at most {self._ends[index]}, which is that of segment {index}, got {start}",
                "segment-base",
            )
        return self._by_index[index], start


def _array_table(record: TrajectoryRecord) -> ArrayTable:
    try:
        return ArrayTable(record.arrays)
    except BadArray as error:
        raise BadLine("", str(error), error.code) from error


_Numbers: TypeAlias = "tuple[FloatArray | None, bytes]"
"""Of one step: its logprobs, and its alternatives as JSON."""


def _add_tokens(
    values: dict[str, Any],
    record: TokensRecord,
    at: int,
    segments: _Segments,
    arrays: ArrayTable,
    numbers: _Numbers,
) -> None:
    """Adds the fields that a step has of its ``tokens``."""
    logprobs, top = numbers
    if logprobs is not None:
        _check_logprobs(len(logprobs), record, at)
        values["logprobs"] = logprobs
    if top:
        try:
            values["top_logprobs"] = alternatives(top)
        except ValueError as error:
            raise BadLine(f"$.steps[{at}].tokens.top_logprobs", str(error), "top-logprobs-type") from error
    if record.prompt is not None or record.end is not None:
        _add_token_ids(values, record, at, segments)
    if record.texts is not None:
        values["token_texts"] = _token_texts(record, at, logprobs)
    if _extras_of(record) != _NO_EXTRAS:
        try:
            values.update(read_extras(record, arrays))
        except BadArray as error:
            raise BadLine("", f"$.steps[{at}].tokens{error}", error.code) from error


_EXTRAS = ("routed_experts", "prompt_logprobs", "prompt_top_tokens", "top_tokens", "sampling_mask", "policy_spans")
_extras_of = attrgetter(*_EXTRAS)
_NO_EXTRAS = (None,) * len(_EXTRAS)


def _add_token_ids(values: dict[str, Any], record: TokensRecord, at: int, segments: _Segments) -> None:
    prompt, end = record.prompt, record.end
    index = _segment(record.segment, at, segments)
    start = prompt or 0
    stop = start if end is None else end
    if not start <= stop <= segments.end(index):
        raise BadLine(
            f"$.steps[{at}].tokens",
            f"expected prompt <= end <= {segments.end(index)}, the length of segment {index}, "
            f"got prompt {json.dumps(prompt)} and end {json.dumps(end)}",
            "step-range",
        )
    segment = segments.ending_segment(index, stop)
    if prompt is not None:
        values["prompt_token_ids"] = Span(segment, 0, prompt)
    if end is not None:
        values["completion_token_ids"] = Span(segment, start, end)


def _logprobs(values: list[float | None] | None, at: int) -> FloatArray | None:
    if values is None:
        return None
    try:
        # It refuses null, and what float32 cannot hold.
        found: FloatArray = array_of(values, "f")  # type: ignore[arg-type]
        return found
    except (struct.error, OverflowError):
        pass
    try:
        return as_float32(values, "logprobs")  # numpy converts None to NaN.
    except ValueError as error:
        raise BadLine("", f"$.steps[{at}].tokens.{error}", "logprob-range") from error


def _check_logprobs(length: int, record: TokensRecord, at: int) -> None:
    expected = length if record.end is None else record.end - (record.prompt or 0)
    if length != expected:
        problem = f"expected {expected} numbers (end - prompt), got {length}"
        raise BadLine(f"$.steps[{at}].tokens.logprobs", problem, "logprobs-length")


def _token_texts(record: TokensRecord, at: int, logprobs: FloatArray | None) -> PackedTexts:
    given = record.texts
    texts = from_plain(given) if isinstance(given, str) else PackedTexts.of(given or ())
    expected = None if logprobs is None else len(logprobs)
    if record.end is not None:
        expected = record.end - (record.prompt or 0)
    if expected is not None and len(texts) != expected:
        problem = f"expected {expected} texts (end - prompt), got {len(texts)}"
        raise BadLine(f"$.steps[{at}].tokens.texts", problem, "texts-length")
    return texts


def _segment(index: int | None, at: int, segments: _Segments) -> int:
    if index is None or index >= len(segments):
        raise BadLine(
            f"$.steps[{at}].tokens.segment",
            f"expected one of the {len(segments)} segments of the line, got {json.dumps(index)}",
            "step-segment",
        )
    return index


# Records


def _body(record: BodyRecord | None, path: str) -> bytes | None:
    if record is None:
        return None
    try:
        return body_bytes(record)
    except BadBody as error:
        raise BadLine(f"{path}.{error.field}", str(error), "body-bytes") from error


def _exchanges(record: TrajectoryRecord) -> Callable[[], tuple[Exchange, ...]]:
    try:
        return read_exchanges(record.exchanges)
    except BadExchange as error:
        raise BadLine("", str(error), error.code) from error


def _cost(record: CostRecord | None) -> Cost | None:
    if record is None or record.amount is None:
        return None
    # Any text is accepted: a later version may have more sources.
    return Cost(amount=record.amount, currency=record.currency, source=cast("CostSource", record.source))


def _attempt(record: AttemptRecord) -> Attempt:
    return new_attempt(
        started_at=record.started_at,
        duration=from_milliseconds(record.duration_ms),
        status=record.status,
        error=record.error,
        request_id=record.request_id,
        content_type=record.content_type,
    )


def tool_run_of(record: ToolRunRecord) -> ToolRun:
    """The tool run of a record."""
    copied = {name: getattr(record, name) for name in _TOOL_RUN_COPIED}
    return ToolRun(**copied, duration=from_milliseconds(record.duration_ms))


def step_without_tables(record: StepRecord) -> Step:
    """The step of a record that names no messages, tools or tokens."""
    return _step(record, 0, None, None, None, None, None)  # type: ignore[arg-type]  # Tables that it does not ask.


def _step(
    record: StepRecord,
    at: int,
    messages: _Table,
    tools: _Table,
    segments: _Segments,
    arrays: ArrayTable,
    numbers: _Numbers,
) -> Step:
    # One `attrgetter` for all fields takes a third of the time of a `getattr` for each.
    values = dict(zip(_STEP_COPIED, _copied_of(record), strict=True))
    if record.tokens is not None:
        _add_tokens(values, record.tokens, at, segments, arrays, numbers)
    if record.messages is not None:
        values["messages"] = messages.pick(record.messages, at)
    if record.tools is not None:
        values["tools"] = tools.pick(record.tools, at)
    values["call_id"] = record.id if record.call_id is None else record.call_id
    values["index"] = at if record.index is None else record.index
    if record.cost is not None:
        values["cost"] = _cost(record.cost)
    if record.attempts:
        values["attempts"] = tuple(map(_attempt, record.attempts))
    if record.extra_issues:
        values["extra_issues"] = tuple(record.extra_issues)
    if record.latency_ms is not None:
        values["latency"] = from_milliseconds(record.latency_ms)
    if record.time_to_first_token_ms is not None:
        values["time_to_first_token"] = from_milliseconds(record.time_to_first_token_ms)
    if record.request_bytes is not None:
        values["request_bytes"] = _body(record.request_bytes, f"$.steps[{at}].request_bytes")
    if record.response_bytes is not None:
        values["response_bytes"] = _body(record.response_bytes, f"$.steps[{at}].response_bytes")
    return new_step(values)


def _copied_fields(record: type[msgspec.Struct], *others: str) -> tuple[str, ...]:
    """The names of a record's fields that are copied without conversion."""
    return tuple(name for name in record.__struct_fields__ if name not in others)


_TOOL_RUN_COPIED = _copied_fields(ToolRunRecord, "duration_ms")
_STEP_COPIED = _copied_fields(
    StepRecord,
    *("call_id", "index", "messages", "tools", "tokens", "cost", "attempts", "extra_issues"),
    *("latency_ms", "time_to_first_token_ms", "request_bytes", "response_bytes"),
)
_copied_of = attrgetter(*_STEP_COPIED)
_TRAJECTORY_COPIED = _copied_fields(
    TrajectoryRecord, "schema", "media", "messages", "tools", "segments", "steps", "tool_runs", "exchanges", "arrays"
)
