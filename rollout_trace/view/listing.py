"""Summaries as lines: in columns that fit a terminal, or separated by tabs for other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

from rollout_trace.view.columns import cells_of, shown, whole_of
from rollout_trace.view.model import Summary
from rollout_trace.view.table import Layout

_FIRST = 40
"""Lines from which the widths of columns are taken."""
_WAIT = 0.05
"""Seconds after which fewer lines do."""


class InColumns:
    """Lines in columns of a width.

    Args:
        names: of the columns: fields of ``Summary``.
        width: in columns of the terminal.
        is_open: whether lines will come that are like none of the first ones: columns get their usual widths.
    """

    def __init__(self, names: Sequence[str], width: int, is_open: bool = False) -> None:
        self._names = names
        self._width = width
        self._is_open = is_open
        self._layout: Layout | None = None

    def lines(self, summaries: Iterable[Summary]) -> Iterator[str]:
        """The lines of some summaries; the titles before the first of all."""
        cells = [cells_of(one, self._names) for one in summaries]
        if self._layout is None and cells:
            usual = [["x" * _USUAL.get(name, 0) for name in self._names]] if self._is_open else []
            self._layout = Layout([shown(name).column for name in self._names], [*cells, *usual], self._width)
            yield self._layout.head()
        if self._layout is not None:
            yield from map(self._layout.line, cells)


_USUAL = {"name": 12, "task": 16, "group": 16, "status": 9, "reward": 6, "input_tokens": 5, "output_tokens": 5,
          "steps": 3, "findings": 30, "seconds": 6, "excerpt": 60}  # fmt: skip


class WithTabs:
    """Lines of whole values with tabs between them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._has_begun = False

    def lines(self, summaries: Iterable[Summary]) -> Iterator[str]:
        """The lines of some summaries; the names before the first of all."""
        if not self._has_begun:
            self._has_begun = True
            yield "\t".join(self._names)
        for one in summaries:
            yield "\t".join(whole_of(one, self._names))


def in_columns(summaries: Iterable[Summary], names: Sequence[str], width: int) -> Iterator[str]:
    """A line of titles, and one of each summary, as they come. Nothing without summaries."""
    first: list[Summary] = []
    rest = iter(summaries)
    ends = math.inf
    for one in rest:
        first.append(one)
        ends = min(ends, monotonic() + _WAIT)
        if len(first) >= _FIRST or monotonic() > ends:
            break
    # Few lines that came slowly: those that follow may be wider.
    table = InColumns(names, width, is_open=monotonic() > ends)
    yield from table.lines(first)
    for one in rest:
        yield from table.lines([one])


def in_order(summaries: Iterable[Summary], field: str, *, reverse: bool) -> list[Summary]:
    """The summaries by a field, from the least on; those that lack it are last in both directions."""
    every = list(summaries)
    having = [one for one in every if getattr(one, field) is not None]
    having.sort(key=lambda one: sort_key(getattr(one, field)), reverse=reverse)
    return having + [one for one in every if getattr(one, field) is None]


def sort_key(value: Any) -> Any:
    """What a value is ordered by: findings and the like by their number, agents and the like by their names."""
    if isinstance(value, dict):
        return sum(value.values())
    return [one.casefold() for one in value] if isinstance(value, list) else value
