"""Lines of a text for a terminal: wrapped, labelled, painted."""

from __future__ import annotations

import textwrap

from ._text_parts import Paint, Windows, cells, unpainted

_LABEL = 10
EMPTY = "(empty)"
"""Stands for a text of no length."""


class Paper:
    """How a text is laid out.

    Args:
        width: columns of the terminal; at least 60 are used.
        paint: colours the text; None: plain, with marks under what differs.
    """

    def __init__(self, width: int, paint: Paint | None) -> None:
        self.width = max(width, 60)
        self.paint = paint or unpainted
        self.has_marks = paint is None
        self.room = self.width - 4 - _LABEL

    def wrapped(self, text: str, style: str) -> list[str]:
        """A sentence, on as many lines as it takes."""
        return [self.paint(line, style) for line in textwrap.wrap(text, self.width, break_on_hyphens=False)]

    def item(self, text: str, code: str = "") -> list[str]:
        """An item of a list, and below it what to type, which stays on one line."""
        lines = textwrap.wrap(text, self.width - 4, break_on_hyphens=False, break_long_words=False)
        found = [("  - " if not at else "    ") + line for at, line in enumerate(lines)]
        return [*found, f"      {self.paint(code, 'bold')}"] if code else found

    def title(self, text: str, note: str = "") -> str:
        """The line above what differs in one part."""
        return f"  {self.paint(text, 'cyan')}{self.paint(note, 'dim') if note else ''}"

    def row(self, label: str, text: str, style: str) -> list[str]:
        """A value with its label."""
        return [f"    {self._label(label, style)}{self.paint(text or EMPTY, style)}"]

    def _label(self, label: str, style: str) -> str:
        return self.paint(label, style) + " " * (_LABEL - len(label))

    def both(self, found: Windows) -> list[str]:
        """Two texts around what differs."""
        lines = []
        for label, window, style in (("recorded", found.recorded, "red"), ("now", found.now, "green")):
            changed = self.paint(window.changed, style) if window.changed else ""
            text = f"{window.before}{changed}{window.after}" or self.paint(EMPTY, "dim")
            lines.append(f"    {self._label(label, style)}{text}".rstrip())
        if self.has_marks:
            marks = "^" * max(1, cells(found.now.changed))
            lines.append(" " * (4 + _LABEL + cells(found.now.before)) + marks)
        return lines
