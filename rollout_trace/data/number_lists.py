"""Lists of numbers as arrays, made without a second object for each number."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_trace.data.tokens import IntArray

_MOST: Final = 2**31 - 1


def array_of(values: Sequence[float], kind: Literal["i", "f"]) -> Any:
    """int32 (``i``) or float32 (``f``) of numbers in its range, read-only: its memory is of bytes."""
    import numpy as np

    # Twice as fast as `np.fromiter`.
    return np.frombuffer(struct.pack(f"{len(values)}{kind}", *values), kind)


def ids_in(text: bytes) -> IntArray | None:
    """Token ids from the inside of a list of JSON: int32, read-only.

    None where it is to be read otherwise: where it holds anything but digits and commas, lacks a number, or has one
    that is no int32 or that JSON would refuse.
    """
    import numpy as np

    # Where a number is missing, numpy raises an error, or warns, depending on its version.
    if text.translate(None, b"0123456789,") or b",," in text or not (text[:1].isdigit() and text[-1:].isdigit()):
        return None
    numbers = np.fromstring(text, np.int64, sep=",")
    # What is too large for numpy is read as the largest number.
    if np.bitwise_or.reduce(numbers) > _MOST or not _are_of_json(text, numbers):
        return None
    ids: IntArray = numbers.astype(np.int32)
    ids.flags.writeable = False
    return ids


def _are_of_json(text: bytes, numbers: Any) -> bool:
    """Whether no number begins with 0 and has more digits."""
    begins = text.count(b",0") + text.startswith(b"0")
    if not begins:
        return True
    is_doubled = b",00" in text or text.startswith(b"00")
    return not is_doubled and begins == len(numbers) - int((numbers != 0).sum())
