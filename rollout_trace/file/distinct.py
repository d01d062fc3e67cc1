"""The tables of a line: each message, tool and token stored once, and how steps refer to them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace.file.plain import dumps
from rollout_trace.model import Step, shared
from rollout_trace.shared_lists import ListSpan, TableSpan
from rollout_trace.tokens import Segment, Span, TokenStore

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

    __slots__ = ("_firsts", "_places", "breaks", "items", "rows")

    def __init__(self, items: Sequence[Any], used: Iterable[tuple[int, int]]) -> None:
        self.items = items
        self.rows: list[int] = []
        """Of each item used, in the order of the list."""
        self.breaks: list[int] = []
        """Places in ``rows`` whose row does not follow the row before."""
        self._firsts: list[int] = []
        self._places: list[int] = []
        """For each stretch of items used, where it begins in the list and in ``rows``."""
        for first, end in _joined(used):
            self._firsts.append(first)
            self._places.append(len(self.rows))
            self.rows += range(first, end)

    def runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The rows of the items ``[first, end)``, as [first, end)."""
        if first == end:
            return
        stretch = bisect_right(self._firsts, first) - 1
        start = self._places[stretch] + first - self._firsts[stretch]
        stop = start + end - first
        within = self.breaks[bisect_right(self.breaks, start) : bisect_left(self.breaks, stop)]
        for here, there in pairwise([start, *within, stop]):
            yield self.rows[here], self.rows[here] + there - here


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

    __slots__ = ("_count", "_first_row", "_known", "_lists", "_row_of", "_used", "rows")

    def __init__(self, lists: Iterable[ListSpan | Sequence[Any] | None]) -> None:
        """``lists``: all that will be added. What is used of one list is stored in one piece, whoever comes between."""
        self.rows: list[orjson.Fragment] = []
        self._row_of: list[bytes] = []
        self._first_row: dict[bytes, int] = {}
        # By identity, with the object: while it is held, its id is not given to another.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._lists: dict[int, _Indices] = {}
        self._used: dict[int, list[tuple[int, int]]] = {}
        self._count = 0
        for values in lists:
            self._count += 1
            if isinstance(values, ListSpan):
                self._used.setdefault(id(values.items), []).extend(_runs(values))

    def add(self, values: ListSpan | Sequence[Any]) -> Rows:
        """Stores a list and gives the indices of its items, runs of three and more as pairs."""
        if not isinstance(values, ListSpan):
            values = ListSpan(list(values), len(values))
        indices = self._lists.get(id(values.items))
        if indices is None:
            indices = self._lists[id(values.items)] = self._stored(values)
        found: Rows = []
        for run in _runs(values):
            for first, end in indices.runs(*run):
                if end - first > 2:
                    found.append([first, end])
                else:
                    found += range(first, end)
        return found

    def _stored(self, values: ListSpan) -> _Indices:
        used = sorted(self._used.get(id(values.items), ()), key=itemgetter(1))
        indices, ends, last = _Indices(values.items, used or _runs(values)), [end for _, end in used], -2
        for place, item in enumerate(indices.rows):
            value = self._encoded(values.items[item])
            if isinstance(values, TableSpan):
                # A table that was read stays as it is: its runs stay whole, however often it is written again.
                row = self._new(value)
            else:
                steps = len(ends) - bisect_right(ends, item) if used else self._count
                short = place >= _LONG_LIST and len(value) <= max(_SHORT_VALUE, _BREAK * steps)
                row = self._row(value, last + 1, short)
            if row != last + 1:
                indices.breaks.append(place)
            indices.rows[place] = last = row
        return indices

    def _row(self, value: bytes, following: int, short: bool) -> int:
        """The row of a value: the ``following`` one where it fits, else the first with that value, else a new one.

        ``short``: it costs less to store it once more than to break the run.
        """
        if 0 <= following < len(self._row_of) and self._row_of[following] == value:
            return following
        row = self._first_row.get(value)
        at_the_end = following == len(self._row_of)
        return self._new(value) if row is None or (short and at_the_end) else row

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


def _runs(values: ListSpan) -> tuple[tuple[int, int], ...]:
    return values.runs if isinstance(values, TableSpan) else ((0, values.length),)


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
        ids = segment.own[: max(0, need - segment.start)]
        if segment.base is None:
            return {"ids": ids}
        return {"from": (self._index[id(segment.base)], segment.start), "ids": ids}

    def _place(self, segment: Segment, stop: int) -> int:
        """Takes a segment and those it continues into the table, and notes how many of its ids are needed."""
        segment = segment.holding(stop)
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
