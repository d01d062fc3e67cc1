"""What stands above a conversation: which trajectory it is, how it ended, what it cost, what training gets of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rollout_trace.train.check_codes import CODES
from rollout_trace.view._canvas import Canvas, Part, joined
from rollout_trace.view.numbers import of, size
from rollout_trace.view.plain_text import clock, lines_of, money, one_line, seconds, short

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view.model import Outline, Summary

GRADE_STYLES = {"fatal": "error", "warning": "warning", "info": "info"}
_GOOD = ("completed", "running")
_METADATA = 8
"""Names of metadata, at most."""


def show_title(canvas: Canvas, name: str, identity: str, place: str | None = None) -> None:
    """The line that opens a trajectory."""
    more = None if place is None else (place, "meta")
    canvas.rule(joined([(one_line(name), "title"), (one_line(identity), "meta"), more]), heavy=True)


def show_identity(canvas: Canvas, trajectory: Trajectory) -> None:
    """The line below it: what is known before anything of the trajectory is computed."""
    status = "" if trajectory.status in _GOOD else "error"
    canvas.facts(
        [
            (one_line(trajectory.status), status),
            "no reward" if trajectory.reward is None else (f"reward {trajectory.reward:g}", "title"),
            None if trajectory.task is None or trajectory.task.id is None else _named("task", trajectory.task.id),
            None if trajectory.group_id is None else _named("group", trajectory.group_id),
            None if trajectory.rollout_index is None else f"rollout {trajectory.rollout_index}",
        ]
    )


def show_summary(canvas: Canvas, one: Summary, metadata: Mapping[str, Any] | None) -> None:
    """The lines below: counts, cost, times, rows, findings, notes and the error."""
    for parts in _summary_lines(one):
        canvas.facts(parts)
    if one.findings:
        found = [
            (f"{one_line(code)}{f' ×{number:,}' if number > 1 else ''}", _style_of(code))
            for code, number in one.findings.items()
        ]
        canvas.facts(found, lead=Text("findings: ", "meta"))
    for name, style in (("note", "title"), ("stop_reason", ""), ("error", "error")):
        value = getattr(one, name)
        if value is not None:
            canvas.lines(lines_of(value), style=style, lead=Text(f"{name.replace('_', ' ')}: ", "meta"))
    others = {name: value for name, value in (metadata or {}).items() if name != "note"}
    if others:
        shown = [_named(str(name), value) for name, value in list(others.items())[:_METADATA]]
        more = len(others) - len(shown)
        canvas.facts([*shown, of(more, "more name") if more else None], lead=Text("metadata: ", "meta"))


def show_exchanges(canvas: Canvas, outline: Outline) -> None:
    """The line of a cassette: what it holds to be replayed."""
    if outline.exchanges:
        canvas.facts([of(outline.exchanges, "exchange"), size(outline.exchange_bytes)])


def _summary_lines(one: Summary) -> Iterator[list[Part]]:
    yield [_named(name, value) for name, value in {**(one.rewards or {}), **(one.metrics or {})}.items()]
    tokens = None
    if one.input_tokens is not None or one.output_tokens is not None:
        tokens = f"{_number(one.input_tokens)} tokens in, {_number(one.output_tokens)} out"
    errors = f", {of(one.tool_errors, 'error')}" if one.tool_errors else ""
    yield [
        of(one.steps, "step"),
        None if one.calls == one.steps else of(one.calls, "call"),
        of(one.tool_runs, "tool run") + errors if one.tool_runs else None,
        tokens,
        None if one.cost is None else money(one.cost, one.currency),
    ]
    yield [
        None if one.started is None else clock(one.started, date=True),
        None if one.seconds is None else f"took {seconds(one.seconds)}",
        None if one.latency is None else f"calls {seconds(one.latency)}",
        None if one.first_token is None else f"first token after {seconds(one.first_token)}",
        None if one.attempt is None else f"attempt {one.attempt}",
    ]
    yield [
        None if not one.models else _named("model", ", ".join(one.models)),
        None if one.agents in ([], [one.name]) else _named("agents", ", ".join(one.agents)),
    ]
    yield _training(one)


def _training(one: Summary) -> list[Part]:
    if one.rows:
        rows = f"{of(one.rows, 'training row')} of {of(one.tokens, 'token')}, {one.trained:,} trained on"
    else:
        rows = "no training row"
    left_out = ", ".join(f"{number:,} {one_line(reason)}" for reason, number in one.left_out.items())
    drift = ", ".join(f"{number:,} {one_line(kind)}" for kind, number in one.drift.items())
    return [
        rows,
        (f"steps left out: {left_out}", "warning") if left_out else None,
        (f"drift: {drift}", "warning") if drift else None,
    ]


def _style_of(code: str) -> str:
    return GRADE_STYLES[CODES[code][0]] if code in CODES else "warning"


def _named(name: str, value: Any) -> Text:
    return Text.assemble((f"{one_line(name)} ", "meta"), short(value, 120))


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
