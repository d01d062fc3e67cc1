"""A step in a terminal: the line that opens it, what is new in its request, its answer, and what was found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rollout_trace.view._canvas import Canvas, Part, joined
from rollout_trace.view._terminal_head import GRADE_STYLES
from rollout_trace.view._terminal_messages import INDENT, Messages
from rollout_trace.view._terminal_tokens import token_text
from rollout_trace.view.numbers import of
from rollout_trace.view.plain_text import clock, lines_of, one_line, seconds, short
from rollout_trace.view.styles import has_colors

if TYPE_CHECKING:
    from rollout_trace.view.model import DriftView, FindingView, StepLine, StepView, Tokens
    from rollout_trace.view.options import ShowOptions

_IDS = 16
"""Token ids of each side of a drift, at most."""


def show_step(
    canvas: Canvas, step: StepView, before: StepLine | None, messages: Messages, options: ShowOptions, name: str
) -> None:
    """Prints a step.

    Args:
        canvas: what it is printed on.
        step: the step.
        before: the line of the step before it.
        messages: prints its messages; the same one for all steps of a trajectory.
        options: what of it is shown.
        name: of the trajectory: an agent of another name is named.
    """
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
        yield (f"{_number(line.n_prompt)} → {_number(line.n_completion)} tokens", "meta")
    if line.finish is not None:
        cut_off = line.finish in ("length", "max_tokens", "max_output_tokens", "MAX_TOKENS")
        yield (one_line(line.finish), "warning" if cut_off else "meta")
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
    if options.color_by == "logprob" and tokens.logprobs is None:
        canvas.line("no logprobs are recorded of these tokens", style="meta", indent=INDENT)
    if options.color_by == "entropy" and tokens.entropy is None:
        canvas.line("no alternatives are recorded of these tokens, so no entropy", style="meta", indent=INDENT)


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
    """Prints a finding: its grade, its code, and its sentence.

    Args:
        canvas: what it is printed on.
        finding: the finding.
        first: index of the step that has shown the sentence first; it is not repeated at the others.
    """
    place = "" if finding.position is None else f" at token {finding.position:,}"
    lead = Text(f"{finding.grade}: {one_line(finding.code)}{place}", GRADE_STYLES[finding.grade])
    if first is not None and first != finding.step:
        canvas.line(Text.assemble(lead, (f" (as in step {first})", "meta")))
        return
    canvas.line(Text.assemble(lead, ": ", " ".join(lines_of(finding.message))))


def _number(value: Any) -> str:
    return "?" if value is None else f"{value:,}"
