"""The tables of a line: each message, tool and token stored once, and how steps refer to them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace.file.plain import dumps
from rollout_trace.model import Step, shared
from rollout_trace.shared_lists import ListSpan
from rollout_trace.tokens import Segment, Span, TokenStore

if TYPE_CHECKING:
    from rollout_trace.file.records import Rows

# A repeat breaks a run, and costs a few bytes in every later step of the conversation. In a long one, where that would
# add up to more than the value itself, a short value is stored once more.
_LONG_LIST = 32
_SHORT_VALUE = 1000


class _Indices:
    """Where the items of one growing list stand in the table."""

    __slots__ = ("breaks", "items", "rows")

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.rows: list[int] = []
        self.breaks: list[int] = []
        """Positions whose row does not follow the row before."""

    def runs(self, length: int) -> Rows:
        """The rows of the first ``length`` items."""
        found: Rows = []
        edges = [*self.breaks[: bisect_left(self.breaks, length)], length]
        for start, stop in pairwise(edges):
            first = self.rows[start]
            if stop - start > 2:
                found.append([first, first + stop - start])
            else:
                found += range(first, first + stop - start)
        return found


class DistinctValues:
    """A table of distinct JSON values."""

    __slots__ = ("_first_row", "_known", "_lists", "_row_of", "rows")

    def __init__(self) -> None:
        self.rows: list[orjson.Fragment] = []
        self._row_of: list[bytes] = []
        self._first_row: dict[bytes, int] = {}
        # By identity, with the object: while it is held, its id is not given to another.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._lists: dict[int, _Indices] = {}

    def add(self, values: ListSpan | Sequence[Any]) -> Rows:
        """Stores a list and gives the indices of its items, runs of three and more as pairs."""
        if not isinstance(values, ListSpan):
            values = ListSpan(list(values), len(values))
        indices = self._lists.get(id(values.items))
        if indices is None:
            indices = self._lists[id(values.items)] = _Indices(values.items)
        rows, last = indices.rows, indices.rows[-1] if indices.rows else -2
        for item in values.items[len(rows) : values.length]:
            row = self._row(item, last + 1, len(rows))
            if row != last + 1:
                indices.breaks.append(len(rows))
            rows.append(row)
            last = row
        return indices.runs(values.length)

    def _row(self, item: Any, following: int, position: int) -> int:
        """The row of an item: the ``following`` one where it fits, else the first with that value, else a new one."""
        value = self._encoded(item)
        if 0 <= following < len(self._row_of) and self._row_of[following] == value:
            return following
        row = self._first_row.get(value)
        at_the_end = following == len(self._row_of)
        if row is not None and not (at_the_end and position >= _LONG_LIST and len(value) <= _SHORT_VALUE):
            return row
        self._row_of.append(value)
        self.rows.append(orjson.Fragment(value))
        return self._first_row.setdefault(value, len(self.rows) - 1) if row is None else len(self.rows) - 1

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
        ids = segment.own[: max(0, need - segment.start)]
        if segment.base is None:
            return {"ids": ids}
        return {"from": (self._index[id(segment.base)], segment.start), "ids": ids}

    def _place(self, segment: Segment, stop: int) -> int:
        """Takes a segment and those it continues into the table, and notes how many of its ids are needed."""
        while segment.base is not None and stop <= segment.start:
            segment = segment.base
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
