"""Token ids of a line, read to arrays without an object for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rollout_trace.data.tokens import array_of, ids_in
from rollout_trace.file.records import Record, TokenId, TrajectoryRecord

if TYPE_CHECKING:
    from rollout_trace.data.tokens import IntArray

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
