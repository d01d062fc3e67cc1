"""Token ids as JSON writes them, compared with the text of a prompt that may repeat them.

A server sends the ids of the whole prompt with every answer of a conversation. A comparison of memory finds how far
they are known already, many times faster than reading them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AnyStr

from msgspec import json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WINDOW = 512
"""Bytes that are compared as one number."""
FIRST_BLOCK, LARGEST_BLOCK = 4096, 1 << 16
"""Bytes, or characters, that are compared at once, at first and at most: of a text they are copied for it."""
_FIRST_IDS = 64
"""Ids of which a text is written first. Each time twice as many: most prompts differ early, or not at all."""


class IdText:
    """The text of a segment's ids, each with a comma behind it, as far as prompts were compared with it."""

    __slots__ = ("_count", "_text")

    def __init__(self) -> None:
        self._text = bytearray()
        self._count = 0
        """Number of ids in it."""

    def match(self, ids: npt.NDArray[np.int32], text: bytes, at: int, end: int) -> tuple[int, int]:
        """The number of ids with which a text goes on at ``at``, and the place behind them and their commas.

        Args:
            ids: those of the segment: the ones of earlier calls, and any behind them.
            text: has ids with commas between them up to ``end``. The last one, behind which none stands, is not
                compared: it may be the beginning of another number.
        """
        own, done = self._text, 0
        while True:
            size = min(len(own), end - at)
            if not text.startswith(memoryview(own)[done:size], at + done):
                done += common_prefix(text, bytes(memoryview(own)[done:size]), at + done)
                break
            done = size
            if size < len(own) or size == end - at or self._count == len(ids):
                break
            self._write(ids)
        # Back to the last id that is whole in both.
        done = own.rfind(b",", 0, done) + 1
        # Counted on the shorter side: nearly always all are the same, or all but the last few.
        if 2 * done < len(own):
            return own.count(b",", 0, done), at + done
        return self._count - own.count(b",", done), at + done

    def _write(self, ids: Any) -> None:
        count = self._count
        part = ids[count : count + max(count, _FIRST_IDS)].tolist()
        text = json.encode(part)[1:-1] + b","
        # Meanwhile the garbage collector may have ended an agent, and that have had another call decoded.
        if self._count == count:
            self._text += text
            self._count += len(part)


def common_prefix(one: AnyStr, other: AnyStr, at: int = 0, place: int = 0) -> int:
    """Number of bytes, or characters, that are the same in both: behind ``at`` of one, and ``place`` of the other."""
    most = min(len(one) - at, len(other) - place)
    # Pieces of bytes are compared where they stand: copied, they would cost as much as what they are copied for.
    pieces: Any = memoryview(other) if isinstance(other, bytes) else other
    low, block = 0, FIRST_BLOCK
    while low < most:
        block = min(block, most - low)
        if not one.startswith(pieces[place + low : place + low + block], at + low):
            break
        low += block
        block = min(2 * block, LARGEST_BLOCK)
    else:
        return max(low, 0)
    # A short rest of bytes is compared as one number.
    rest = WINDOW if isinstance(one, bytes) else 1
    while block > rest:
        half = block // 2
        if one.startswith(pieces[place + low : place + low + half], at + low):
            low, block = low + half, block - half
        else:
            block = half
    if isinstance(one, bytes) and isinstance(other, bytes):
        low += _prefix_of(one[at + low : at + low + block], other[place + low : place + low + block])
    return low


def _prefix_of(one: bytes, other: bytes) -> int:
    """Number of bytes with which two texts of one length begin."""
    # As numbers: much faster than to halve the rest.
    differ = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return len(one) - (differ.bit_length() + 7) // 8
