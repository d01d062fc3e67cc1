"""Token ids of a line: long lists are checked as text with the line, and made into arrays when somebody wants them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from rollout_trace.data.tokens import array_of, ids_in
from rollout_trace.file.records import TokenId

if TYPE_CHECKING:
    from rollout_trace.data.tokens import IntArray

_SHORT = 2000
"""Bytes of JSON up to which to read ids takes no longer than to look at their text."""
_DIGITS = 9
"""So many are an int32, whatever they are."""
_COMMA, _ZERO = b",0"
_ids = msgspec.json.Decoder(list[TokenId])


class LineIds:
    """The own ids of the segments of a line."""

    __slots__ = ("_lists", "counts")

    def __init__(self, counts: list[int], lists: list[Any]) -> None:
        self.counts = counts
        """How many ids each segment has."""
        self._lists = lists
        """Of each segment a read-only array, or its ids as text, checked, without brackets."""

    @classmethod
    def of_whole(cls, counts: list[int], whole: IntArray) -> LineIds:
        """The ids of all segments, one after the other in an array."""
        ends = list(accumulate(counts, initial=0))
        return cls(counts, [whole] if len(counts) == 1 else [whole[a:b] for a, b in pairwise(ends)])

    def arrays(self) -> list[IntArray]:
        """The ids of each segment: int32, read-only."""
        self._lists = [_array(one) if isinstance(one, bytes) else one for one in self._lists]
        return self._lists


def _array(text: bytes) -> Any:
    return ids_in(text) if len(text) > _SHORT else array_of(_ids.decode(b"[%b]" % text), "i")


def ids_of(values: Sequence[msgspec.Raw]) -> LineIds | None:
    """The ids of JSON values that msgspec has passed over; None where one is no list of ids, or may be none."""
    texts = list(map(bytes, values))
    if not all(text[:1] == b"[" for text in texts):
        return None
    lists, joined = _inside(texts)
    if b" " in joined:
        lists, joined = _inside([text.translate(None, b" \t") for text in texts])
    if len(joined) > _SHORT:
        counts = _counts(lists, joined)
        return None if counts is None else LineIds(counts, lists)
    try:
        whole = _array(joined[1:-1])
    except msgspec.DecodeError:
        return None
    return LineIds.of_whole([one.count(b",") + 1 if one else 0 for one in lists], whole)


def _inside(texts: Sequence[bytes]) -> tuple[list[bytes], bytes]:
    """What is inside of brackets: of each text, and of all with a comma before and behind each."""
    lists = [text[1:-1] for text in texts]
    return lists, b",".join((b"", *filter(None, lists), b""))


def _counts(lists: Sequence[bytes], joined: bytes) -> list[int] | None:
    """How many ids each text has; None where anything but digits and commas is in it, or too many digits.

    A value of JSON without other characters is a flat list of numbers, spelled as JSON has them.
    """
    import numpy as np

    data = np.frombuffer(joined, np.uint8)
    commas = np.flatnonzero(data == _COMMA)
    longest = (commas[1:] - commas[:-1]).max() - 1
    if np.count_nonzero(data - np.uint8(_ZERO) <= 9) + len(commas) != len(data) or longest > _DIGITS:
        return None
    # Which one the comma behind each text is.
    ends = np.searchsorted(commas, list(accumulate([len(one) + 1 if one else 0 for one in lists], initial=0))).tolist()
    return [b - a for a, b in pairwise(ends)]
