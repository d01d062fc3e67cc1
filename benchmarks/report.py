"""What a benchmark gives back: rows with a value, its spread and its budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    quick: bool = False
    rounds: int | None = None

    def repeat(self, full: int) -> int:
        """Rounds to measure where ``full`` is the usual number."""
        if self.rounds is not None:
            return self.rounds
        return max(3, full // 6) if self.quick else full

    def times(self, full: int) -> int:
        """Calls a round where ``full`` is the usual number."""
        return full // 2 if self.quick else full

    def size(self, full: int, quick: int) -> int:
        """The size of a workload."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several rounds, and the least and the greatest of them."""

    middle: float
    low: float
    high: float

    def show(self, form: str) -> str:
        """The numbers, each written as ``form`` says."""
        middle, low, high = (format(value, form) for value in (self.middle, self.low, self.high))
        return middle if self.low == self.high else f"{middle} [{low}..{high}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    measured: str
    more: str = ""
    """The absolute figures behind a ratio."""
    budget: str = ""
    met: bool | None = None
    """None where there is no budget."""


def spread(values: Iterable[float]) -> Spread:
    """The spread of the values of all rounds."""
    found = list(values)
    return Spread(median(found), min(found), max(found))


def ratios(part: Sequence[float], whole: Sequence[float]) -> Spread:
    """The spread of ``part / whole``, round by round."""
    return spread(one / other for one, other in zip(part, whole, strict=True))


def differences(part: Sequence[float], whole: Sequence[float]) -> Spread:
    """The spread of ``part - whole``, round by round."""
    return spread(one - other for one, other in zip(part, whole, strict=True))


def at_most(what: str, value: Spread, limit: float | None, *, form: str, unit: str, more: str = "") -> Row:
    """A row whose median must not be above a limit."""
    met = None if limit is None else value.middle <= limit
    budget = "" if limit is None else f"≤ {limit:g}{unit}"
    return Row(what, value.show(form) + unit, more, budget, met)


def at_least(what: str, value: Spread, limit: float | None, *, form: str, unit: str, more: str = "") -> Row:
    """A row whose median must not be below a limit."""
    met = None if limit is None else value.middle >= limit
    budget = "" if limit is None else f"≥ {limit:g}{unit}"
    return Row(what, value.show(form) + unit, more, budget, met)
