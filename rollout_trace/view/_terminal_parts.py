"""Parts of a trajectory in a terminal: what stands above its conversation, and messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.train.check_codes import CODES
from rollout_trace.view import _canvas
from rollout_trace.view._canvas import Canvas, joined
from rollout_trace.view.model import Message, Outline, Part, Summary, ToolRunView
from rollout_trace.view.numbers import of, size
from rollout_trace.view.plain_text import clock, cut, lines_of, money, one_line, seconds, short

GRADE_STYLES = {"fatal": "error", "warning": "warning", "info": "info"}
_GOOD = ("completed", "running")
_METADATA = 8
"""Names of metadata, at most."""

INDENT = 2
_LEADS = {"reasoning": ("thinks: ", "meta"), "refusal": ("refuses: ", "warning"), "json": ("json: ", "meta")}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


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


def _summary_lines(one: Summary) -> Iterator[list[_canvas.Part]]:
    if one.forked_from is not None:
        yield [f"forked from {one_line(one.forked_from)} at step {one.fork_step}"]
    yield [_named(name, value) for name, value in {**(one.rewards or {}), **(one.metrics or {})}.items()]
    tokens = None
    if one.input_tokens is not None or one.output_tokens is not None:
        tokens = f"{number(one.input_tokens)} tokens in, {number(one.output_tokens)} out"
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


def _training(one: Summary) -> list[_canvas.Part]:
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


def number(value: int | None) -> str:
    """A number, ``?`` where it is not known."""
    return "?" if value is None else f"{value:,}"


# Messages


class Messages:
    """Prints messages. A tool's result is shown once: at its run if that was recorded, else where the model read it."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._results: dict[str, str | None] = {}
        """By id of a tool call: the result that its run has shown."""
        self._names: dict[str, str] = {}
        """By id of a tool call: the tool."""
        self.first_with: dict[str, int] = {}
        """By the sentence of a finding: the step that has shown it."""

    def show(self, canvas: Canvas, messages: Sequence[Message]) -> None:
        """Prints the messages of a request."""
        for message in messages:
            if not self._was_shown(message):
                self._show(canvas, message)

    def _was_shown(self, message: Message) -> bool:
        if message.role != "tool" or message.tool_call_id is None or any(one.kind != "text" for one in message.parts):
            return False
        result = self._results.get(message.tool_call_id)
        return result is not None and result == "".join(part.text for part in message.parts)

    def _show(self, canvas: Canvas, message: Message) -> None:
        name = message.name
        if name is None and message.tool_call_id is not None:
            name = self._names.get(message.tool_call_id)
        self.role(canvas, message.role, name)
        for part in message.parts:
            self.part(canvas, part)
            if part.kind == "tool_call":
                self._remember(part)

    def role(self, canvas: Canvas, role: str, name: str | None = None) -> None:
        """Prints the line above what somebody says."""
        title = Text(one_line(role), _ROLES.get(role, "title"))
        canvas.line(joined([title, None if name is None else (short(name), "meta")]))

    def answer(self, canvas: Canvas, message: Message, runs: Sequence[ToolRunView]) -> None:
        """Prints an answer, with the runs of the tools that it calls."""
        self.role(canvas, message.role, message.name)
        self.parts(canvas, message.parts, runs)

    def parts(self, canvas: Canvas, parts: Sequence[Part], runs: Sequence[ToolRunView]) -> None:
        """Prints parts of an answer, the run of a tool call below it, and the other runs at the end."""
        left = list(runs)
        for part in parts:
            self.part(canvas, part)
            if part.kind == "tool_call":
                self._remember(part)
                for run in [one for one in left if one.tool_call_id is not None and one.tool_call_id == part.id]:
                    left.remove(run)
                    self.run(canvas, run, is_named=False)
        for run in left:
            self.run(canvas, run, is_named=True)

    def _remember(self, part: Part) -> None:
        if part.id is not None and part.name is not None:
            self._names[part.id] = part.name

    def part(self, canvas: Canvas, part: Part) -> None:
        """Prints a part of a message."""
        if part.kind in ("image", "audio", "file"):
            # A data: address is the picture itself; its beginning says what it is.
            what = f"[{part.kind}{f' {short(part.name)}' if part.name else ''}] "
            canvas.line(Text.assemble((what, "meta"), short(part.text, 80)), indent=INDENT)
            return
        lead = Text(*_LEADS.get(part.kind, ("", "")))
        if part.kind == "tool_call":
            lead = Text.assemble(("→ ", "tool"), (short(part.name or "?"), "tool"), " ")
        style = "reasoning" if part.kind == "reasoning" else ""
        self.text(canvas, part.text, indent=INDENT, lead=lead, style=style)

    def run(self, canvas: Canvas, run: ToolRunView, *, is_named: bool) -> None:
        """Prints a run of a tool: its result or its error, and how long it took."""
        took = f"({seconds(run.duration)})" if run.duration is not None else ""
        name = f"{short(run.name or '?')} " if is_named else ""
        if run.error is not None:
            lead = Text.assemble(("← ", "tool"), (f"{name}failed ", "error"), (f"{took} " if took else "", "meta"))
            self.text(canvas, run.error, indent=INDENT, lead=lead)
        if run.result is not None:
            lead = Text.assemble(("← ", "tool"), (name, "tool"), (f"{took} " if took else "", "meta"))
            self.text(canvas, run.result, indent=INDENT, lead=lead)
        elif run.error is None:
            canvas.line(Text.assemble(("← ", "tool"), (f"{name}no result recorded {took}", "meta")), indent=INDENT)
        if run.tool_call_id is not None:
            self._results[run.tool_call_id] = run.result
            if run.name is not None:
                self._names[run.tool_call_id] = run.name

    def text(self, canvas: Canvas, text: str, *, indent: int = 0, lead: Text | str = "", style: str = "") -> None:
        """Prints a text as it was written, cut where it is long."""
        shown, left_out = cut(text, self._limit)
        lines = lines_of(shown)
        # A line end at the end of a text, as files have it, begins no line.
        canvas.lines(lines[:-1] if len(lines) > 1 and not lines[-1] else lines, indent=indent, lead=lead, style=style)
        if left_out:
            canvas.line(f"... {of(left_out, 'more character')}", style="meta", indent=indent)
