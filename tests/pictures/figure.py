"""Drawings as SVG, on a card of their own: readable on light and dark pages, and on a phone."""

from __future__ import annotations

from html import escape

WIDTH = 440
"""Of the drawing. A phone shows it at 360 or so: no text is smaller than 11 here."""
_LIGHT = {
    "card": "#ffffff", "edge": "#c9ced8", "ink": "#1d2330", "dim": "#596173", "read": "#e4e7ee", "panel": "#f4f6fa",
    "a": "#2563c9", "b": "#b4500f", "c": "#1c7c46", "d": "#7a3fb0", "on": "#ffffff",
    "la": "#c9dbf8", "lb": "#f6d9c3", "lc": "#c9ead6", "ld": "#e5d5f3", "bad": "#b3261e",
}  # fmt: skip
_DARK = {
    "card": "#171b24", "edge": "#3c4453", "ink": "#e6e9f0", "dim": "#a3abbb", "read": "#2b313d", "panel": "#1f2530",
    "a": "#7aa7f5", "b": "#f0a06a", "c": "#6fcf97", "d": "#c69bf0", "on": "#10141c",
    "la": "#24406e", "lb": "#61381b", "lc": "#1e4d31", "ld": "#472f60", "bad": "#ff8a80",
}  # fmt: skip
_SHAPES = ("read", "panel", "a", "b", "c", "d", "la", "lb", "lc", "ld")
_TEXTS = ("dim", "a", "b", "c", "d", "bad", "on")


def _rules(colours: dict[str, str]) -> str:
    shapes = "".join(f"rect.{name}{{fill:{colours[name]}}}" for name in _SHAPES)
    texts = "".join(f"text.{name}{{fill:{colours[name]}}}" for name in _TEXTS)
    ink, edge, dim = colours["ink"], colours["edge"], colours["dim"]
    return (
        f"rect{{fill:{colours['card']};stroke:{edge}}}text{{fill:{ink}}}{shapes}{texts}"
        f"rect.again{{stroke-dasharray:3 2;stroke:{dim}}}path{{stroke:{dim};fill:none}}"
        f"path.head{{fill:{dim};stroke:none}}"
    )


_STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:13px}"
    ".small{font-size:11px}.bold{font-weight:600}"
    ".mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    f"{_rules(_LIGHT)}@media (prefers-color-scheme:dark){{{_rules(_DARK)}}}"
)


class Figure:
    """A drawing that grows downwards. Lengths are in its own units, of which it is `WIDTH` wide."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.y = 16.0
        """Where the next part goes."""
        self._parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str = "panel", *, round_: int = 3) -> None:
        """A box; `kind` is the name of its colour, and ``again`` beside it makes its edge dashed."""
        box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_}"'
        self._parts.append(f'<rect class="{kind}" {box}/>')

    def text(self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> None:
        """One line of text, `y` at its base."""
        shown = escape(text, quote=False)
        where = f'x="{x:g}" y="{y:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self._parts.append(f'<text xml:space="preserve" class="{kind}" {where}>{shown}</text>')

    def box(
        self, x: float, y: float, width: float, lines: list[str], kind: str = "panel", *, colour: str = ""
    ) -> float:
        """A box with centred lines, the first of them bold; returns its height."""
        height = 12 + 17 * len(lines)
        self.rect(x, y, width, height, kind, round_=6)
        for at, line in enumerate(lines):
            word = f"{'bold' if at == 0 else 'small'} {colour or ('' if at == 0 else 'dim')}".strip()
            self.text(x + width / 2, y + 20 + 17 * at, line, word, anchor="middle")
        return height

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A straight arrow, along one of the axes."""
        across, down = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        left = f"{x2 - 6 * across + 4 * down:g} {y2 - 6 * down + 4 * across:g}"
        right = f"{x2 - 6 * across - 4 * down:g} {y2 - 6 * down - 4 * across:g}"
        self._parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>')
        self._parts.append(f'<path class="head" d="M{x2:g} {y2:g}L{left}L{right}Z"/>')

    def path(self, path: str) -> None:
        """Any line, in the language of SVG's paths."""
        self._parts.append(f'<path d="{path}"/>')

    def svg(self) -> str:
        """The whole drawing, which ends at `y`."""
        height = self.y + 14
        size = f'width="{WIDTH * 1.2:g}" height="{height * 1.2:g}" viewBox="0 0 {WIDTH} {height:g}"'
        card = f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>'
        title = escape(self.title, quote=False)
        body = "\n".join([card, *self._parts])
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{title}</title>'
        return f"{head}<style>{_STYLE}</style>\n{body}\n</svg>\n"
