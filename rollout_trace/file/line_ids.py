"""Token ids of a line: long lists are checked as text with the line, and made into arrays when somebody wants them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from rollout_trace.data.tokens import array_of
from rollout_trace.file.records import TokenId

if TYPE_CHECKING:
    from rollout_trace.data.tokens import IntArray

_SHORT = 2000
"""Bytes of JSON up to which to read ids takes no longer than to look at their text."""
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
    """The ids of a text that was checked, or that is short: it is checked here."""
    if len(text) <= _SHORT:
        return array_of(_ids.decode(b"[%b]" % text), "i")
    import numpy as np

    # By way of int64, which numpy reads faster. Not a read-only view of it: the store would copy it.
    ids = np.fromstring(text, np.int64, sep=",").astype(np.int32)
    ids.flags.writeable = False
    return ids


def ids_of(values: Sequence[msgspec.Raw]) -> LineIds | None:
    """The ids of JSON values that msgspec has passed over; None where one is no list of ids, or may be none."""
    texts = list(map(bytes, values))
    if not all(text.startswith(b"[") for text in texts):
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
    counts = [one.count(b",") + 1 if one else 0 for one in lists]
    # Not where a list has white space alone.
    return LineIds.of_whole(counts, whole) if sum(counts) == len(whole) else None


def _inside(texts: Sequence[bytes]) -> tuple[list[bytes], bytes]:
    """What is inside of brackets: of each text, and of all with a comma before and behind each."""
    lists = [text[1:-1] for text in texts]
    return lists, b",".join((b"", *filter(None, lists), b""))


def _counts(lists: Sequence[bytes], joined: bytes) -> list[int] | None:
    """How many ids each text has; None where anything but digits and commas is in it, or ten digits and more.

    A value of JSON without other characters is a flat list of numbers, spelled as JSON has them; of nine digits each is
    an int32.
    """
    import numpy as np

    data = np.frombuffer(joined, np.uint8)
    commas = data == _COMMA
    # Whether a comma is among 2 characters, then 4, 8 and 10. Where the commas are would take longer to find.
    near = commas[1:] | commas[:-1]
    for step in (2, 4, 2):
        near = near[step:] | near[:-step]
    number = int(np.count_nonzero(commas))
    if np.count_nonzero(data - np.uint8(_ZERO) <= 9) + number != len(data) or not near.all():
        return None
    if len(lists) == 1:
        return [number - 1]
    ends = accumulate([len(one) + 1 if one else 0 for one in lists], initial=1)
    return [int(np.count_nonzero(commas[begin:end])) for begin, end in pairwise(ends)]
