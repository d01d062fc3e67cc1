"""Differences in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from rollout_trace.view._canvas import Canvas
from rollout_trace.view._terminal_parts import Messages
from rollout_trace.view.difference import (
    MessageDifference,
    StepDifference,
    TokenDifference,
    TrajectoryDifference,
    ValueDifference,
)
from rollout_trace.view.numbers import of
from rollout_trace.view.plain_text import lines_of, one_line, short

_INDENT = 2
_A, _B = "warning", "info"
_VALUES = 20
"""Values that are listed, unless everything is shown."""


def show_difference(
    console: Console, found: TrajectoryDifference, names: tuple[str, str], *, full: bool = False
) -> None:
    """Prints how two trajectories, of these names, differ; ``full``: long texts and lists whole."""
    canvas = Canvas(console)
    _show(canvas, found, names, full=full)
    canvas.flush()


def _show(canvas: Canvas, found: TrajectoryDifference, names: tuple[str, str], *, full: bool) -> None:
    for side, name, style in (("a", names[0], _A), ("b", names[1], _B)):
        canvas.line(one_line(name), lead=Text(f"{side}: ", style))
    if found.fork:
        canvas.blank()
        canvas.line("fork", style="title")
        for line in found.fork:
            canvas.line(one_line(line), indent=_INDENT)
    if found.equal:
        canvas.line(f"They are equal: {of(found.n_a, 'step')}.", style="title")
        return
    _show_values(canvas, "results", found.results, full=full)
    _show_values(canvas, "settings", found.settings, full=full)
    canvas.blank()
    same = "the same number of steps" if found.n_a == found.n_b else f"{found.n_a:,} steps in a, {found.n_b:,} in b"
    differ = f"{found.differing_steps:,} of {max(found.n_a, found.n_b):,} differ"
    canvas.line(f"steps: {same}; {differ if found.differing_steps else 'they are equal'}")
    if found.first is not None:
        _show_step(canvas, found.first, Messages(None if full else 2000))


def _show_values(canvas: Canvas, title: str, values: Sequence[ValueDifference], *, full: bool) -> None:
    if not values:
        return
    canvas.blank()
    canvas.line(title, style="title")
    for one in values if full else values[:_VALUES]:
        at = "" if one.step is None else f" (from step {one.step})"
        shown = Text.assemble((_value(one.a, full), _A), (" → ", "meta"), (_value(one.b, full), _B), (at, "meta"))
        canvas.line(shown, indent=_INDENT, lead=Text(f"{short(one.name, 80)}: ", "meta"))
    if not full and len(values) > _VALUES:
        canvas.line(f"... {of(len(values) - _VALUES, 'more value')}; --full shows all", style="meta", indent=_INDENT)


def _value(value: Any, full: bool) -> str:
    return "-" if value is None else short(value, 100_000 if full else 200)


def _show_step(canvas: Canvas, step: StepDifference, messages: Messages) -> None:
    canvas.blank()
    canvas.rule(Text.assemble(("first difference: ", ""), (f"step {step.index}", "title"), f", {', '.join(step.what)}"))
    for title, message in (("message", step.messages), ("answer", step.answer)):
        if message is not None:
            _show_messages(canvas, title, message, messages)
    for title, token in (("of the prompt", step.prompt), ("of the completion", step.tokens)):
        if token is not None:
            _show_tokens(canvas, title, token)
    if step.logprobs is not None:
        canvas.line(f"logprobs of the same tokens are up to {step.logprobs:.4g} apart")


def _show_messages(canvas: Canvas, title: str, found: MessageDifference, messages: Messages) -> None:
    for side, message, style in (("a", found.a, _A), ("b", found.b, _B)):
        canvas.line(f"{title} in {side}:" if message is not None else f"no such {title} in {side}", style=style)
        if message is not None:
            messages.answer(canvas, message, [])


def _show_tokens(canvas: Canvas, title: str, token: TokenDifference) -> None:
    canvas.line(f"token {token.position:,} {title} is the first that differs", style="title")
    if token.before is not None:
        canvas.lines(lines_of(token.before), indent=_INDENT, lead=Text("both: ", "meta"))
    for side, text, ids, style in (("a", token.a_text, token.a_ids, _A), ("b", token.b_text, token.b_ids, _B)):
        if text is not None and ids:
            canvas.lines(lines_of(text), indent=_INDENT, lead=Text(f"{side}: ", style))
        shown = " ".join(map(str, ids)) if ids else "ends here"
        canvas.line(shown, indent=_INDENT, lead=Text(f"{side}{'' if text is None else ' ids'}: ", style))
