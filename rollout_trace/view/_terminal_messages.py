"""Messages in a terminal: a line with the role, and what was said below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from rollout_trace.view._canvas import Canvas, joined
from rollout_trace.view.numbers import of
from rollout_trace.view.plain_text import cut, lines_of, one_line, seconds, short

if TYPE_CHECKING:
    from rollout_trace.view.model import Message, Part, ToolRunView

INDENT = 2
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class Messages:
    """Prints messages. A tool's result is shown once: at its run where one was recorded, else where the model read it.

    Args:
        limit: characters of a text that are shown; None: all.
    """

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
        _PARTS.get(part.kind, Messages._text)(self, canvas, part)

    def _text(self, canvas: Canvas, part: Part) -> None:
        self.text(canvas, part.text, indent=INDENT)

    def _reasoning(self, canvas: Canvas, part: Part) -> None:
        self.text(canvas, part.text, indent=INDENT, lead=Text("thinks: ", "meta"), style="reasoning")

    def _refusal(self, canvas: Canvas, part: Part) -> None:
        self.text(canvas, part.text, indent=INDENT, lead=Text("refuses: ", "warning"))

    def _call(self, canvas: Canvas, part: Part) -> None:
        lead = Text.assemble(("→ ", "tool"), (short(part.name or "?"), "tool"), " ")
        self.text(canvas, part.text, indent=INDENT, lead=lead)

    def _media(self, canvas: Canvas, part: Part) -> None:
        # A data: address is the picture itself; its beginning says what it is.
        what = f"[{part.kind}{f' {short(part.name)}' if part.name else ''}] "
        canvas.line(Text.assemble((what, "meta"), short(part.text, 80)), indent=INDENT)

    def _json(self, canvas: Canvas, part: Part) -> None:
        self.text(canvas, part.text, indent=INDENT, lead=Text("json: ", "meta"))

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


_PARTS: dict[str, Callable[[Messages, Canvas, Part], None]] = {
    "reasoning": Messages._reasoning,
    "refusal": Messages._refusal,
    "tool_call": Messages._call,
    "image": Messages._media,
    "audio": Messages._media,
    "file": Messages._media,
    "json": Messages._json,
}
