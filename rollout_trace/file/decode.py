"""Decodes and checks the bytes of a line into a trajectory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from rollout_trace.data.model import Step, ToolRun
from rollout_trace.data.tokens import array_of, as_float32
from rollout_trace.data.trajectory import new_trajectory
from rollout_trace.file.exchanges import read_exchanges
from rollout_trace.file.line_format import NOT_JSON, BadLine, LineFormat
from rollout_trace.file.line_ids import LineIds, ids_of
from rollout_trace.file.line_steps import NOT_READ, Parsed, Steps, copied_fields, step_of
from rollout_trace.file.media import name_of_folder, restore
from rollout_trace.file.plain import from_milliseconds
from rollout_trace.file.records import (
    FACTS,
    LINE_START,
    SCHEMA,
    Record,
    StepRecord,
    ToolRunRecord,
    TrajectoryRecord,
)

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray
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


def parse(line: bytes) -> Parsed:
    """Reads a line. Raises BadLine: the line is not JSON, or its values are not of the format's types."""
    record, ids = _quickly(line) or _thoroughly(line)
    logprobs: list[FloatArray | None] = []
    top_logprobs: list[bytes] = []
    for at, step in enumerate(record.steps):
        tokens = step.tokens
        logprobs.append(None if tokens is None else _logprobs(tokens.logprobs, at))
        # Copied: a `Raw` is a view that keeps the whole line in memory.
        top_logprobs.append(b"" if tokens is None else bytes(tokens.top_logprobs))
        if tokens is not None:
            tokens.top_logprobs = _NOTHING
            if tokens.logprobs is not None:
                tokens.logprobs = []
    return Parsed(record, ids, logprobs, top_logprobs)


def _thoroughly(line: bytes) -> tuple[TrajectoryRecord, LineIds]:
    """The record of a line and the ids of its segments; any error is found here."""
    record = _TRAJECTORY.decode(line)
    found = [segment.ids for segment in record.segments]
    return record, LineIds([len(ids) for ids in found], [array_of(ids, "i") for ids in found])


def _quickly(line: bytes) -> tuple[TrajectoryRecord, LineIds] | None:
    """The same, without an object for each id; None of a line that may be damaged."""
    try:
        record = _raw_trajectory.decode(line)
    except NOT_JSON:
        return None
    ids = ids_of([segment.ids for segment in record.segments])
    if ids is None or record.schema != SCHEMA:
        return None
    for segment in record.segments:
        # A `Raw` keeps the line.
        segment.ids = _NO_IDS
    return record, ids


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
    """The trajectory of a line that was read; its steps are made when they are looked at.

    Raises BadLine: its values do not fit together.
    """
    return trajectory_of(parsed.record, Steps(parsed))


def trajectory_of(record: TrajectoryRecord, steps: Callable[[], list[Step]]) -> Trajectory:
    """The trajectory of a record; ``steps`` makes its steps. Raises as ``build``."""
    copied = dict(zip(_TRAJECTORY_COPIED, _copied_of(record), strict=True))
    copied["steps"] = steps
    copied["tool_runs"] = list(map(tool_run_of, record.tool_runs))
    if record.exchanges:
        copied["exchanges"] = read_exchanges(record.exchanges)
    return new_trajectory(copied)


class RawSegment(Record):
    """A ``SegmentRecord`` whose ids are not decoded."""

    ids: msgspec.Raw
    base: tuple[int, int] | None = msgspec.field(default=None, name="from")


class RawTrajectory(TrajectoryRecord):
    """A ``TrajectoryRecord`` whose ids are not decoded."""

    segments: list[RawSegment] = msgspec.field(default_factory=list)  # type: ignore[assignment]


_TRAJECTORY = LineFormat(SCHEMA, TrajectoryRecord)
_raw_trajectory = msgspec.json.Decoder(RawTrajectory)
_NO_IDS = msgspec.Raw(b"[]")
_NOTHING = msgspec.Raw()
_WITH_MEDIA = LINE_START + b'"media":'
"""How a line with references begins as it is written. Other programs may write the field elsewhere."""


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


def tool_run_of(record: ToolRunRecord) -> ToolRun:
    """The tool run of a record."""
    copied = {name: getattr(record, name) for name in _TOOL_RUN_COPIED}
    return ToolRun(**copied, duration=from_milliseconds(record.duration_ms))


def facts_of(value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a step, by name, that ``fields.facts_record`` wrote. Raises ValueError where they are none."""
    known = {name: item for name, item in value.items() if name in FACTS}
    # It names nothing of the tables.
    step = step_of(msgspec.convert({**known, "id": ""}, StepRecord), 0, NOT_READ, (), None)
    return {FACTS[name]: getattr(step, FACTS[name]) for name in known}


def run_of(value: dict[str, Any], result: Any) -> ToolRun:
    """The tool run that ``fields.run_record`` wrote, with this result where it was a text. Raises as ``facts_of``."""
    return tool_run_of(msgspec.convert({"result": result, **value}, ToolRunRecord))


_TOOL_RUN_COPIED = copied_fields(ToolRunRecord, "duration_ms")
_TRAJECTORY_COPIED = copied_fields(
    TrajectoryRecord, "schema", "media", "messages", "tools", "segments", "steps", "tool_runs", "exchanges", "arrays"
)
_copied_of = attrgetter(*_TRAJECTORY_COPIED)
