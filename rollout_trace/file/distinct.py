"""The tables of a line: each message, tool and token stored once, and how steps refer to them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace.data.lists import ListSpan, TableSpan
from rollout_trace.data.model import Step, shared
from rollout_trace.data.tokens import Segment, Span, TokenStore
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.file.records import Rows

# A repeat breaks a run, and costs a few bytes in every later step of the conversation. In a long one, where that would
# add up to more than the value itself, a value is stored once more: so no line grows with the square of its steps.
_LONG_LIST = 32
_SHORT_VALUE = 1000
_BREAK = 4
"""Bytes that a break costs each later step, at the least."""


class _Indices:
    """Where the items of a list, those that steps use, stand in the table."""

    __slots__ = ("breaks", "firsts", "items", "places", "rows")

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.rows: list[int] = []
        """Of each item used, in the order of the list."""
        self.breaks: list[int] = []
        """Places in ``rows`` whose row does not follow the row before."""
        self.firsts: list[int] = [0]
        self.places: list[int] = [0]
        """For each stretch of items used, where it begins in the list and in ``rows``."""

    def add_to(self, found: Rows, first: int, end: int) -> None:
        """Adds the rows of the items ``[first, end)``."""
        if first == end:
            return
        stretch = bisect_right(self.firsts, first) - 1
        start = self.places[stretch] + first - self.firsts[stretch]
        stop = start + end - first
        edges = [start, stop]
        if self.breaks:
            edges[1:1] = self.breaks[bisect_right(self.breaks, start) : bisect_left(self.breaks, stop)]
        for here, there in pairwise(edges):
            row = self.rows[here]
            if there - here > 2:
                found.append([row, row + there - here])
            else:
                found += range(row, row + there - here)


def _joined(stretches: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Stretches in order, those that touch as one."""
    begin = reached = 0
    for first, end in sorted(stretches):
        if first > reached:
            if reached > begin:
                yield begin, reached
            begin = first
        reached = max(reached, end)
    if reached > begin:
        yield begin, reached


class DistinctValues:
    """A table of distinct JSON values."""

    __slots__ = ("_count", "_first_row", "_known", "_lengths", "_lists", "_row_of", "_used", "rows")

    def __init__(self, lists: Sequence[ListSpan | Sequence[Any] | None]) -> None:
        """``lists``: all that will be added. What is used of one list is stored in one piece, whoever comes between."""
        self.rows: list[orjson.Fragment] = []
        self._row_of: list[bytes] = []
        self._first_row: dict[bytes, int] = {}
        # By identity, with the object: while it is held, its id is not given to another.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._lists: dict[int, _Indices] = {}
        self._count = len(lists)
        self._lengths: dict[int, list[int]] = {}
        self._used: dict[int, list[tuple[int, int]]] = {}
        for values in lists:
            if isinstance(values, TableSpan):
                self._used.setdefault(id(values.items), []).extend(values.runs)
            elif isinstance(values, ListSpan):
                self._lengths.setdefault(id(values.items), []).append(values.length)

    def add(self, values: ListSpan | Sequence[Any]) -> Rows:
        """Stores a list and gives the indices of its items, runs of three and more as pairs."""
        if not isinstance(values, ListSpan):
            values = ListSpan(list(values), len(values))
        indices = self._lists.get(id(values.items))
        found: Rows = []
        if isinstance(values, TableSpan):
            indices = self._table(values) if indices is None else indices
            for first, end in values.runs:
                indices.add_to(found, first, end)
        else:
            indices = self._list(values) if indices is None else indices
            indices.add_to(found, 0, values.length)
        return found

    def _table(self, values: TableSpan) -> _Indices:
        """Stores what is used of a table as it is: its runs stay whole, however often it is written again."""
        indices = self._lists[id(values.items)] = _Indices(values.items)
        indices.firsts, indices.places = [], []
        for first, end in _joined(self._used[id(values.items)]):
            indices.firsts.append(first)
            indices.places.append(len(indices.rows))
            indices.rows += [self._new(self._encoded(item)) for item in values.items[first:end]]
        return indices

    def _list(self, values: ListSpan) -> _Indices:
        indices = self._lists[id(values.items)] = _Indices(values.items)
        lengths = sorted(self._lengths.get(id(values.items), ()))
        used = lengths[-1] if lengths else values.length
        rows, last = indices.rows, -1
        for place, item in enumerate(values.items[:used]):
            value = self._encoded(item)
            row = last + 1
            if row == len(self._row_of) or self._row_of[row] != value:
                steps = len(lengths) - bisect_right(lengths, place) if lengths else self._count
                short = place >= _LONG_LIST and len(value) <= max(_SHORT_VALUE, _BREAK * steps)
                row = self._row(value, row, short)
            if row != last + 1:
                indices.breaks.append(place)
            rows.append(row)
            last = row
        return indices

    def _row(self, value: bytes, following: int, short: bool) -> int:
        """The first row with a value; a new one where there is none, or where a new one follows and the value is
        short: where to store it once more costs less than to break the run."""
        row = self._first_row.get(value)
        return self._new(value) if row is None or (short and following == len(self._row_of)) else row

    def _new(self, value: bytes) -> int:
        self._row_of.append(value)
        self.rows.append(orjson.Fragment(value))
        self._first_row.setdefault(value, len(self.rows) - 1)
        return len(self.rows) - 1

    def _encoded(self, item: Any) -> bytes:
        known = self._known.get(id(item))
        if known is None:
            known = self._known[id(item)] = item, dumps(item)
        return known[1]


class DistinctTokens:
    """The segments that the steps of a line use."""

    __slots__ = ("_index", "_need", "_own_store", "_used")

    def __init__(self) -> None:
        self._used: list[Segment] = []
        self._index: dict[int, int] = {}
        self._need: list[int] = []
        self._own_store = TokenStore()

    def add(self, step: Step) -> dict[str, Any]:
        """Stores the ids of a step and gives ``segment``, ``prompt`` and ``end``, as far as there are any."""
        prompt, completion = shared(step, "prompt_token_ids"), shared(step, "completion_token_ids")
        if prompt is None and completion is None:
            return {}
        if not _are_a_row(prompt, completion):
            prompt, completion = self._own_store.add(step.prompt_token_ids, step.completion_token_ids)
        whole = prompt if completion is None else completion
        found = {"segment": self._place(whole.segment, whole.stop)}
        if prompt is not None:
            found["prompt"] = prompt.stop
        if completion is not None:
            found["end"] = completion.stop
        return found

    def table(self) -> list[dict[str, Any]]:
        """The segments, each after the one it continues, and of each no more than is used."""
        return [self._record(segment, need) for segment, need in zip(self._used, self._need, strict=True)]

    def _record(self, segment: Segment, need: int) -> dict[str, Any]:
        ids = segment.own_ids[: max(0, need - segment.start)]
        if segment.base is None:
            return {"ids": ids}
        return {"from": (self._index[id(segment.base)], segment.start), "ids": ids}

    def _place(self, segment: Segment, stop: int) -> int:
        """Takes a segment and those it continues into the table, and notes how many of its ids are needed."""
        segment = segment.ending_segment(stop)
        known = self._index.get(id(segment))
        if known is not None:
            self._need[known] = max(self._need[known], stop)
            return known
        chain = [segment]
        while id(chain[-1]) not in self._index and chain[-1].base is not None:
            chain.append(chain[-1].base)
        needs = [stop, *(child.start for child in chain[:-1])]
        for one, need in zip(reversed(chain), reversed(needs), strict=True):
            index = self._index.setdefault(id(one), len(self._used))
            if index == len(self._used):
                self._used.append(one)
                self._need.append(0)
            self._need[index] = max(self._need[index], need)
        return self._index[id(segment)]


def _are_a_row(prompt: Any, completion: Any) -> bool:
    """Whether two spans are the first ids of one segment and the ids that follow them."""
    if prompt is None or completion is None:
        only = completion if prompt is None else prompt
        return isinstance(only, Span) and only.start == 0
    if not (isinstance(prompt, Span) and isinstance(completion, Span)):
        return False
    return prompt.start == 0 and completion.start == prompt.stop and completion.segment is prompt.segment
