"""Spans of time, in minutes."""

Interval = tuple[int, int]


def merge(intervals: list[Interval]) -> list[Interval]:
    """The same times in as few intervals as possible, in order. Intervals that touch are one."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
