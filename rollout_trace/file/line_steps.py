"""The steps of a line: what may be refused is looked at with the line, all else is made when they are looked at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from msgspec import Struct

from rollout_trace.data.lists import PackedTexts, TableSpan, from_plain
from rollout_trace.data.model import Attempt, Cost, CostSource, Step, maker, new_attempt
from rollout_trace.data.tokens import Segment, Span, TokenStore
from rollout_trace.file.arrays import ArrayTable
from rollout_trace.file.extras import alternatives, read_extras, read_trainer
from rollout_trace.file.line_format import BadLine, body_bytes
from rollout_trace.file.plain import from_milliseconds
from rollout_trace.file.records import AttemptRecord, Rows, SegmentRecord, StepRecord, TokensRecord, TrajectoryRecord

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray, IntArray
    from rollout_trace.file.line_ids import LineIds


class Parsed(NamedTuple):
    """A line that was read, before its trajectory is made: what its records say, and their numbers."""

    record: TrajectoryRecord
    """Without what is in the other fields."""
    ids: LineIds
    """The own ids of each segment."""
    logprobs: list[FloatArray | None]
    """Of each step."""
    top_logprobs: list[bytes]
    """JSON, of each step; empty where it has none."""


class Steps:
    """Makes the steps of a line. Raises BadLine when it is made itself: values of the line do not fit together."""

    __slots__ = ("_ids", "_logprobs", "_read", "_segments", "_steps")

    def __init__(self, parsed: Parsed) -> None:
        record = parsed.record
        tables = _Tables(
            _Table(record.messages, "messages"),
            _Table(record.tools, "tools"),
            _ends(record.segments, parsed.ids.counts),
            ArrayTable(record.arrays) if record.arrays else _NO_ARRAYS,
        )
        parts = enumerate(zip(record.steps, parsed.logprobs, parsed.top_logprobs, strict=True))
        self._read = [_read(step, at, tables, logprobs, top) for at, (step, logprobs, top) in parts]
        self._steps, self._logprobs = record.steps, parsed.logprobs
        self._segments, self._ids = record.segments, parsed.ids

    def __call__(self) -> list[Step]:
        """The steps; new ones each time."""
        segments = _tree(self._segments, self._ids.arrays())
        parts = enumerate(zip(self._steps, self._read, self._logprobs, strict=True))
        return [step_of(record, at, read, segments, logprobs) for at, (record, read, logprobs) in parts]


_Read: TypeAlias = "tuple[TableSpan | None, TableSpan | None, dict[str, Any]]"
"""What is read of a step with its line: messages, tools, and by name its other fields that may be refused."""
_NOTHING: dict[str, Any] = {}
NOT_READ: _Read = (None, None, _NOTHING)


class _Tables(NamedTuple):
    """What the steps of a line refer to."""

    messages: _Table
    tools: _Table
    ends: list[int]
    """Of each segment, the length of the sequence that ends with it, in ids, its bases included."""
    arrays: ArrayTable


class _Table:
    """The table of messages or of tools of a line."""

    __slots__ = ("_latest", "_name", "_rows")

    def __init__(self, rows: list[Any], name: str) -> None:
        self._rows = rows
        self._name = name
        self._latest: tuple[Rows, TableSpan] | None = None

    def pick(self, rows: Rows, at: int) -> TableSpan:
        # Most steps have the tools of the step before.
        if self._latest is not None and self._latest[0] == rows:
            return self._latest[1]
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
        self._latest = rows, TableSpan(self._rows, tuple(runs))
        return self._latest[1]


def _ends(records: Sequence[SegmentRecord], counts: Sequence[int]) -> list[int]:
    ends: list[int] = []
    for at, (record, count) in enumerate(zip(records, counts, strict=True)):
        index, start = (0, 0) if record.base is None else record.base
        if record.base is not None and not 0 <= index < at:
            raise BadLine(f"$.segments[{at}].from", f"expected an earlier segment, got segment {index}", "segment-base")
        if record.base is not None and not 0 <= start <= ends[index]:
            raise BadLine(
                f"$.segments[{at}].from",
                f"expected a length of at most {ends[index]}, which is that of segment {index}, got {start}",
                "segment-base",
            )
        ends.append(start + count)
    return ends


def _read(record: StepRecord, at: int, tables: _Tables, logprobs: FloatArray | None, top_logprobs: bytes) -> _Read:
    """Reads what may be refused. What only has to have a length, or to be within another, is checked."""
    tokens = record.tokens
    others = _NOTHING if tokens is None else _read_tokens(tokens, at, tables, logprobs, top_logprobs)
    messages = None if record.messages is None else tables.messages.pick(record.messages, at)
    tools = None if record.tools is None else tables.tools.pick(record.tools, at)
    if record.trainer is not None:
        try:
            trainer = read_trainer(record.trainer, None if tokens is None else tokens.sampled)
            others = {**others, "trainer": trainer}
        except BadLine as error:
            raise BadLine("", f"$.steps[{at}].trainer{error}", error.code) from error
    for name, body in (("request_bytes", record.request_bytes), ("response_bytes", record.response_bytes)):
        if body is not None:
            others = {**others, name: body_bytes(body, f"$.steps[{at}].{name}")}
    return messages, tools, others


def _read_tokens(
    record: TokensRecord, at: int, tables: _Tables, logprobs: FloatArray | None, top_logprobs: bytes
) -> dict[str, Any]:
    found, prompt, end, texts = _NOTHING, record.prompt, record.end, record.texts
    sampled = None if end is None else end - (prompt or 0)
    if logprobs is not None:
        _check_length(len(logprobs), sampled, at, "logprobs", "numbers")
        sampled = len(logprobs)
    if top_logprobs:
        try:
            found = {"top_logprobs": alternatives(top_logprobs)}
        except ValueError as error:
            raise BadLine(f"$.steps[{at}].tokens.top_logprobs", str(error), "top-logprobs-type") from error
    if prompt is not None or end is not None:
        _check_ids(record, at, tables.ends)
    if texts is not None:
        count = texts.count(_BETWEEN) + 1 if isinstance(texts, str) else len(texts)
        _check_length(count, sampled, at, "texts", "texts")
    if _extras_of(record) != _NO_EXTRAS:
        try:
            found = {**found, **read_extras(record, tables.arrays)}
        except BadLine as error:
            raise BadLine("", f"$.steps[{at}].tokens{error}", error.code) from error
    return found


_EXTRAS = ("routed_experts", "prompt_logprobs", "prompt_top_tokens", "top_tokens", "sampling_mask", "policy_spans")
_extras_of = attrgetter(*_EXTRAS)
_NO_EXTRAS = (None,) * len(_EXTRAS)
_NO_ARRAYS = ArrayTable(())
_BETWEEN = "\x7f"


def _check_ids(record: TokensRecord, at: int, ends: Sequence[int]) -> None:
    prompt, end, index = record.prompt, record.end, record.segment
    if index is None or index >= len(ends):
        raise BadLine(
            f"$.steps[{at}].tokens.segment",
            f"expected one of the {len(ends)} segments of the line, got {json.dumps(index)}",
            "step-segment",
        )
    start = prompt or 0
    stop = start if end is None else end
    if not start <= stop <= ends[index]:
        raise BadLine(
            f"$.steps[{at}].tokens",
            f"expected prompt <= end <= {ends[index]}, the length of segment {index}, "
            f"got prompt {json.dumps(prompt)} and end {json.dumps(end)}",
            "step-range",
        )


def _check_length(length: int, expected: int | None, at: int, name: str, what: str) -> None:
    if expected is not None and length != expected:
        problem = f"expected {expected} {what} (end - prompt), got {length}"
        raise BadLine(f"$.steps[{at}].tokens.{name}", problem, f"{name}-length")


# When they are looked at


def _tree(records: Sequence[SegmentRecord], ids: Sequence[IntArray]) -> list[Segment]:
    """The segments of a line, in a tree in which equal prefixes are stored once, however the line split them.

    A segment of the line may be part of a longer one in the tree.
    """
    store, found = TokenStore(), list[Segment]()
    for record, own in zip(records, ids, strict=True):
        base, start = (None, 0) if record.base is None else (found[record.base[0]], record.base[1])
        found.append(store.attach(base, start, own))
    store.finish()
    return found


def step_of(record: StepRecord, at: int, read: _Read, segments: Sequence[Segment], logprobs: FloatArray | None) -> Step:
    """The step of a record. ``read``: what was read of it with the line."""
    messages, tools, others = read
    tokens = record.tokens
    prompt_ids = completion_ids = texts = None
    if tokens is not None:
        prompt, end = tokens.prompt, tokens.end
        if prompt is not None or end is not None:
            start = prompt or 0
            segment = segments[cast("int", tokens.segment)].ending_segment(start if end is None else end)
            if prompt is not None:
                prompt_ids = Span(segment, 0, prompt)
            if end is not None:
                completion_ids = Span(segment, start, end)
        if tokens.texts is not None:
            texts = from_plain(tokens.texts) if isinstance(tokens.texts, str) else PackedTexts.of(tokens.texts)
    cost = record.cost
    if cost is not None and cost.amount is not None:
        # Any text is accepted: a later version may have more sources.
        made = Cost(amount=cost.amount, currency=cost.currency, source=cast("CostSource", cost.source))
        others = {**others, "cost": made}
    return _new_step(
        record.id,
        record.id if record.call_id is None else record.call_id,
        at if record.index is None else record.index,
        messages,
        tools,
        prompt_ids,
        completion_ids,
        texts,
        logprobs,
        tuple(map(_attempt, record.attempts)),
        tuple(record.extra_issues),
        from_milliseconds(record.latency_ms),
        from_milliseconds(record.time_to_first_token_ms),
        *_copied_of(record),
        **others,
    )


def _attempt(record: AttemptRecord) -> Attempt:
    return new_attempt(
        started_at=record.started_at,
        duration=from_milliseconds(record.duration_ms),
        status=record.status,
        error=record.error,
        request_id=record.request_id,
        content_type=record.content_type,
    )


def copied_fields(record: type[Struct], *others: str) -> tuple[str, ...]:
    """The names of a record's fields that are copied without conversion."""
    return tuple(name for name in record.__struct_fields__ if name not in others)


_COPIED = copied_fields(
    StepRecord,
    *("id", "call_id", "index", "messages", "tools", "tokens", "cost", "attempts", "extra_issues"),
    *("latency_ms", "time_to_first_token_ms", "request_bytes", "response_bytes", "trainer"),
)
# One `attrgetter` for all fields takes a third of the time of a `getattr` for each, and no names are looked up.
_copied_of = attrgetter(*_COPIED)
_new_step = maker(
    Step,
    *("id", "call_id", "index", "messages", "tools", "prompt_token_ids", "completion_token_ids", "token_texts"),
    *("logprobs", "attempts", "extra_issues", "latency", "time_to_first_token"),
    *_COPIED,
    _sealed=True,
)
