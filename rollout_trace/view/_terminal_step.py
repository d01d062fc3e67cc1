"""A step in a terminal: what opens it, what is new in its request, its answer, findings, and all that is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from rollout_trace.data.model import CUT_OFF, Step
from rollout_trace.view._canvas import Canvas, Part, joined
from rollout_trace.view._terminal_parts import GRADE_STYLES, INDENT, Messages, number
from rollout_trace.view._terminal_tokens import token_table, token_text
from rollout_trace.view.model import DriftView, FindingView, StepLine, StepView, Tokens
from rollout_trace.view.numbers import of
from rollout_trace.view.plain_text import clock, lines_of, money, one_line, seconds, short
from rollout_trace.view.styles import ShowOptions, has_colors, levels_of

_IDS = 16
"""Token ids of each side of a drift, at most."""

_MODES = {
    "raw": "of the model, at temperature 1",
    "processed": "after temperature, top-p and the like",
    "constrained": "among the tokens that a grammar allowed",
}
_UNKNOWN = {
    "logprob": "no logprobs are recorded for these tokens",
    "ratio": "no logprobs of a trainer are noted for these tokens",
    "entropy": "no alternatives are recorded for these tokens, so their entropy is not known",
}
_ROWS = 200
"""Lines of the table of tokens, unless everything is shown."""


def show_step(
    canvas: Canvas, step: StepView, before: StepLine | None, messages: Messages, options: ShowOptions, name: str
) -> None:
    """Prints a step. ``before``: the line of the step before it; ``name``: an agent other than this is named."""
    line = step.line
    canvas.blank()
    canvas.rule(_title(step, before, name))
    canvas.facts([*_facts(step), *_training(step)])
    if step.drift is not None:
        _show_drift(canvas, step.drift, messages)
    if step.shown_by is not None and step.new and step.repeated:
        canvas.line(f"begins with {of(step.repeated, 'message')} of step {step.shown_by}", style="meta")
    messages.show(canvas, step.new)
    for at, attempt in enumerate(step.attempts):
        if len(step.attempts) > 1 or attempt.error is not None:
            status = "no answer" if attempt.status is None else f"HTTP {attempt.status}"
            shown = joined([f"{at + 1} of {len(step.attempts)}", status, seconds(attempt.duration)])
            canvas.line(shown, lead=Text("attempt ", "meta"))
            if attempt.error is not None and attempt.error != step.error:
                messages.text(canvas, attempt.error, indent=INDENT)
    _show_answer(canvas, step, messages, options)
    if step.error is not None:
        messages.text(canvas, step.error, lead=Text("error: ", "error"))
    for finding in step.findings:
        show_finding(canvas, finding, messages.first_with.setdefault(finding.message, line.index))


def _title(step: StepView, before: StepLine | None, name: str) -> Text:
    line = step.line
    return joined(
        [
            (f"step {line.index}", "title"),
            None if line.agent in (None, name) else short(line.agent),
            None if line.status == "ok" else (one_line(line.status), "error"),
            *((place, "warning") for place in ([] if before is None else _places(step, before))),
        ]
    )


def _places(step: StepView, before: StepLine) -> Iterator[str]:
    """Where its request comes from, if not from the step before."""
    line = step.line
    has_own = step.shown_by is None or bool(step.new)
    if line.thread != before.thread:
        yield f"conversation {line.thread}{' begins' if has_own and line.continues is None else ''}"
    if line.call_id == before.call_id:
        yield f"another choice of the call of step {before.index}"
    elif not has_own:
        yield f"the same prompt as step {step.shown_by}"
    elif line.continues is None:
        if line.thread == before.thread:
            yield "begins anew"
    elif line.continues != before.index:
        yield f"continues step {line.continues}"


def _facts(step: StepView) -> Iterator[Part]:
    line = step.line
    if line.started is not None:
        yield (clock(line.started), "meta")
    if line.latency is not None:
        first = "" if line.first_token is None else f", first token after {seconds(line.first_token)}"
        yield (f"{seconds(line.latency)}{first}", "meta")
    if line.n_prompt is not None or line.n_completion is not None:
        yield (f"{number(line.n_prompt)} → {number(line.n_completion)} tokens", "meta")
    if line.finish is not None:
        yield (one_line(line.finish), "warning" if line.finish in CUT_OFF else "meta")
    if len(step.attempts) > 1:
        yield (of(len(step.attempts), "attempt"), "warning")
    if line.reward is not None:
        yield f"reward {line.reward:g}"
    if step.policy_version is not None:
        yield (f"policy {short(step.policy_version)}", "meta")


def _training(step: StepView) -> Iterator[Part]:
    line = step.line
    if line.row is not None and line.begin is not None:
        yield (f"training row {line.row}, from token {line.begin:,}", "meta")
    elif line.left_out is not None:
        yield (f"in no training row: {one_line(line.left_out)}", "warning")
    if step.token_issue is not None:
        yield (short(step.token_issue, 300), "warning")
    if step.exact_turn is not None:
        yield (short(step.exact_turn, 300), "meta")


def _show_answer(canvas: Canvas, step: StepView, messages: Messages, options: ShowOptions) -> None:
    role = "assistant" if step.answer is None else step.answer.role
    parts = [] if step.answer is None else step.answer.parts
    if not options.tokens or step.tokens is None or not step.tokens.n:
        if parts or step.tool_runs:
            messages.role(canvas, role)
            messages.parts(canvas, parts, step.tool_runs)
        return
    messages.role(canvas, role)
    if step.tokens.texts is None:
        # Ids say little to people: the text as well.
        messages.parts(canvas, parts, step.tool_runs)
        _show_tokens(canvas, step.tokens, step, options, lead=Text("ids: ", "meta"))
        return
    # Reasoning has no tokens where an engine sends those of the content alone.
    sampled = "".join(step.tokens.texts)
    others = [part for part in parts if part.kind == "tool_call" or part.text.strip() not in sampled]
    messages.parts(canvas, [part for part in others if part.kind == "reasoning"], [])
    _show_tokens(canvas, step.tokens, step, options)
    messages.parts(canvas, [part for part in others if part.kind != "reasoning"], step.tool_runs)


def _show_tokens(canvas: Canvas, tokens: Tokens, step: StepView, options: ShowOptions, lead: Text | str = "") -> None:
    limit = options.token_limit
    if limit is not None and tokens.n <= limit + limit // 10:
        limit = None
    shown = token_text(
        tokens,
        color_by=options.color_by,
        colors=has_colors(canvas.console),
        left_out=step.line.row is None,
        limit=limit,
    )
    canvas.line(shown, indent=INDENT, lead=lead)
    if limit is not None and tokens.n > limit:
        canvas.line(f"... {of(tokens.n - limit, 'more token')}", style="meta", indent=INDENT)
    if options.color_by in _UNKNOWN and levels_of(tokens, options.color_by) is None:
        canvas.line(_UNKNOWN[options.color_by], style="meta", indent=INDENT)


def _show_drift(canvas: Canvas, drift: DriftView, messages: Messages) -> None:
    what = f"drift ({one_line(drift.kind)}) at token {drift.position:,} of the prompt, against step {drift.previous}"
    canvas.line(Text(f"{what}: {short(drift.meaning, 300)}" if drift.meaning else what, "warning"))
    for name, ids, text in (
        ("expected", drift.expected, drift.expected_text),
        ("found", drift.found, drift.found_text),
    ):
        more = f" and {len(ids) - _IDS:,} more" if len(ids) > _IDS else ""
        shown = f"{' '.join(map(str, ids[:_IDS]))}{more}"
        canvas.line(shown, indent=INDENT, lead=Text(f"{name}: ", "meta"))
        if text is not None:
            messages.text(canvas, text, indent=2 * INDENT)


def show_finding(canvas: Canvas, finding: FindingView, first: int | None = None) -> None:
    """Prints a finding: grade, code and sentence, which is not repeated where the step ``first`` has shown it."""
    place = "" if finding.position is None else f" at token {finding.position:,}"
    lead = Text(f"{finding.grade}: {one_line(finding.code)}{place}", GRADE_STYLES[finding.grade])
    if first is not None and first != finding.step:
        canvas.line(Text.assemble(lead, (f" (as in step {first})", "meta")))
        return
    canvas.line(Text.assemble(lead, ": ", " ".join(lines_of(finding.message))))


# Everything that is recorded of it


def show_detail(canvas: Canvas, step: StepView, messages: Messages, options: ShowOptions) -> None:
    """Prints what ``show_step`` leaves out: where it came from, sampling, usage, attempts, metadata, and its tokens."""
    canvas.blank()
    canvas.line("recorded", style="title")
    for name, value in _recorded(step).items():
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
        _show_table(canvas, step, options)


def _recorded(step: StepView) -> dict[str, str | None]:
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


def _show_table(canvas: Canvas, step: StepView, options: ShowOptions) -> None:
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
    """Prints the bytes of a step's request and answer; where they are not kept, its JSON in the file."""
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
