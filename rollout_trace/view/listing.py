"""Summaries as lines: in columns that fit a terminal, or separated by tabs for other programs."""

from __future__ import annotations

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


def in_columns(summaries: Iterable[Summary], names: Sequence[str], width: int) -> Iterator[str]:
    """A line of titles, and one of each summary, as they come. Nothing without summaries."""
    columns = [shown(name).column for name in names]
    first: list[list[str]] = []
    layout: Layout | None = None
    began = monotonic()
    for one in summaries:
        cells = cells_of(one, names)
        if layout is not None:
            yield layout.line(cells)
            continue
        first.append(cells)
        if len(first) >= _FIRST or monotonic() - began > _WAIT:
            layout = Layout(columns, first, width)
            yield from _begin(layout, first)
    if layout is None and first:
        yield from _begin(Layout(columns, first, width), first)


def _begin(layout: Layout, first: Iterable[Sequence[str]]) -> Iterator[str]:
    yield layout.head()
    yield from map(layout.line, first)


def with_tabs(summaries: Iterable[Summary], names: Sequence[str]) -> Iterator[str]:
    """A line of the names, and one of each summary with its whole values."""
    yield "\t".join(names)
    for one in summaries:
        yield "\t".join(whole_of(one, names))


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
