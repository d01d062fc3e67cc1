"""Half-open ranges of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def merged(stretches: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges in order, with those merged that touch or overlap; empty ones are left out."""
    begin = reached = 0
    for first, end in sorted(stretches):
        if first > reached:
            if reached > begin:
                yield begin, reached
            begin = first
        reached = max(reached, end)
    if reached > begin:
        yield begin, reached
