"""The difference of a text from an earlier one: a common beginning, a common end, and the bytes between them.

Requests of one agent extend each other, so the bytes between are what is new.
"""

from __future__ import annotations

from typing import AnyStr, NamedTuple

_WINDOW = 512
"""Bytes that are compared as one number."""


class Difference(NamedTuple):
    """A text is ``base[:prefix] + middle + base[len(base) - suffix:]``."""

    prefix: int
    suffix: int
    middle: bytes

    def apply(self, base: bytes) -> bytes:
        """The text.

        Raises:
            ValueError: the base is shorter than the difference needs.
        """
        if self.prefix + self.suffix > len(base):
            raise ValueError(f"the difference needs {self.prefix + self.suffix} bytes of a base that has {len(base)}")
        return base[: self.prefix] + self.middle + base[len(base) - self.suffix :]


def difference(text: bytes, base: bytes) -> Difference:
    """The difference of a text from a base. Takes about as long as comparing the two."""
    prefix = common_prefix(text, base)
    most = min(len(text), len(base)) - prefix
    # Most requests end alike, in less than this.
    suffix = 0 if not most else _suffix_of(text[-_WINDOW:], base[-_WINDOW:], min(most, _WINDOW))
    if suffix == _WINDOW:
        suffix = _common_suffix(text, base, most)
    return Difference(prefix, suffix, text[prefix : len(text) - suffix])


def common_prefix(one: AnyStr, other: AnyStr) -> int:
    """Number of bytes, or characters, with which both begin."""
    low, high = 0, min(len(one), len(other))
    # The usual case is decided in few slices: a request repeats nearly all of the one before.
    for length in (high, high - 64, high - 1024):
        if length <= 0:
            break
        if one[:length] == other[:length]:
            low = length
            break
        high = length
    if high > _WINDOW and one[:_WINDOW] != other[:_WINDOW]:
        # The other usual case: another conversation, with the same beginning of JSON.
        high = _WINDOW - 1
    # A short rest of bytes is compared as one number.
    rest = _WINDOW if isinstance(one, bytes) else 0
    while high - low > rest:
        # The half that is left is compared, not all from the beginning: that would take n log n.
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    if isinstance(one, bytes) and isinstance(other, bytes):
        low += _prefix_of(one[low:high], other[low:high])
    return low


def _common_suffix(one: bytes, other: bytes, most: int) -> int:
    low, high = 0, most
    ends = len(one), len(other)
    while low < high:
        middle = (low + high + 1) // 2
        if one[ends[0] - middle : ends[0] - low] == other[ends[1] - middle : ends[1] - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _prefix_of(one: bytes, other: bytes) -> int:
    """Number of bytes with which two texts of one length begin."""
    # As numbers: much faster than to halve the rest.
    differ = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return len(one) - (differ.bit_length() + 7) // 8


def _suffix_of(one: bytes, other: bytes, most: int) -> int:
    """Number of bytes with which two short texts end, at most ``most``."""
    differ = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    # The lowest bit that differs is in the last byte that does.
    return min(((differ & -differ).bit_length() - 1) // 8, most) if differ else most
