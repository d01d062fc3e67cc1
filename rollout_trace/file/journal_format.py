"""Records of a journal as bytes. Pure: no files here. docs/journal.md describes the format.

A record is a frame (magic number, kind, lengths, its checksum), a head (JSON), blobs (raw bytes), with a checksum over
all of it. A damaged place costs the records that it touches: readers go on at the next whole one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import orjson

VERSION = 1
"""Of the format. A reader reads every version up to its own; within one, unknown kinds and fields are skipped."""
MAGIC = b"\xf1RTJ"
"""Begins each record. Its first byte cannot follow in UTF-8 as it does here, so it is in no text."""

FILE, HEAD, CALL, PART, STEPS, TOOL_RUN, WRITTEN, AMEND, FINAL = range(1, 10)
"""Kinds of records: the file's own; fields of a trajectory; a call that ended; the beginning of one in flight; steps
without bytes; a tool run; the trajectory is in the output; what became known of a call after its end; what the final
steps have beside all that."""

_FRAME = struct.Struct("<4sBxHIII")  # magic, kind, number of blobs, bytes of head, bytes of blobs, checksum
_CHECK = struct.Struct("<I")
_LENGTHS = [struct.Struct(f"<{count}I") for count in range(16)]
_SIZE = _FRAME.size + _CHECK.size
_LARGEST = 0xFFFFFFFF
_SMALL = 8192
"""Bytes of the blobs below which a record is copied into one buffer."""


class Damage(NamedTuple):
    """Bytes of a journal that are no whole record."""

    offset: int
    length: int
    problem: str


class Record(NamedTuple):
    """A whole record."""

    offset: int
    kind: int
    head: dict[str, Any]
    blobs: list[memoryview]
    """Views of the journal's bytes."""


def pack(kind: int, head: bytes, blobs: Sequence[bytes] = ()) -> list[bytes]:
    """The buffers of a record, to be written one after the other at once.

    Args:
        kind: one of the kinds above.
        head: a JSON object.
        blobs: raw bytes, at most 15; their lengths go into the record.

    Raises:
        ValueError: more than 4 GB.
    """
    sizes = [len(blob) for blob in blobs]
    lengths = _LENGTHS[len(sizes)].pack(*sizes)
    size = sum(sizes) + len(lengths)
    if size > _LARGEST or len(head) > _LARGEST:
        raise ValueError(f"a record of {size} bytes is more than a journal takes (4 GB)")
    # To copy little takes less time than to sum up and write each part.
    body = [b"".join((head, lengths, *blobs))] if size < _SMALL else [head + lengths, *blobs]
    total = 0
    for part in body:
        total = crc32(part, total)
    frame = _FRAME.pack(MAGIC, kind, len(sizes), len(head), size, total)
    return [frame + _CHECK.pack(crc32(frame)), *body]


def records(data: Any) -> Iterator[Record | Damage]:
    """The whole records of a journal, and the places between them that are none.

    Args:
        data: its bytes: ``bytes`` or an ``mmap``. The blobs are views of it.
    """
    view = memoryview(data)
    at = bad = 0
    problem = ""
    while at < len(view):
        found = _record(view, at)
        if isinstance(found, str):
            problem = problem or found
            at = data.find(MAGIC, at + 1)
            at = len(view) if at < 0 else at
            continue
        if problem:
            yield Damage(bad, at - bad, problem)
        record, at = found
        yield record
        bad, problem = at, ""
    if problem:
        yield Damage(bad, len(view) - bad, problem)


def _record(view: memoryview, at: int) -> tuple[Record, int] | str:
    """The record that begins at an offset, and the offset of its end; or why there is none."""
    left = len(view) - at
    if bytes(view[at : at + 4]) != MAGIC[: min(4, left)]:
        return "expected the beginning of a record, got other bytes"
    if left < _SIZE:
        return "the journal ends inside a record (its process was killed while it wrote?)"
    frame = view[at : at + _FRAME.size]
    # Checked on its own: lengths out of damaged bytes would have the reader sum up the whole file, once at each place.
    if _CHECK.unpack_from(view, at + _FRAME.size)[0] != crc32(frame):
        return "the checksum of a record's frame is wrong"
    _, kind, count, head_size, size, total = _FRAME.unpack(frame)
    start = at + _SIZE
    end = start + head_size + size
    if end > len(view):
        return "the journal ends inside a record (its process was killed while it wrote?)"
    if crc32(view[start:end]) != total:
        return "the checksum of a record is wrong"
    return _contents(view, at, kind, count, start, head_size, end)


def _json(data: memoryview) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # It refuses lone surrogates, which models, tools and errors do have.
        return json.loads(bytes(data))


def _contents(
    view: memoryview, at: int, kind: int, count: int, start: int, head_size: int, end: int
) -> tuple[Record, int] | str:
    place = start + head_size
    try:
        head = _json(view[start:place])
    except ValueError as error:
        return f"the head of a record is no JSON: {error}"
    if not isinstance(head, dict) or place + 4 * count > end:
        return "the head of a record is no JSON object, or its blobs have no lengths"
    sizes = [int.from_bytes(view[place + 4 * one : place + 4 * one + 4], "little") for one in range(count)]
    place += 4 * count
    if place + sum(sizes) != end:
        return "the lengths of a record's blobs do not add up"
    blobs = []
    for size in sizes:
        blobs.append(view[place : place + size])
        place += size
    return Record(at, kind, head, blobs), end
