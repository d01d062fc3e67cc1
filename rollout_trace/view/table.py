"""Lines of cells in columns that fit a width: text of any script, escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rollout_trace.guard import printable

GAP = "  "
ELLIPSIS = "…"
_LONGEST = 500
"""Characters of a cell that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    title: str
    is_right: bool = False
    """Whether its cells are aligned at their right, as numbers are."""
    least: int = 0
    """Width to which it may shrink; 0: it is shown whole or not at all."""
    is_list: bool = False
    """Whether its cells are lists with commas: cut behind an item, and never narrower than the first one."""
    most: int = 60
    """Width to which its cells are cut."""
    weight: int = 0
    """Which columns are left out where the width is too small: those with the least weight."""


def escape(text: str) -> str:
    """A text on one line, safe for a terminal. Blanks of any kind are one."""
    return printable(" ".join(text[:_LONGEST].split()))


def width_of(text: str) -> int:
    """Cells of a terminal that a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(one: str) -> int:
    if unicodedata.combining(one) or unicodedata.category(one) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis, in at most ``width`` cells."""
    if width_of(text) <= width:
        return text
    taken, kept = 0, []
    for one in text:
        taken += _cells(one)
        if taken > width - 1:
            break
        kept.append(one)
    return "".join(kept).rstrip() + (ELLIPSIS if width else "")


def cut_list(text: str, width: int) -> str:
    """The first items of a list with commas that fit, and an ellipsis; of an item that is wider its beginning."""
    items = text.split(", ")
    for n in range(len(items), 0, -1):
        shown = ", ".join(items[:n]) + (f" {ELLIPSIS}" if n < len(items) else "")
        if width_of(shown) <= width:
            return shown
    return cut(text, width)


def _first_item(text: str) -> int:
    """Width of the first item of a list, with the ellipsis for the others."""
    first, comma, _ = text.partition(", ")
    return width_of(first) + (len(GAP) if comma else 0)


def pad(text: str, width: int, *, is_right: bool = False) -> str:
    """The text with blanks up to a width."""
    blanks = " " * max(0, width - width_of(text))
    return blanks + text if is_right else text + blanks


class Layout:
    """The columns that fit a width, chosen by the first lines; later lines are cut to it."""

    def __init__(self, columns: Sequence[Column], first: Iterable[Sequence[str]], width: int) -> None:
        self._columns = columns
        wanted = [width_of(column.title) for column in columns]
        self._leasts = [column.least for column in columns]
        for line in first:
            wanted = [max(most, width_of(cell)) for most, cell in zip(wanted, line, strict=True)]
            self._leasts = [
                max(least, _first_item(cell)) if column.is_list else least
                for least, cell, column in zip(self._leasts, line, columns, strict=True)
            ]
        self._widths = [min(most, column.most) for most, column in zip(wanted, columns, strict=True)]
        self.shown = list(range(len(columns)))
        """Indices of the columns that are shown."""
        self._fit(width)

    def _fit(self, width: int) -> None:
        while self._least() > width and len(self.shown) > 1:
            # The last one of several with the same weight.
            self.shown.remove(min(reversed(self.shown), key=lambda at: self._columns[at].weight))
        over = sum(self._widths[at] for at in self.shown) + self._gaps() - width
        for at in sorted(self.shown, key=lambda at: -self._widths[at]):
            least = self._leasts[at]
            if over > 0 and least:
                taken = min(over, max(0, self._widths[at] - least))
                self._widths[at] -= taken
                over -= taken

    def _least(self) -> int:
        return sum(min(self._widths[at], self._leasts[at] or self._widths[at]) for at in self.shown) + self._gaps()

    def _gaps(self) -> int:
        return len(GAP) * (len(self.shown) - 1)

    def head(self) -> str:
        """The line of titles."""
        return self.line([column.title for column in self._columns])

    def cells(self, cells: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Index and padded text of the cells that are shown."""
        for at in self.shown:
            column, text = self._columns[at], cells[at]
            # A number is never cut: it would be another one.
            if not column.is_right:
                text = (cut_list if column.is_list else cut)(text, self._widths[at])
            yield (
                at,
                text
                if at == self.shown[-1] and not column.is_right
                else pad(text, self._widths[at], is_right=column.is_right),
            )

    def line(self, cells: Sequence[str]) -> str:
        """The cells of one line, in their columns."""
        return GAP.join(text for _, text in self.cells(cells)).rstrip()


def in_columns(columns: Sequence[Column], lines: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """The lines of a whole table, with its titles."""
    layout = Layout(columns, lines, width)
    yield layout.head()
    yield from map(layout.line, lines)
