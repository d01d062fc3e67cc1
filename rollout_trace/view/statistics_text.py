"""``rollout-trace stats`` as text: lines of sums, and small charts in characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from rollout_trace.train.quantiles import Numbers
from rollout_trace.view import numbers as fmt
from rollout_trace.view.counted import NotCounted
from rollout_trace.view.statistics import PERCENTS, Part, Statistics, Total
from rollout_trace.view.summary import GRADES, grade_of
from rollout_trace.view.table import Column, escape, in_columns, pad, width_of

_Form: TypeAlias = "Callable[[float | None], str]"
_LABEL = 12
_SHOWN = 8
"""Named rewards, models, ... that are shown."""


def lines_of(found: Statistics, left: NotCounted, width: int, *, plain: bool = False) -> Iterator[str]:
    """The lines, each at most ``width`` wide where its words allow it; ``plain``: charts in ASCII."""
    for label, text in _facts(found, left, plain=plain):
        yield from _wrapped(label, text, width)
    yield from _findings(found, width)
    if found.by is not None:
        yield ""
        yield from _parts(found, width, plain=plain)


def _facts(found: Statistics, left: NotCounted, *, plain: bool) -> Iterator[tuple[str, str]]:
    yield "trajectories", f"{found.trajectories:,}{_not_counted(left)}"
    if not found.trajectories:
        return
    sums, counts = found.sums, found.counts
    yield "status", _counts(found.statuses)
    for name, names in (("agents", found.found_in["agents"]), ("models", found.found_in["models"])):
        if len(names) > (name == "agents"):
            yield name, _counts(names)
    yield from _rewards(found, plain=plain)
    yield "steps", f"{found.steps:,} in {fmt.of(sums['calls'], 'call')}{_each(found.steps_each, fmt.number)}"
    more = _each(found.tokens_each, fmt.short)
    yield "tokens", f"{_total(found.input_tokens)} read, {_total(found.output_tokens)} sampled{more}"
    yield "cost", _cost(found)
    for label, values in (("time", found.seconds), ("latency", found.latency), ("first token", found.first_token)):
        if values.count:
            yield label, f"{_percentiles(values, fmt.seconds)}{_of_what(label, values)}"
    if sums["tool_runs"]:
        errors = f"{fmt.of(sums['tool_errors'], 'error')} ({fmt.percent(sums['tool_errors'], sums['tool_runs'])})"
        yield "tool runs", f"{sums['tool_runs']:,}, {errors}"
    share = fmt.percent(found.trained, sums["tokens"])
    together = f"{fmt.of(sums['rows'], 'row')}, {fmt.of(sums['tokens'], 'token')} together"
    yield "rows", f"{together}, {found.trained:,} of them trained on ({share})"
    if counts["left_out"]:
        yield "left out", f"steps: {_counts(counts['left_out'])}"
    as_text = counts["as_text"]
    if sums["exact"] or as_text:
        why = f", {as_text.total():,} as text: {_counts(as_text)}" if as_text else ""
        yield "exact turns", f"{fmt.of(sums['exact'], 'prompt')} sent as ids{why}"
    if counts["drift"]:
        yield "drift", f"{_counts(counts['drift'])} (in {fmt.trajectories(sums['drifted'])})"


def _not_counted(left: NotCounted) -> str:
    parts = [f"{fmt.of(len(left.attempts), 'earlier attempt')}"] if left.attempts else []
    parts += [f"{fmt.of(len(left.doubles), 'double')}"] if left.doubles else []
    return f" (not counted: {', '.join(parts)})" if parts else ""


def _rewards(found: Statistics, *, plain: bool) -> Iterator[tuple[str, str]]:
    if not found.reward.count:
        yield "reward", "no trajectory is scored"
        return
    missing = found.trajectories - found.reward.count
    yield "reward", _spread(found.reward) + (f", {missing:,} not scored" if missing else "")
    edges, counts = found.reward.histogram(20)
    if len(counts) > 1:
        yield "", f"{fmt.number(edges[0])} |{fmt.bars(counts, plain=plain)}| {fmt.number(edges[-1])}"
    for kind, named in (("reward", found.named["rewards"]), ("metric", found.named["metrics"])):
        for name, values in list(named.items())[:_SHOWN]:
            yield f"  {kind}", f"{escape(name)}: {_spread(values)}"
        if len(named) > _SHOWN:
            yield f"  {kind}", f"and {len(named) - _SHOWN} more; --json has them all"
    yield from _passes(found)


def _passes(found: Statistics) -> Iterator[tuple[str, str]]:
    at_k = found.passes.at_k()
    if not at_k:
        return
    groups = found.passes.groups
    every = f"{fmt.of(groups, 'group')}, reward >= {fmt.number(found.passes.threshold)}"
    for label, values in (("pass@k", [one.any for one in at_k]), ("pass^k", [one.all for one in at_k])):
        if label == "pass^k" and len(at_k) == 1:
            continue
        texts = [
            f"{one.k}: {value:.3f}" + ("" if one.groups == groups else f" (of {one.groups:,})")
            for one, value in zip(at_k, values, strict=True)
        ]
        yield label, f"{', '.join(texts)} ({every})" if label == "pass@k" else ", ".join(texts)


def _spread(values: Numbers) -> str:
    text = fmt.number(values.mean)
    if values.deviation is not None:
        text += f" ± {fmt.number(values.deviation)} (standard error {fmt.number(values.error)})"
    ends = f"min {fmt.number(values.low)}, median {fmt.number(values.percentile(50))}, max {fmt.number(values.high)}"
    return f"{text}, {ends}, of {values.count:,}"


def _each(values: Numbers, form: _Form) -> str:
    return f"; a trajectory: {_percentiles(values, form)}" if values.count else ""


def _percentiles(values: Numbers, form: _Form) -> str:
    texts = [form(value) for value in values.percentiles(PERCENTS)]
    named = (f"p{percent:.0f} {text}" for percent, text in zip(PERCENTS, texts, strict=True))
    return ", ".join([*named, f"max {form(values.high)}"])


def _of_what(label: str, values: Numbers) -> str:
    return f" ({fmt.trajectories(values.count) if label == 'time' else fmt.of(values.count, 'call')})"


def _total(total: Total) -> str:
    text = fmt.count(None if total.value is None else int(total.value))
    return f"{text} (and not known of {total.unknown:,})" if total.unknown else text


def _cost(part: Part) -> str:
    if not part.cost:
        return "not known"
    text = _amounts(part)
    return f"{text} (and not known of {part.without_cost:,})" if part.without_cost else text


def _amounts(part: Part) -> str:
    return " + ".join(fmt.money(amount, escape(currency)) for currency, amount in part.cost.items())


def _counts(values: Mapping[str, int]) -> str:
    ordered = sorted(values.items(), key=lambda item: -item[1])
    text = fmt.counts((escape(name), number) for name, number in ordered[:_SHOWN])
    return text if len(ordered) <= _SHOWN else f"{text}, and {len(ordered) - _SHOWN} more"


def _findings(found: Statistics, width: int) -> Iterator[str]:
    findings = found.counts["findings"]
    if not findings:
        return
    lines = [
        [grade, escape(code), f"{count:,}", f"{found.found_in['findings'][code]:,}"]
        for grade in GRADES
        for code, count in findings.most_common()
        if grade_of(code) == grade
    ]
    yield ""
    yield from in_columns(_FINDING_COLUMNS, lines, width)


def _right(**weights: int) -> tuple[Column, ...]:
    """Columns of numbers: their titles and weights."""
    return tuple(Column(title=title, is_right=True, weight=weight) for title, weight in weights.items())


_FINDING_COLUMNS = (
    Column(title="findings", weight=9),
    Column(title="code", weight=9),
    *_right(number=8, trajectories=7),
)


def _parts(found: Statistics, width: int, *, plain: bool) -> Iterator[str]:
    assert found.by is not None
    columns = (Column(title=found.by, least=10, weight=9), *_PART_COLUMNS)
    means = [part.reward.mean for part in found.parts.values() if part.reward.mean is not None]
    low, high = min(means, default=0.0), max(means, default=0.0)
    lines = [
        [escape(name), *_part_cells(part, min(low, 0.0), max(high, 1.0), plain=plain)]
        for name, part in found.parts.items()
    ]
    yield from in_columns(columns, lines, width)


_PART_COLUMNS = (
    *_right(runs=9, reward=9, std=7),
    Column(title="", most=10, weight=1),
    *_right(failed=6, steps=3, read=5, sampled=5, trained=2, cost=4, time=3, latency=4, fatal=6),
)


def _part_cells(part: Part, low: float, high: float, *, plain: bool) -> list[str]:
    mean = part.reward.mean
    share = 0.0 if mean is None or high <= low else (mean - low) / (high - low)
    return [
        f"{part.trajectories:,}",
        fmt.number(mean),
        fmt.number(part.reward.deviation),
        fmt.bar(share, 10, plain=plain),
        f"{part.statuses['failed']:,}",
        f"{part.steps:,}",
        fmt.short(part.input_tokens.value),
        fmt.short(part.output_tokens.value),
        fmt.short(part.trained),
        _amounts(part) or fmt.MISSING,
        fmt.seconds(part.seconds.percentile(50)),
        fmt.seconds(part.latency.percentile(50)),
        f"{part.grades['fatal']:,}",
    ]


def _wrapped(label: str, text: str, width: int) -> Iterator[str]:
    """A label and its text, which goes on below itself: after a comma, and inside a part that is wider than a line."""
    indent = " " * (_LABEL + 2)
    room = max(1, width - len(indent))
    parts = re.split("(?<=[,;]) ", text)
    pieces = [piece for part in parts for piece in ([part] if width_of(part) <= room else part.split(" "))]
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if width_of(lines[-1]) + 1 + width_of(piece) > room:
            lines.append(piece)
        else:
            lines[-1] += f" {piece}"
    for at, line in enumerate(lines):
        yield (indent if at else pad(label, _LABEL) + "  ") + line
