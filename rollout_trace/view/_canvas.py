"""Lines of a terminal: wrapped at its width, behind the bars of what they are nested in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_NARROWEST = 24
"""Columns of text that bars leave."""
_BAR = "│ "
_SHORT = 12
"""A lead that is wider than this, and than a third of a line, stands above its text."""
_BELOW = 2
"""Columns that the text is further in then."""


class Canvas:
    """Prints lines to a console, when ``flush`` is called. Texts are safe: ``plain_text`` has escaped them."""

    def __init__(self, console: Console, prefix: str = "") -> None:
        self.console = console
        self.prefix = prefix
        self.width = max(_NARROWEST, console.width - cell_len(prefix))
        """Columns of a line."""
        self._waiting: list[Text] = []

    def nested(self) -> Canvas:
        """A canvas one bar further in. Where no room is left for another bar, the same one."""
        inner = Canvas(self.console, self.prefix + _BAR)
        # One list, so that lines come out in their order.
        inner._waiting = self._waiting
        return inner if self.console.width - cell_len(inner.prefix) >= _NARROWEST else self

    def flush(self) -> None:
        """Prints the lines that wait: one after the other they would cost several times as much."""
        if self._waiting:
            lines = Text("\n").join(self._waiting)
            self._waiting.clear()
            self.console.print(lines, no_wrap=True, overflow="ignore", crop=False)

    def blank(self) -> None:
        """An empty line."""
        self._print(Text(""))

    def line(self, text: Text | str, *, style: str = "", indent: int = 0, lead: Text | str = "") -> None:
        """Prints a text, which may have several lines, wrapped.

        ``indent``: columns before each; ``lead`` stands before the first, and as many columns before the others.
        """
        shown = text if isinstance(text, Text) else Text(text, style)
        head = lead if isinstance(lead, Text) else Text(lead, style)
        if head.cell_len > max(_SHORT, self.width // 3):
            self.line(head, indent=indent)
            head, indent = Text(), indent + _BELOW
        room = max(8, self.width - indent - head.cell_len)
        lines = shown.wrap(self.console, room, overflow="fold", tab_size=4) if shown.plain else [shown]
        for at, one in enumerate(lines):
            first = head if at == 0 else Text(" " * head.cell_len)
            self._print(Text.assemble(" " * indent, first, one))

    def lines(self, texts: Iterable[str], *, style: str = "", indent: int = 0, lead: Text | str = "") -> None:
        """Prints several lines, each wrapped, the first one behind ``lead``."""
        self.line(Text("\n".join(texts), style), indent=indent, lead=lead)

    def facts(self, parts: Iterable[Part], *, lead: Text | str = "") -> None:
        """Prints parts with dots between them; a part that fits into a line is not torn. None are left out."""
        head = lead if isinstance(lead, Text) else Text(lead)
        room = self.width - head.cell_len
        row: list[Text] = []
        rows = [row]
        for part in map(_text, parts):
            if not part.plain:
                continue
            if row and joined([*row, part]).cell_len > room:
                rows.append(row := [])
            row.append(part)
        for at, one in enumerate(rows):
            if one:
                self.line(joined(one), lead=head if at == 0 else Text(" " * head.cell_len))

    def unwrapped(self, texts: Iterable[str]) -> None:
        """Prints lines as they are, however long: what a terminal copies is then what was printed."""
        for one in texts:
            self._print(Text(one))

    def rule(self, title: Text, *, heavy: bool = False) -> None:
        """A line across, with a title at its beginning."""
        bar = "━" if heavy else "─"
        shown = Text.assemble((f"{bar}{bar} ", "rule"), title)
        rest = self.width - shown.cell_len - 1
        if rest > 0:
            shown.append(f" {bar * rest}", "rule")
        self.line(shown)

    def _print(self, text: Text) -> None:
        shown = Text.assemble((self.prefix, "child"), text) if self.prefix else text
        shown.rstrip()
        self._waiting.append(shown)


Part: TypeAlias = "Text | tuple[str, str] | str | None"
"""A text, or a pair of a text and its style."""


def joined(parts: Iterable[Part], separator: str = " · ") -> Text:
    """The parts with dots between them. None and empty ones are left out."""
    found = Text()
    for part in parts:
        if not part:
            continue
        if found.plain:
            found.append(separator, "meta")
        found.append_text(_text(part))
    return found


def _text(part: Part) -> Text:
    if isinstance(part, Text):
        return part
    return Text("") if part is None else Text(part) if isinstance(part, str) else Text(*part)
