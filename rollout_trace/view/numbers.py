"""Numbers and small charts as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

MISSING = "-"
_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = ".:-=+*#@"
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: int | None) -> str:
    """``1,234``."""
    return MISSING if value is None else f"{value:,}"


def of(number: int, one: str, several: str | None = None) -> str:
    """``1 group``, ``1,234 groups``; ``several``: the plural, where an ``s`` does not make it."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def trajectories(number: int) -> str:
    """``1 trajectory``, ``2 trajectories``."""
    return of(number, "trajectory", "trajectories")


def short(value: float | None) -> str:
    """A number of at most five characters: ``999``, ``1.2k``, ``34.5M``."""
    if value is None:
        return MISSING
    for at, (unit, name) in enumerate(_UNITS):
        if abs(value) >= unit * 0.9995:
            # 999.95k is not 1000.0k: it is of the next unit.
            scaled = value / unit
            if abs(scaled) >= 999.5 and at:
                unit, name = _UNITS[at - 1]
                scaled = value / unit
            return f"{scaled:.0f}{name}" if abs(scaled) >= 100 else f"{scaled:.1f}{name}"
    return f"{value:.0f}"


def size(value: int) -> str:
    """``1 byte``, ``999 bytes``, ``12.3 kB``, ``1.5 MB``."""
    text = short(value)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else of(value, "byte")


def number(value: float | None) -> str:
    """Four significant digits: ``0.5``, ``1``, ``-0.3333``, ``1.235e+06``."""
    if value is None:
        return MISSING
    # Not `-0`: what is rounded to zero has no sign.
    text = f"{value:.4g}"
    return "0" if text == "-0" else text


def seconds(value: float | None) -> str:
    """``12ms``, ``1.25s``, ``45s``, ``2m05s``, ``3h12m``, ``2d04h``."""
    if value is None:
        return MISSING
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 0.9995:
        return "0s" if not value else f"{value * 1000:.0f}ms" if value >= 0.0095 else f"{value * 1000:.2g}ms"
    if value < 9.995:
        return f"{value:.2f}s"
    if value < 59.5:
        return f"{value:.0f}s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    minutes = round(value / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    hours = round(value / 3600)
    return f"{hours // 24}d{hours % 24:02}h"


def percent(part: float, whole: float) -> str:
    """``12.5%``; ``-`` of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else MISSING


def money(amount: float | None, currency: str | None) -> str:
    """``0.0123 USD``."""
    if amount is None:
        return MISSING
    text = f"{amount:,.2f}" if abs(amount) >= 10 else number(amount)
    return f"{text} {currency}" if currency else text


def when(moment: float | None) -> str:
    """A Unix time in UTC: ``2026-11-23 07:55:33``."""
    if moment is None:
        return MISSING
    try:
        return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return number(moment)


def counts(values: Iterable[tuple[str, int]]) -> str:
    """``failed 3, aborted 1``."""
    return ", ".join(f"{name} {number:,}" for name, number in values) or MISSING


def bars(values: Sequence[float], *, plain: bool = False) -> str:
    """A chart of one line, a character a value of zero or more, the highest for the greatest; ``plain``: in ASCII."""
    greatest = max(values, default=0)
    if not greatest:
        return " " * len(values)
    steps = _PLAIN_BARS if plain else _BARS
    return "".join(" " if not value else steps[max(0, round(value / greatest * 8) - 1)] for value in values)


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """A horizontal bar of at most ``width`` characters for a share from 0 to 1."""
    return ("#" if plain else "█") * round(max(0.0, min(1.0, share)) * width)
