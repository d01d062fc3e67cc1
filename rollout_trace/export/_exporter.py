"""Defines exporters: functions from trajectories to rows, all at once or each on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias

from rollout_trace import guard
from rollout_trace.report import ExportReport, check_strict, format_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import Strict

    Trajectories: TypeAlias = Trajectory | Iterable[Trajectory]
    Row: TypeAlias = dict[str, Any]
    Columns: TypeAlias = "Mapping[str, str] | Callable[[], Any] | None"
    """Types by column name, or a function that returns a ``pyarrow.Schema``; None if the columns are not fixed."""
    Make: TypeAlias = Callable[[ExportReport, bool], Iterable[Row]]

P = ParamSpec("P")


class Rows(list[dict[str, Any]]):
    """A list of an exporter's rows, with the types of their columns."""

    def __init__(self, rows: Iterable[dict[str, Any]], columns: Columns = None, *, fills: bool = True) -> None:
        super().__init__(rows)
        self.columns = columns
        """Types by column name, including columns that no row has; None if the exporter has no fixed columns."""
        self.fills = fills
        """Whether ``export.write`` writes every column on every line of JSON, null if it has no value."""


class RowIterator(Iterator[dict[str, Any]]):
    """An exporter's rows, each made on demand. The warnings come after the last row.

    Args:
        name: name of the exporter.
        strict: the exporter's argument.
        report: the exporter's argument.
        make: yields the rows, and counts in the report. Its second argument is True for rows that go into a file:
            number arrays stay arrays, and recorded values need not be copied.
        columns: the types of the rows' columns.
        fills: as for ``Rows``.
        checked: whether the exporter itself replaces and counts numbers that are not finite.

    Raises:
        ValueError: ``strict`` has an unknown value.
    """

    def __init__(
        self,
        name: str,
        strict: Strict,
        report: ExportReport | None,
        make: Make,
        columns: Columns = None,
        *,
        fills: bool = True,
        checked: bool = False,
    ) -> None:
        check_strict(strict)
        self.columns = columns
        self.fills = fills
        self.checked = checked
        self._name, self._strict, self._report, self._make = name, strict, report, make
        self._rows: Generator[Row, None, None] | None = None

    def __next__(self) -> dict[str, Any]:
        if self._rows is None:
            self._rows = self._made(for_file=False)
        return next(self._rows)

    def for_file(self) -> Iterator[dict[str, Any]]:
        """Returns the rows in the form that a writer takes; if some were already taken, the remaining ones."""
        return self._made(for_file=True) if self._rows is None else self._rows

    def close(self) -> None:
        """Ends the export; no more rows are made."""
        if self._rows is None:
            self._rows = self._made(for_file=False)
        self._rows.close()

    def _made(self, *, for_file: bool) -> Generator[Row, None, None]:
        with exporting(self._name, self._strict, self._report) as counts:
            yield from self._make(counts, for_file)


class Exporter(Generic[P]):
    """An exporter: ``export.NAME(trajectories, ...)`` gives a list of rows, ``export.NAME.rows(...)`` an iterator.

    It wraps a function with the exporter's name, arguments and documentation.
    """

    __name__: str

    def __init__(self, function: Callable[P, RowIterator]) -> None:
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Rows:
        if len(args) == 2 and isinstance(args[1], (str, os.PathLike)):
            raise TypeError(
                f"export.{self.__name__}() makes rows and writes no file. Write "
                f"`export.write({args[1]!r:.80}, export.{self.__name__}(trajectories))`."
            )
        found = self._function(*args, **kwargs)
        return Rows(found, found.columns, fills=found.fills)

    def rows(self, *args: P.args, **kwargs: P.kwargs) -> RowIterator:
        """Yields the same rows, each made on demand, so that few trajectories are in memory at a time."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<exporter {self.__name__}>"

    def __reduce__(self) -> str:
        # Pickled by name, as functions are: `datasets` pickles what its generators call.
        return self.__name__


@contextmanager
def exporting(exporter: str, strict: Strict, report: ExportReport | None) -> Iterator[ExportReport]:
    """Yields the report to count in; at the end, logs a warning for what was left out and one for what was noted."""
    counts = ExportReport() if report is None else report
    before, noted = dict(counts.dropped), dict(counts.noted)
    counts.begin(exporter, strict)
    try:
        yield counts
    finally:
        counts.end()
    # A user's report may have counts of earlier exports: the warnings are about this one.
    left, new = _increase(counts.dropped, before), _increase(counts.noted, noted)
    if left:
        guard.warn(
            f"export.{exporter} left out: {format_counts(left)}. Pass report=ExportReport() to read the counts, or "
            "strict=True to raise instead."
        )
    if new:
        guard.warn(f"export.{exporter}: {format_counts(new)}. See docs/training.md.")


def _increase(counts: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {what: count - before.get(what, 0) for what, count in counts.items() if count > before.get(what, 0)}


def owned(rows: Iterable[Row], for_file: bool) -> Iterable[Row]:
    """Rows for users, who may change them: lists for arrays, and copies of what was recorded. For files as they are."""
    return rows if for_file else map(_owned, rows)


def _owned(row: Row) -> Row:
    return {name: listed(value) if hasattr(value, "dtype") else copied(value) for name, value in row.items()}


def listed(array: Any) -> Any:
    """An array as a list of Python numbers; None stays None."""
    return None if array is None else array.tolist()


def copied(value: Any) -> Any:
    """A copy of all dicts and lists in a value, so that changing it does not change what was recorded."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        # A recorded list is a `FrozenList`, which cannot be changed: its copy is a plain list.
        return type(value)(map(copied, value)) if type(value) in (list, tuple) else list(map(copied, value))
    return value
