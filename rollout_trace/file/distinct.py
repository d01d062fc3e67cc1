"""Builds the tables of a line, in which each message, tool and token is stored once, and the references to them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rollout_trace.data.lists import ListSpan, TableSpan
from rollout_trace.data.model import Step
from rollout_trace.data.tokens import Segment, Span, TokenStore
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.file.records import Rows


def merged(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges in order, with those merged that touch or overlap; empty ones are left out."""
    begin = reached = 0
    for first, end in sorted(ranges):
        if first > reached:
            if reached > begin:
                yield begin, reached
            begin = first
        reached = max(reached, end)
    if reached > begin:
        yield begin, reached


# A repeated value breaks a run of rows, which costs a few bytes in every later step of the conversation. Where that
# adds up to more than the value, it is stored once more: otherwise a line could grow with the square of its steps.
_LONG_LIST = 32
_SHORT_VALUE = 1000
_BREAK = 4
"""Bytes that a break costs each later step, at least."""


class _Indices:
    """The rows of the table that hold the items of one list, as far as steps use them."""

    __slots__ = ("breaks", "items", "list_starts", "row_starts", "rows")

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.rows: Sequence[int] = ()
        """The row of each used item, in the order of the list."""
        self.breaks: list[int] = []
        """Indices in ``rows`` whose row does not follow the row before."""
        self.list_starts: list[int] = [0]
        self.row_starts: list[int] = [0]
        """For each range of used items, where it begins: in the list, and in ``rows``."""

    def add_to(self, found: Rows, first: int, end: int) -> None:
        """Appends the rows of items ``[first, end)`` to ``found``."""
        if first == end:
            return
        at = bisect_right(self.list_starts, first) - 1
        start = self.row_starts[at] + first - self.list_starts[at]
        stop = start + end - first
        edges = [start, stop]
        if self.breaks:
            edges[1:1] = self.breaks[bisect_right(self.breaks, start) : bisect_left(self.breaks, stop)]
        for here, there in pairwise(edges):
            row = self.rows[here]
            found += _run(row, row + there - here)


def _run(first: int, end: int) -> Rows:
    """Rows that follow each other."""
    return [[first, end]] if end - first > 2 else list(range(first, end))


class DistinctValues:
    """A table of distinct JSON values."""

    def __init__(self, lists: Sequence[ListSpan | Sequence[Any] | None]) -> None:
        """``lists``: all that will be added. Needed beforehand, so that the used part of each is stored in one piece
        even if others are added in between.
        """
        self._values: list[bytes] = []
        """The JSON of each row."""
        self._first_row: dict[bytes, int] = {}
        self._kept: list[Any] = []
        """The lists whose items' ``id`` are keys of the next dict: while they are kept, no other object gets it."""
        self._encoded_by_id: dict[int, bytes] = {}
        self._start_by_list: dict[int, int] = {}
        """By list: the row of its first item, where the rows of all items follow each other."""
        self._indices_by_list: dict[int, _Indices] = {}
        """The same of all other lists."""
        self._lists = lists
        self._lengths: dict[int, list[int]] | None = None
        self._longest: dict[int, int] = {}
        self._used_runs: dict[int, list[tuple[int, int]]] = {}
        for values in lists:
            if type(values) is ListSpan:
                if self._longest.get(id(values.items), -1) < values.length:
                    self._longest[id(values.items)] = values.length
            elif isinstance(values, TableSpan):
                self._used_runs.setdefault(id(values.items), []).extend(values.runs)

    def table(self) -> bytes:
        """The JSON of the table."""
        return b"[%s]" % b",".join(self._values)

    def add(self, values: ListSpan | Sequence[Any]) -> Rows:
        """Stores a list and returns the rows of its items; runs of three and more as ``[first, end]``."""
        if not isinstance(values, ListSpan):
            values = ListSpan(list(values), len(values))
        key = id(values.items)
        if type(values) is TableSpan:
            indices, found = self._indices_by_list.get(key) or self._table(values), list[Any]()
            for first, end in values.runs:
                indices.add_to(found, first, end)
            return found
        start = self._start_by_list.get(key)
        if start is None and key not in self._indices_by_list:
            start = self._list(values)
        if start is not None:
            return _run(start, start + values.length)
        found = []
        self._indices_by_list[key].add_to(found, 0, values.length)
        return found

    def _table(self, values: TableSpan) -> _Indices:
        """Stores the used part of a table as it is, duplicates included: so rewriting a file never breaks its runs."""
        stored: list[bytes] = []
        indices = self._indices_by_list[id(values.items)] = _Indices(values.items)
        indices.list_starts, indices.row_starts = [], []
        for first, end in merged(self._used_runs[id(values.items)]):
            indices.list_starts.append(first)
            indices.row_starts.append(len(stored))
            stored += self._encoded(values.items[first:end])
        rows = indices.rows = range(len(self._values), len(self._values) + len(stored))
        self._values += stored
        # Of equal values the first row counts.
        for value, row in zip(stored, rows, strict=True):
            self._first_row.setdefault(value, row)
        return indices

    def _list(self, values: ListSpan) -> int | None:
        """Stores the used part of a list; returns the row of its first item where all rows follow each other."""
        items = values.items
        used = self._longest.get(id(items), values.length)
        encoded = self._encoded(items if used == len(items) else items[:used])
        start = row = len(self._values)
        for value in encoded:
            if self._first_row.setdefault(value, row) != row:
                break
            row += 1
        else:
            self._values += encoded
            self._start_by_list[id(items)] = start
            return start
        # A value has a row already.
        for value in encoded[: row - start]:
            del self._first_row[value]
        self._indices_by_list[id(items)] = self._found(items, encoded)
        return None

    def _found(self, items: list[Any], encoded: list[bytes]) -> _Indices:
        """The rows of a list, of whose values some have rows already; the others are stored."""
        lengths = self._lengths_of(items)
        indices = _Indices(items)
        rows: list[int] = []
        last = -1
        for place, value in enumerate(encoded):
            row = last + 1
            if row == len(self._values) or self._values[row] != value:
                steps = len(lengths) - bisect_right(lengths, place) if lengths else len(self._lists)
                short = place >= _LONG_LIST and len(value) <= max(_SHORT_VALUE, _BREAK * steps)
                row = self._row(value, row, short)
            if row != last + 1:
                indices.breaks.append(place)
            rows.append(row)
            last = row
        indices.rows = rows
        return indices

    def _lengths_of(self, items: list[Any]) -> list[int]:
        """Counts the items of a list that each step uses, in ascending order."""
        if self._lengths is None:
            self._lengths = {}
            for values in self._lists:
                if type(values) is ListSpan:
                    self._lengths.setdefault(id(values.items), []).append(values.length)
        return sorted(self._lengths.get(id(items), ()))

    def _row(self, value: bytes, following: int, short: bool) -> int:
        """The first row with a value, or a new row.

        A new one where the value has none, or where it is ``short`` and the run would continue with a new row: storing
        it once more then costs less than breaking the run.
        """
        row = self._first_row.get(value)
        if row is not None and not (short and following == len(self._values)):
            return row
        self._values.append(value)
        self._first_row.setdefault(value, len(self._values) - 1)
        return len(self._values) - 1

    def _encoded(self, items: list[Any]) -> list[bytes]:
        """The JSON of each item. An object that several lists hold is encoded once."""
        known, encoded = self._encoded_by_id, []
        for item in items:
            data = known.get(id(item))
            if data is None:
                data = known[id(item)] = dumps(item)
            encoded.append(data)
        self._kept.append(items)
        return encoded


class DistinctTokens:
    """The token segments that the steps of a line use."""

    __slots__ = ("_index", "_lengths_needed", "_own_store", "_used")

    def __init__(self) -> None:
        self._used: list[Segment] = []
        self._index: dict[int, int] = {}
        self._lengths_needed: list[int] = []
        self._own_store = TokenStore()

    def add(self, step: Step, prompt: Any, completion: Any) -> dict[str, Any]:
        """Stores the ids of a step; returns its ``segment``, ``prompt`` and ``end``, without those it lacks.

        Args:
            prompt: the stored form of its ``prompt_token_ids``.
            completion: the same of its ``completion_token_ids``.
        """
        if prompt is None and completion is None:
            return {}
        # Arrays set by hand have no segments, and the file has no form for spans that are not consecutive.
        if not _are_consecutive(prompt, completion):
            prompt, completion = self._own_store.add(step.prompt_token_ids, step.completion_token_ids)
        whole = prompt if completion is None else completion
        found = {"segment": self._add_segment(whole.segment, whole.stop)}
        if prompt is not None:
            found["prompt"] = prompt.stop
        if completion is not None:
            found["end"] = completion.stop
        return found

    def table(self) -> list[dict[str, Any]]:
        """The records of the segments, each after its base, with no more ids of each than are used."""
        return [self._record(segment, need) for segment, need in zip(self._used, self._lengths_needed, strict=True)]

    def _record(self, segment: Segment, need: int) -> dict[str, Any]:
        ids = segment.own_ids
        if need < segment.end:
            ids = ids[: max(0, need - segment.start)]
        if segment.base is None:
            return {"ids": ids}
        return {"from": (self._index[id(segment.base)], segment.start), "ids": ids}

    def _add_segment(self, segment: Segment, stop: int) -> int:
        """Adds a segment and its bases to the table, with the number of ids needed of each; returns its index."""
        if segment.start >= stop:
            segment = segment.ending_segment(stop)
        known = self._index.get(id(segment))
        if known is None and segment.base is None:
            known = self._index[id(segment)] = len(self._used)
            self._used.append(segment)
            self._lengths_needed.append(stop)
            return known
        if known is not None:
            if self._lengths_needed[known] < stop:
                self._lengths_needed[known] = stop
            return known
        chain = [segment]
        while id(chain[-1]) not in self._index and chain[-1].base is not None:
            chain.append(chain[-1].base)
        # Of a base, only the ids before its child are needed.
        needs = [stop, *(child.start for child in chain[:-1])]
        for one, need in zip(reversed(chain), reversed(needs), strict=True):
            index = self._index.setdefault(id(one), len(self._used))
            if index == len(self._used):
                self._used.append(one)
                self._lengths_needed.append(0)
            self._lengths_needed[index] = max(self._lengths_needed[index], need)
        return self._index[id(segment)]


def _are_consecutive(prompt: Any, completion: Any) -> bool:
    """Tells whether prompt and completion are spans of one sequence: from 0, and right after each other."""
    if prompt is None or completion is None:
        only = completion if prompt is None else prompt
        return isinstance(only, Span) and only.start == 0
    if not (isinstance(prompt, Span) and isinstance(completion, Span)):
        return False
    return prompt.start == 0 and completion.start == prompt.stop and completion.segment is prompt.segment
