"""Texts for a terminal: no character of a model's text can steer it, and numbers as people read them."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from rollout_trace import credentials
from rollout_trace.guard import SPACES, escaped
from rollout_trace.view.values import json_text

TAB = 4
_LINE_ENDS = re.compile("\r\n?|\n")


def one_line(text: str) -> str:
    """A text with every control character escaped, line ends and tabs too, and the keys of this process cut out."""
    return escaped(credentials.cut(text), SPACES)


def lines_of(text: str) -> list[str]:
    """The lines of a text, each without control characters: tabs are spaces, others are escaped."""
    return [escaped(line.expandtabs(TAB), SPACES) for line in _LINE_ENDS.split(credentials.cut(text))]


def cut(text: str, limit: int | None) -> tuple[str, int]:
    """The first ``limit`` characters of a text, and the number of those that are left out. None: all of them."""
    # A few more are not worth a line that says so.
    if limit is None or len(text) <= limit + limit // 10:
        return text, 0
    return text[:limit], len(text) - limit


def seconds(value: float | None) -> str:
    """A duration: ``0.4 ms``, ``1.25 s``, ``2 min 5 s``, ``1 h 3 min``; ``-`` where it is not known."""
    if value is None:
        return "-"
    if abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    if abs(value) < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def money(amount: float, currency: str | None) -> str:
    """An amount with four significant digits: ``$0.0012``, ``0.0012 EUR``."""
    number = f"{amount:.4f}".rstrip("0").rstrip(".") if abs(amount) >= 1 else f"{amount:.4g}"
    return f"${number}" if currency in (None, "USD") else f"{number} {one_line(currency or '')}"


def clock(unix: float | None, *, date: bool = False) -> str:
    """A time in UTC: ``07:59:12``, with its date ``2026-11-23 07:59:12 UTC``; ``-`` where it is not known."""
    if unix is None:
        return "-"
    try:
        time = datetime.fromtimestamp(unix, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC" if date else "%H:%M:%S")


def short(value: object, limit: int = 60) -> str:
    """A value of JSON in a line, at most ``limit`` characters."""
    text = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json_text(value)
    text = one_line(text[: 4 * limit])
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
