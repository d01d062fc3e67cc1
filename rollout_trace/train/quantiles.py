"""Mean, spread and percentiles of numbers that come one at a time, in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable

EXACT = 50_000
"""Numbers up to which percentiles are exact."""
_GROWTH = math.log(1.01)
"""Beyond, numbers are counted in bins that are 1% wide."""


class Numbers:
    """Numbers, their moments and their percentiles. Beyond ``EXACT`` of them, percentiles are within 0.5%."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.count = 0
        self.sum = 0.0
        self.low = math.inf
        self.high = -math.inf
        self._mean = 0.0
        self._squares = 0.0
        self._values = array("d")
        self._bins: Counter[tuple[int, int]] = Counter()
        """By sign and logarithm, once there are more than ``EXACT``."""
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """Adds a finite number."""
        self.count += 1
        self.sum += value
        self.low, self.high = min(self.low, value), max(self.high, value)
        # Welford's rule: the sum of squares alone would cancel where the mean is large.
        change = value - self._mean
        self._mean += change / self.count
        self._squares += change * (value - self._mean)
        if self._bins:
            self._bins[_bin(value)] += 1
            return
        self._values.append(value)
        if len(self._values) > EXACT:
            self._bins.update(map(_bin, self._values))
            self._values = array("d")

    @property
    def is_exact(self) -> bool:
        """Whether percentiles are those of the numbers themselves."""
        return not self._bins

    @property
    def mean(self) -> float | None:
        """None without numbers."""
        return self._mean if self.count else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of a sample (n - 1); None for fewer than two numbers."""
        return math.sqrt(max(0.0, self._squares) / (self.count - 1)) if self.count > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean, as if the numbers were independent; None for fewer than two."""
        return None if self.deviation is None else self.deviation / math.sqrt(self.count)

    def percentile(self, percent: float) -> float | None:
        """The number below which this share of them lies; None without numbers.

        Between two numbers it is interpolated, as ``numpy.percentile`` does by default.
        """
        return self.percentiles([percent])[0]

    def percentiles(self, percents: Iterable[float]) -> list[float | None]:
        """``percentile`` of each."""
        if not self.count:
            return [None for _ in percents]
        if self.is_exact:
            ordered = sorted(self._values)
            return [_interpolated(ordered, percent) for percent in percents]
        return [self._in_bins(percent) for percent in percents]

    def _in_bins(self, percent: float) -> float:
        rank, seen = (self.count - 1) * percent / 100, 0
        for key in sorted(self._bins):
            seen += self._bins[key]
            if seen > rank:
                return min(max(_middle(key), self.low), self.high)
        return self.high

    def histogram(self, bins: int) -> tuple[list[float], list[int]]:
        """Edges (one more than bins, evenly from the least to the greatest) and counts; both empty without numbers.

        Where all numbers are equal there is one bin.
        """
        if not self.count:
            return [], []
        if self.low == self.high:
            return [self.low, self.high], [self.count]
        # Divided first: the difference of two large numbers may be infinite.
        width = self.high / bins - self.low / bins
        counts = [0] * bins
        for value, number in self._counted():
            counts[min(bins - 1, max(0, int((value - self.low) / width)))] += number
        return [self.low + width * at for at in range(bins)] + [self.high], counts

    def _counted(self) -> Iterable[tuple[float, int]]:
        if self.is_exact:
            return ((value, 1) for value in self._values)
        return ((_middle(key), number) for key, number in self._bins.items())


def _bin(value: float) -> tuple[int, int]:
    if not value:
        return 0, 0
    at = round(math.log(abs(value)) / _GROWTH)
    return (1, at) if value > 0 else (-1, -at)


def _middle(key: tuple[int, int]) -> float:
    sign, at = key
    return sign * math.exp(at * sign * _GROWTH) if sign else 0.0


def _interpolated(ordered: list[float], percent: float) -> float:
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    share = rank - below
    return ordered[below] * (1 - share) + ordered[above] * share
