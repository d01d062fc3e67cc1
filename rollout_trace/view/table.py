"""Lines of cells in columns that fit a width: text of any script, escaped."""

from __future__ import annotations

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
    # On use: most texts do without, and it has to be imported.
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis, in at most ``width`` cells."""
    if width_of(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 1)).rstrip() + (ELLIPSIS if width else "")


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

    def line(self, cells: Sequence[str]) -> str:
        """The cells of one line, in their columns."""
        return GAP.join(self._cell(self._columns[at], cells[at], self._widths[at]) for at in self.shown).rstrip()

    @staticmethod
    def _cell(column: Column, text: str, width: int) -> str:
        # A number is never cut: it would be another one.
        shown = text if column.is_right else (cut_list if column.is_list else cut)(text, width)
        return pad(shown, width, is_right=column.is_right)


def in_columns(columns: Sequence[Column], lines: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """The lines of a whole table, with its titles."""
    layout = Layout(columns, lines, width)
    yield layout.head()
    yield from map(layout.line, lines)
