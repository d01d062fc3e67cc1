"""Lines that were read, as bytes for another process: token ids and logprobs as arrays, the rest as MessagePack.

Only between processes of one machine and one version of the library: it is no format of files.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from rollout_trace.file.decode import Parsed
from rollout_trace.file.records import TrajectoryRecord

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray, IntArray


class PackedLine(msgspec.Struct, array_like=True, gc=False):
    """One line."""

    number: int
    """From 1, in its part of the file."""
    record: TrajectoryRecord
    ids: list[bytes]
    """int32, of each segment."""
    logprobs: list[bytes | None]
    """float32, of each step."""
    top_logprobs: list[bytes]


class Batch(msgspec.Struct, array_like=True, gc=False):
    """What one message has: lines that follow each other."""

    lines: list[PackedLine]
    newlines: int = 0
    """In what was read of the part so far."""
    is_end: bool = False
    """The part ends here."""
    has_problem: bool = False
    """What follows is to be read where the trajectories are wanted: a line is damaged, or cannot be packed."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def packed_line(number: int, parsed: Parsed) -> PackedLine | None:
    """A line as it is sent; None where its values would not arrive as they are."""
    record = parsed.record
    if not all(map(_is_kept, _times(record))):
        return None
    for segment in record.segments:
        segment.ids = []
    for step in record.steps:
        if step.tokens is not None:
            step.tokens.logprobs = None
            # Bytes of JSON: as part of a message they would be taken for MessagePack.
            step.tokens.top_logprobs = msgspec.Raw(b"\xc0")
    ids = [one.tobytes() for one in parsed.ids]
    logprobs = [None if one is None else one.tobytes() for one in parsed.logprobs]
    return PackedLine(number, record, ids, logprobs, parsed.top_logprobs)


def _times(record: TrajectoryRecord) -> Iterable[datetime | None]:
    yield record.started_at
    yield record.ended_at
    for step in record.steps:
        yield step.started_at
        for attempt in step.attempts:
            yield attempt.started_at
    for run in record.tool_runs:
        yield run.started_at
    for exchange in record.exchanges:
        yield exchange.started_at


def _is_kept(time: datetime | None) -> bool:
    # Times of other zones would arrive as the same moment in UTC.
    return time is None or time.tzinfo is timezone.utc


def to_bytes(batch: Batch) -> bytes:
    """A batch as bytes.

    Raises:
        Exception: a value has no place in MessagePack: a whole number of more than 64 bits, half a surrogate pair.
    """
    return _encoder.encode(batch)


def from_bytes(data: bytes) -> Batch:
    """The batch of bytes."""
    return _decoder.decode(data)


def parsed_line(line: PackedLine) -> Parsed:
    """A line that was sent."""
    import numpy as np

    ids: list[IntArray] = [np.frombuffer(one, np.int32) for one in line.ids]
    logprobs: list[FloatArray | None] = [
        None if one is None else np.frombuffer(one, np.float32) for one in line.logprobs
    ]
    found: Any = line.top_logprobs
    return Parsed(line.record, ids, logprobs, found)
