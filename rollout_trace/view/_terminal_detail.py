"""A step with everything that is recorded of it, in a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rollout_trace.view._canvas import Canvas
from rollout_trace.view._terminal_messages import INDENT, Messages
from rollout_trace.view._terminal_tokens import token_table
from rollout_trace.view.numbers import of
from rollout_trace.view.plain_text import clock, lines_of, money, one_line, seconds
from rollout_trace.view.styles import levels_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.view.model import StepView
    from rollout_trace.view.options import ShowOptions

_MODES = {
    "raw": "of the model, at temperature 1",
    "processed": "after temperature, top-p and the like",
    "constrained": "among the tokens that a grammar allowed",
}
_ROWS = 200
"""Lines of the table of tokens, unless everything is shown."""


def show_detail(canvas: Canvas, step: StepView, messages: Messages, options: ShowOptions) -> None:
    """Prints what ``show_step`` leaves out: where it came from, sampling, usage, attempts, metadata, and its tokens."""
    canvas.blank()
    canvas.line("recorded", style="title")
    for name, value in _facts(step).items():
        if value is not None:
            messages.text(canvas, value, indent=INDENT, lead=Text(f"{name}: ", "meta"))
    for name in ("sampling", "usage", "metadata"):
        _show_mapping(canvas, name, getattr(step, name), messages)
    if step.attempts:
        canvas.line("attempts", style="title")
        for attempt in step.attempts:
            status = "no answer" if attempt.status is None else f"HTTP {attempt.status}"
            error = "" if attempt.error is None else f" · {one_line(attempt.error)}"
            canvas.line(f"{clock(attempt.started)} · {status} · {seconds(attempt.duration)}{error}", indent=INDENT)
    if step.tokens is not None and step.tokens.n:
        _show_tokens(canvas, step, options)


def _facts(step: StepView) -> dict[str, str | None]:
    line = step.line
    return {
        "id": line.id,
        "call": line.call_id,
        "answer's id": step.response_id,
        "protocol": step.protocol,
        "engine": step.engine,
        "model": line.model,
        "model that answered": step.response_model,
        "stop reason": step.stop_reason,
        "tools offered": ", ".join(map(one_line, step.offered)) or None,
        "messages repeated from earlier steps": str(step.repeated) if step.repeated else None,
        "cost": None if step.cost is None else money(step.cost, step.currency),
        "advantage": None if step.advantage is None else f"{step.advantage:g}",
        "policy version": step.policy_version,
        "token ids from": step.token_source,
        "logprobs": None if step.logprobs_mode is None else _mode(step.logprobs_mode),
        "token issue": step.token_issue,
        "prompt": step.exact_turn,
        "bytes kept": "yes (--raw prints them)" if step.has_bytes else None,
    }


def _mode(mode: str) -> str:
    return f"{mode} ({_MODES[mode]})" if mode in _MODES else mode


def _show_mapping(canvas: Canvas, title: str, values: Mapping[str, Any] | None, messages: Messages) -> None:
    if not values:
        return
    canvas.line(title, style="title")
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        messages.text(canvas, text, indent=INDENT, lead=Text(f"{one_line(name)}: ", "meta"))


def _show_tokens(canvas: Canvas, step: StepView, options: ShowOptions) -> None:
    tokens = step.tokens
    assert tokens is not None
    color_by = options.color_by if levels_of(tokens, options.color_by) else "logprob"
    limit = None if options.full or tokens.n <= _ROWS else _ROWS
    canvas.line(Text.assemble(("tokens", "title"), f" {tokens.n:,}"))
    canvas.flush()
    canvas.console.print(token_table(tokens, begin=step.line.begin, color_by=color_by, limit=limit))
    if limit is not None:
        canvas.line(f"... {of(tokens.n - limit, 'more token')}; --full shows all", style="meta")


def show_raw(canvas: Canvas, step: Step, record: Mapping[str, Any] | None) -> None:
    """Prints the bytes of a step's request and answer; where they are not kept, its JSON in the file.

    Args:
        canvas: what it is printed on.
        step: the step.
        record: its JSON; None where it is not from a file.
    """
    kept = {"request": step.request_bytes, "answer": step.response_bytes}
    canvas.rule(Text(f"step {step.index}, as it was recorded", "title"))
    if all(data is None for data in kept.values()):
        canvas.line("Its bytes were not kept; this is the step as the file has it.", style="meta")
        for name, value in (record or {}).items():
            canvas.unwrapped(lines_of(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"))
        return
    for name, data in kept.items():
        if data is not None:
            canvas.line(f"{name}, {of(len(data), 'byte')}", style="title")
            canvas.unwrapped(lines_of(data.decode("utf-8", "backslashreplace")))
