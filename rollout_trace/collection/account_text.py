"""Lines for a terminal: names in one column, figures beside them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.collection.facts import CallTotals
    from rollout_trace.collection.totals import PassRate, Percentiles

_LABEL = 13
"""Columns of the names, with the space behind them."""
SHOWN = 5
"""Most reasons, errors and named rewards that are shown."""
_NARROWEST = 30


def render(rows: Iterable[tuple[str, str]], width: int) -> str:
    """Names and texts as lines of at most ``width`` characters (30 at least)."""
    width = max(width, _NARROWEST)
    return "\n".join(line for name, text in rows for line in _wrapped(name, text, width))


def _wrapped(name: str, text: str, width: int) -> list[str]:
    # What belongs together, such as "p50 0.8 s", is joined by no-break spaces, at which `wrap` does not break.
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=f"{name:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ").rstrip() for line in lines]


def rates(found: Mapping[int, PassRate], n_tasks: int) -> str:
    """Chances to pass by k; where they are not of all tasks, of how many."""
    parts = []
    for k, rate in found.items():
        of = "" if rate.tasks == n_tasks else f" ({rate.tasks:,} of {n_tasks:,} tasks)"
        parts.append(f"k={k} {rate.value:.3f}{of}")
    return joined(parts)


def tokens(usage: CallTotals) -> str:
    """What is known of the tokens of calls, and what is not."""
    parts = []
    sums = (("in", usage.known_input, usage.input_unknown), ("out", usage.known_output, usage.output_unknown))
    for name, known, unknown in sums:
        if known is None:
            parts.append(f"{name} unknown")
        else:
            lacks = f" + {many(unknown, 'calls')} without a count" if unknown else ""
            parts.append(f"{known:,} {name}{lacks}")
    return joined(parts)


def cost(usage: CallTotals) -> str:
    """Costs by currency, each with its source, and the number of calls without one."""
    if not usage.amounts:
        return "unknown" if usage.cost_unknown else "none"
    parts = [
        f"{_amount(amount)} {printable(currency, 20)} ({source})"
        for (currency, source), amount in usage.amounts.items()
    ]
    return joined([*parts, f"{many(usage.cost_unknown, 'calls')} without a cost" if usage.cost_unknown else ""])


def percentiles(of: Percentiles) -> str:
    """The percentiles of times."""
    return joined([f"p50 {_seconds(of.p50)}", f"p90 {_seconds(of.p90)}", f"p99 {_seconds(of.p99)}"])


def _seconds(value: float) -> str:
    return f"{value * 1000:,.3g} ms" if value < 0.9995 else f"{value:,.1f} s"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _amount(value: float) -> str:
    return f"{value:,.2f}" if value >= 10 else f"{value:.4g}"


def counts(found: Mapping[str, int]) -> str:
    """Counts by name, the most frequent first."""
    most = sorted(found.items(), key=lambda item: -item[1])
    shown = [f"{count:,} {printable(name, 120)}" for name, count in most[:SHOWN]]
    others = sum(count for _, count in most[SHOWN:])
    return joined([*shown, f"{others:,} others" if others else ""], keep=False)


def many(count: int, what: str) -> str:
    """A number of things, with their name in the plural where it needs one."""
    return f"{count:,} {what[:-1] if count == 1 and what in ('calls', 'steps', 'places', 'attempts') else what}"


def joined(parts: Iterable[str], *, keep: bool = True) -> str:
    """The parts that are not empty, with commas; ``keep``: lines break between parts alone."""
    given = [part for part in parts if part]
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") if keep and len(part) < 40 else part for part in given)
