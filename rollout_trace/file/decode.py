"""Decodes and checks the bytes of a line into a trajectory."""

from __future__ import annotations

import json
import struct
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import msgspec

from rollout_trace.data.lists import PackedTexts, TableSpan, from_plain
from rollout_trace.data.model import Attempt, Cost, CostSource, Step, ToolRun, new_attempt, new_step
from rollout_trace.data.tokens import Segment, Span, TokenStore, array_of, as_float32, ids_in
from rollout_trace.data.trajectory import new_trajectory
from rollout_trace.file.arrays import ArrayTable
from rollout_trace.file.exchanges import read_exchanges
from rollout_trace.file.extras import alternatives, read_extras
from rollout_trace.file.line_format import NOT_JSON, BadLine, LineFormat, body_bytes
from rollout_trace.file.media import name_of_folder, restore
from rollout_trace.file.plain import from_milliseconds
from rollout_trace.file.records import (
    FACTS,
    LINE_START,
    SCHEMA,
    AttemptRecord,
    Record,
    Rows,
    SegmentRecord,
    StepRecord,
    TokenId,
    TokensRecord,
    ToolRunRecord,
    TrajectoryRecord,
)

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray, IntArray
    from rollout_trace.data.trajectory import Trajectory


def decode(line: bytes) -> Trajectory:
    """The trajectory of a line. Raises BadLine: the line is not JSON, or does not match the format."""
    return build(parse(line))


def is_whole(line: bytes) -> bool:
    """Tells whether a line holds a trajectory."""
    try:
        decode(line)
    except (BadLine, RecursionError):
        return False
    return True


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
    """Reads a line. Raises BadLine: the line is not JSON, or its values are not of the format's types."""
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
    except NOT_JSON:
        return None
    ids = [ids_of_json(segment.ids) for segment in record.segments]
    if record.schema != SCHEMA or any(one is None for one in ids):
        return None
    for segment in record.segments:
        # A `Raw` keeps the line.
        segment.ids = _NO_IDS
    return record, ids  # type: ignore[return-value]


def parse_restored(line: bytes, path: str) -> Parsed:
    """Reads a line of the file at ``path``, with references replaced by their media.

    Raises BadLine as ``parse``; ``MissingMedia`` where a file is missing or has other bytes than its name.
    """
    # Read before it is searched for references: most lines have none, and the search is a pass over all of it.
    if not line.startswith(_WITH_MEDIA):
        try:
            parsed = parse(line)
            if parsed.record.media is None:
                return parsed
        except BadLine:
            # It may be a reference that is not of the type which its data has.
            pass
    return parse(restore(line, name_of_folder(path)))


def build(parsed: Parsed) -> Trajectory:
    """The trajectory of a line that was read. Raises BadLine: its values do not fit together."""
    record = parsed.record
    tables = _Tables(
        _Table(record.messages, "messages"),
        _Table(record.tools, "tools"),
        _Segments(record.segments, parsed.ids),
        ArrayTable(record.arrays) if record.arrays else _NO_ARRAYS,
    )
    numbers = zip(parsed.logprobs, parsed.top_logprobs, strict=True)
    steps = [_step(step, at, tables, one) for at, (step, one) in enumerate(zip(record.steps, numbers, strict=True))]
    copied = {name: getattr(record, name) for name in _TRAJECTORY_COPIED}
    copied.update(steps=steps, tool_runs=list(map(tool_run_of, record.tool_runs)))
    if record.exchanges:
        copied["exchanges"] = read_exchanges(record.exchanges)
    return new_trajectory(copied)


# Token ids, read to arrays without an object for each


_SHORT = 1000
"""Bytes of JSON up to which a list is faster than numpy's reading of text."""
_short_list = msgspec.json.Decoder(list[TokenId])


class RawSegment(Record):
    """A ``SegmentRecord`` whose ids are not decoded."""

    ids: msgspec.Raw
    base: tuple[int, int] | None = msgspec.field(default=None, name="from")


class RawTrajectory(TrajectoryRecord):
    """A ``TrajectoryRecord`` whose ids are not decoded."""

    segments: list[RawSegment] = msgspec.field(default_factory=list)  # type: ignore[assignment]


def ids_of_json(raw: msgspec.Raw) -> IntArray | None:
    """The ids of a JSON value that msgspec has checked: int32, read-only. None where they are no list of ids.

    None too for lists that are better read otherwise, with numbers such as ``1e3``.
    """
    text = bytes(raw)
    if len(text) < _SHORT:
        try:
            ids: IntArray = array_of(_short_list.decode(text), "i")
        except msgspec.DecodeError:
            return None
        return ids
    return ids_in(text[1:-1]) if text[:1] == b"[" else None


_TRAJECTORY = LineFormat(SCHEMA, TrajectoryRecord)
_raw_trajectory = msgspec.json.Decoder(RawTrajectory)
_NO_IDS = msgspec.Raw(b"[]")
_WITH_MEDIA = LINE_START + b'"media":'
"""How a line with references begins as it is written. Other programs may write the field elsewhere."""


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


_Numbers: TypeAlias = "tuple[FloatArray | None, bytes]"
"""Of one step: its logprobs, and its alternatives as JSON."""


def _add_tokens(values: dict[str, Any], record: TokensRecord, at: int, tables: _Tables, numbers: _Numbers) -> None:
    """Adds the fields that a step has of its ``tokens``."""
    logprobs, top = numbers
    sampled = None if record.end is None else record.end - (record.prompt or 0)
    if logprobs is not None:
        _check_length(len(logprobs), sampled, f"$.steps[{at}].tokens.logprobs", "numbers")
        values["logprobs"] = logprobs
    if top:
        try:
            values["top_logprobs"] = alternatives(top)
        except ValueError as error:
            raise BadLine(f"$.steps[{at}].tokens.top_logprobs", str(error), "top-logprobs-type") from error
    if record.prompt is not None or record.end is not None:
        _add_token_ids(values, record, at, tables.segments)
    if record.texts is not None:
        texts = from_plain(record.texts) if isinstance(record.texts, str) else PackedTexts.of(record.texts)
        if sampled is None and logprobs is not None:
            sampled = len(logprobs)
        _check_length(len(texts), sampled, f"$.steps[{at}].tokens.texts", "texts")
        values["token_texts"] = texts
    if _extras_of(record) != _NO_EXTRAS:
        try:
            values.update(read_extras(record, tables.arrays))
        except BadLine as error:
            raise BadLine("", f"$.steps[{at}].tokens{error}", error.code) from error


_EXTRAS = ("routed_experts", "prompt_logprobs", "prompt_top_tokens", "top_tokens", "sampling_mask", "policy_spans")
_extras_of = attrgetter(*_EXTRAS)
_NO_EXTRAS = (None,) * len(_EXTRAS)
_NO_ARRAYS = ArrayTable(())


def _add_token_ids(values: dict[str, Any], record: TokensRecord, at: int, segments: _Segments) -> None:
    prompt, end = record.prompt, record.end
    index = record.segment
    if index is None or index >= len(segments):
        raise BadLine(
            f"$.steps[{at}].tokens.segment",
            f"expected one of the {len(segments)} segments of the line, got {json.dumps(index)}",
            "step-segment",
        )
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


def _check_length(length: int, expected: int | None, place: str, what: str) -> None:
    if expected is not None and length != expected:
        name = place.rpartition(".")[2]
        raise BadLine(place, f"expected {expected} {what} (end - prompt), got {length}", f"{name}-length")


# Records


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


def facts_of(value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a step, by name, that ``fields.facts_record`` wrote. Raises ValueError where they are none."""
    known = {name: item for name, item in value.items() if name in FACTS}
    # It names nothing of the tables.
    step = _step(msgspec.convert({**known, "id": ""}, StepRecord), 0, None, (None, b""))  # type: ignore[arg-type]
    return {FACTS[name]: getattr(step, FACTS[name]) for name in known}


def run_of(value: dict[str, Any], result: Any) -> ToolRun:
    """The tool run that ``fields.run_record`` wrote, with this result where it was a text. Raises as ``facts_of``."""
    return tool_run_of(msgspec.convert({"result": result, **value}, ToolRunRecord))


class _Tables(NamedTuple):
    """What the steps of a line refer to."""

    messages: _Table
    tools: _Table
    segments: _Segments
    arrays: ArrayTable


def _step(record: StepRecord, at: int, tables: _Tables, numbers: _Numbers) -> Step:
    # One `attrgetter` for all fields takes a third of the time of a `getattr` for each.
    values = dict(zip(_STEP_COPIED, _copied_of(record), strict=True))
    if record.tokens is not None:
        _add_tokens(values, record.tokens, at, tables, numbers)
    if record.messages is not None:
        values["messages"] = tables.messages.pick(record.messages, at)
    if record.tools is not None:
        values["tools"] = tables.tools.pick(record.tools, at)
    values["call_id"] = record.id if record.call_id is None else record.call_id
    values["index"] = at if record.index is None else record.index
    cost = record.cost
    if cost is not None and cost.amount is not None:
        # Any text is accepted: a later version may have more sources.
        values["cost"] = Cost(amount=cost.amount, currency=cost.currency, source=cast("CostSource", cost.source))
    if record.attempts:
        values["attempts"] = tuple(map(_attempt, record.attempts))
    if record.extra_issues:
        values["extra_issues"] = tuple(record.extra_issues)
    if record.latency_ms is not None:
        values["latency"] = from_milliseconds(record.latency_ms)
    if record.time_to_first_token_ms is not None:
        values["time_to_first_token"] = from_milliseconds(record.time_to_first_token_ms)
    if record.request_bytes is not None:
        values["request_bytes"] = body_bytes(record.request_bytes, f"$.steps[{at}].request_bytes")
    if record.response_bytes is not None:
        values["response_bytes"] = body_bytes(record.response_bytes, f"$.steps[{at}].response_bytes")
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
