"""Long lists of token ids, read without an object for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rollout_trace.data.tokens import readonly

if TYPE_CHECKING:
    from rollout_trace.data.tokens import IntArray

_LENGTHS: Final = tuple(10**digits for digits in range(1, 10))
"""From each of these on a number has one digit more."""


def ids_in(text: bytes) -> IntArray | None:
    """int32, from the inside of a list of JSON: digits and commas alone; None where it holds anything else."""
    import numpy as np

    if text.translate(None, b"0123456789,"):
        return None
    try:
        ids = np.fromstring(text, np.int64, sep=",")
    except (ValueError, DeprecationWarning):
        return None
    # Where a number is missing, or begins with a zero, the text is not as long as its numbers are.
    length = int(np.searchsorted(_LENGTHS, ids, side="right").sum()) + 2 * len(ids) - 1
    return None if length != len(text) or ids.max() > 0x7FFFFFFF else readonly(ids.astype(np.int32))
