"""The summary of a run of ``collect`` as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.collection.account import CollectSummary
    from rollout_trace.collection.facts import CallTotals
    from rollout_trace.collection.totals import PassRate, Percentiles

_LABEL = 13
"""Columns of the names, with the space behind them."""
_SHOWN = 5
"""Most reasons, errors and named rewards that are shown."""
_NARROWEST = 30


def render(summary: CollectSummary, width: int) -> str:
    """The summary as lines of at most ``width`` characters (30 at least)."""
    width = max(width, _NARROWEST)
    return "\n".join(line for name, text in _rows(summary) for line in _wrapped(name, text, width))


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


def _rows(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    yield "output", printable(summary.output, 500)
    yield "run", printable(summary.run_id)
    yield "rollouts", _rollouts(summary)
    if summary.by_status:
        yield "status", _counts(summary.by_status)
    if summary.errors:
        yield "errors", _counts(summary.errors)
    attempts = {"retried": summary.retried, "left running": summary.left_behind, "not in the output": summary.unwritten}
    if any(attempts.values()):
        yield (
            "attempts",
            _list(f"{count:,} {what}" for what, count in {"made": summary.attempts, **attempts}.items() if count),
        )
    if summary.stopped is not None:
        yield "stopped", printable(summary.stopped, 500)
    if summary.interrupted:
        yield "interrupted", "the same call goes on from here"
    yield from _rewards(summary)
    yield from _usage(summary)
    yield from _quality(summary)
    rate = summary.rollouts_per_second
    yield "time", _list([_duration(summary.seconds), "" if rate is None else f"{rate:,.3g} rollouts/s"])


def _rollouts(summary: CollectSummary) -> str:
    parts = [f"{summary.planned:,} planned", f"{summary.made:,} made"]
    if summary.earlier:
        parts.append(f"{summary.earlier:,} in the output before")
    if summary.not_made:
        parts.append(f"{summary.not_made:,} not made")
    return _list(parts)


def _rewards(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    if summary.mean_reward is not None:
        spread = "" if summary.std_reward is None else f"sd {summary.std_reward:.4g}"
        error = "" if summary.stderr_reward is None else f"se {summary.stderr_reward:.3g} by task"
        parts = [f"mean {summary.mean_reward:.4g}", spread, error, f"{summary.n_scored:,} scored"]
        yield "reward", _list(parts)
    if summary.rewards:
        shown = list(summary.rewards.items())[:_SHOWN]
        more = len(summary.rewards) - len(shown)
        means = [f"{printable(name, 60)} {mean:.4g}" for name, mean in shown]
        yield "rewards", _list([*means, f"{more} more" if more else ""])
    # Where nothing is scored, a run without a reward function has no more to say.
    if summary.unscored and (summary.n_scored or summary.reward_failures):
        yield "unscored", _counts(summary.unscored)
    if summary.threshold is not None:
        for name, rates in (("pass@k", summary.pass_at_k), ("pass^k", summary.pass_hat_k)):
            if rates:
                yield name, _rates(rates, summary)
        if summary.pass_at_k:
            of = "" if summary.threshold == 1 else f"with a reward of {summary.threshold:g} or more; "
            yield "", f"({of}over the scored runs of each task)"


def _rates(rates: Mapping[int, PassRate], summary: CollectSummary) -> str:
    parts = []
    for k, rate in rates.items():
        of = "" if rate.tasks == summary.n_tasks else f" ({rate.tasks:,} of {summary.n_tasks:,} tasks)"
        parts.append(f"k={k} {rate.value:.3f}{of}")
    return _list(parts)


def _usage(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    usage = summary.usage
    if summary.made or summary.attempts:
        of = " in this run" if summary.earlier else ""
        yield "calls", _list([f"{usage.calls:,}{of}", f"{usage.failed:,} failed" if usage.failed else ""])
    if usage.calls:
        yield "tokens", _tokens(usage)
        yield "cost", _cost(usage)
    judge = summary.reward_usage
    if judge.calls:
        yield "of rewards", _list([_many(judge.calls, "calls"), _tokens(judge), _cost(judge)])
    for name, times in (("latency", summary.latency), ("first token", summary.time_to_first_token)):
        if times is not None:
            yield name, _times(times)


def _tokens(usage: CallTotals) -> str:
    parts = []
    sums = (("in", usage.known_input, usage.input_unknown), ("out", usage.known_output, usage.output_unknown))
    for name, known, unknown in sums:
        if known is None:
            parts.append(f"{name} unknown")
        else:
            lacks = f" + {_many(unknown, 'calls')} without a count" if unknown else ""
            parts.append(f"{known:,} {name}{lacks}")
    return _list(parts)


def _cost(usage: CallTotals) -> str:
    if not usage.amounts:
        return "cost unknown" if usage.cost_unknown else "none"
    parts = [
        f"{_amount(amount)} {printable(currency, 20)} ({source})"
        for (currency, source), amount in usage.amounts.items()
    ]
    return _list([*parts, f"{_many(usage.cost_unknown, 'calls')} without a cost" if usage.cost_unknown else ""])


def _quality(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    if summary.steps:
        yield "token ids", f"in {summary.steps_with_ids:,} of {_many(summary.steps, 'steps')}"
        if summary.without_ids:
            yield "", f"without: {_counts(summary.without_ids)}"
    if summary.drift:
        yield "drift", f"{_many(summary.drift, 'places')} in {_many(summary.drifted, 'attempts')}"


def _times(times: Percentiles) -> str:
    return _list([f"p50 {_seconds(times.p50)}", f"p90 {_seconds(times.p90)}", f"p99 {_seconds(times.p99)}"])


def _seconds(value: float) -> str:
    return f"{value * 1000:,.3g} ms" if value < 0.9995 else f"{value:,.1f} s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _amount(value: float) -> str:
    return f"{value:,.2f}" if value >= 10 else f"{value:.4g}"


def _counts(counts: Mapping[str, int]) -> str:
    """Counts by name, the most frequent first."""
    most = sorted(counts.items(), key=lambda item: -item[1])
    shown = [f"{count:,} {printable(name, 120)}" for name, count in most[:_SHOWN]]
    others = sum(count for _, count in most[_SHOWN:])
    return _list([*shown, f"{others:,} others" if others else ""], keep=False)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what[:-1] if count == 1 and what in ('calls', 'steps', 'places', 'attempts') else what}"


def _list(parts: Iterable[str], *, keep: bool = True) -> str:
    """The parts that are not empty, with commas; ``keep``: lines break between parts alone."""
    given = [part for part in parts if part]
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") if keep and len(part) < 40 else part for part in given)
