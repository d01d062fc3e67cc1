"""Parts of files that can be read on their own, for reading in several processes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from rollout_trace.file.addresses import is_address
from rollout_trace.file.compression import GZIP_MAGIC, ZSTD_MAGIC

PART_BYTES = 8 * 1024 * 1024
"""About the bytes of JSON in a part."""
_PACKED = 4
"""How often smaller a compressed file is, where its frames do not say."""
_DICTIONARY = (0, 1, 2, 4)
_CONTENT = (0, 2, 4, 8)


class Part(NamedTuple):
    """Bytes of a file."""

    path: str
    start: int = 0
    stop: int | None = None
    """None: to its end."""
    is_last: bool = True
    """Of its file."""


def parts_of(path: str) -> Iterator[Part]:
    """The parts of a file, in order: between lines of a plain one, between frames of one that zstd compresses.

    gzip has no such places that are found without unpacking it; such a file is one part, as is an address.
    """
    ends = [] if is_address(path) else _ends(path)
    start = 0
    for end in ends:
        yield Part(path, start, end, is_last=False)
        start = end
    yield Part(path, start)


def _ends(path: str) -> list[int]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            magic = file.read(4)
            if size < PART_BYTES // _PACKED or magic.startswith(GZIP_MAGIC):
                return []
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return list(_frame_ends(data) if magic == ZSTD_MAGIC else _line_ends(data))
    except (OSError, ValueError):
        # Whoever reads it says why it cannot be read.
        return []


def _line_ends(data: mmap.mmap) -> Iterator[int]:
    at = 0
    while 0 < (at := data.find(b"\n", at + PART_BYTES) + 1) < len(data):
        yield at


def _frame_ends(data: mmap.mmap) -> Iterator[int]:
    """Where frames end; nothing more from the first place on that is no whole frame."""
    at, held = 0, 0
    while at < len(data):
        try:
            end, content = _frame(data, at)
        except IndexError:
            return
        if end is None or end > len(data):
            return
        held += content or (end - at) * _PACKED
        at = end
        if held >= PART_BYTES and at < len(data):
            yield at
            held = 0


def _frame(data: Any, at: int) -> tuple[int | None, int]:
    """The end of a frame, None where there is none, and the bytes of its content, 0 where it does not say.

    As RFC 8878 has it, section 3.1.1.
    """
    if data[at : at + 4] != ZSTD_MAGIC:
        return None, 0
    flags = data[at + 4]
    is_single = flags >> 5 & 1
    place = at + 5 + (not is_single) + _DICTIONARY[flags & 3]
    width = _CONTENT[flags >> 6] or is_single
    content = int.from_bytes(data[place : place + width], "little") + (256 if width == 2 else 0)
    place += width
    while True:
        block = data[place] | data[place + 1] << 8 | data[place + 2] << 16
        # A block of one repeated byte has that byte alone.
        place += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
        if block & 1:
            return place + 4 * (flags >> 2 & 1), content
