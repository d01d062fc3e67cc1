"""Token ids of a line, read to arrays without an object for each."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from rollout_trace.file.records import Record, TokenId, TrajectoryRecord

if TYPE_CHECKING:
    from rollout_trace.data.tokens import IntArray

_SHORT = 1000
"""Bytes of JSON up to which a list is faster than numpy's reading of text."""
_COMMA = ord(",")
_OF_IDS = b"0123456789, \t\n\r"
_MOST = 2**31 - 1
_short_list = msgspec.json.Decoder(list[TokenId])


class RawSegment(Record):
    """A ``SegmentRecord`` whose ids are not decoded."""

    ids: msgspec.Raw
    base: tuple[int, int] | None = msgspec.field(default=None, name="from")


class RawTrajectory(TrajectoryRecord):
    """A ``TrajectoryRecord`` whose ids are not decoded."""

    segments: list[RawSegment] = msgspec.field(default_factory=list)  # type: ignore[assignment]


def ids_of(values: list[int]) -> IntArray:
    """Ids as an array: int32, read-only. They must be in its range."""
    import numpy as np

    # Twice as fast as `np.fromiter`.
    ids: IntArray = np.frombuffer(struct.pack(f"{len(values)}i", *values), np.int32)
    return ids


def ids_in(raw: msgspec.Raw) -> IntArray | None:
    """The ids of a JSON value that msgspec has checked: int32, read-only. None where they are no list of ids.

    None too for lists that are better read otherwise, with numbers such as ``1e3``.
    """
    raw_bytes = bytes(raw)
    if len(raw_bytes) < _SHORT:
        try:
            return ids_of(_short_list.decode(raw_bytes))
        except msgspec.DecodeError:
            return None
    import numpy as np

    text = raw_bytes[1:-1]
    # Numpy reads up to what is no number, some of its versions with a warning.
    if raw_bytes[:1] != b"[" or not text.strip() or text.translate(None, _OF_IDS):
        return None
    numbers = np.fromstring(text, np.int64, sep=",")
    commas = np.count_nonzero(np.frombuffer(text, np.uint8) == _COMMA)
    # The bits of all: too large where one is.
    if len(numbers) != commas + 1 or np.bitwise_or.reduce(numbers) > _MOST:
        return None
    ids: IntArray = numbers.astype(np.int32)
    ids.flags.writeable = False
    return ids
