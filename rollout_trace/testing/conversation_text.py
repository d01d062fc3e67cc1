"""A conversation in short, as text: what a failed test shows of the trajectories that it is about."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rollout_trace import credentials
from rollout_trace.data.trajectory import Trajectory, with_values
from rollout_trace.guard import SPACES, escaped
from rollout_trace.record.call_steps import link_tool_runs
from rollout_trace.view.model import Message, Part, StepView, Summary, ToolRunView
from rollout_trace.view.numbers import of, size
from rollout_trace.view.plain_text import short
from rollout_trace.view.trajectory_view import TrajectoryView

from ._differences import Paint, painted

_GUTTER = 14
"""Columns before what is said: the number of the step, and the role."""
_LEAST = 24
"""Columns that a text has, however narrow the terminal is."""
_MORE = 20
"""Columns for what says how much was left out."""
_LINES = {"system": 1, "developer": 1, "tool": 2, "user": 3, "assistant": 4}
"""Lines that a text of each role has at most."""
_ROLE_STYLES = {"assistant": "bold", "tool": "cyan", "user": "bold", "system": "dim", "developer": "dim"}


def conversation_text(
    trajectories: Sequence[Trajectory], *, width: int = 100, paint: Paint | None = None, most_lines: int = 40
) -> str:
    """A short conversation: who said what, tool calls and their results, how each answer ended, errors, drift.

    Texts are cut, and control characters in them escaped. Where it is longer than ``most_lines``, lines in the middle
    are left out: how it began and how it ended are shown.
    """
    share = max(4, most_lines // max(1, len(trajectories)))
    lines: list[str] = []
    for at, trajectory in enumerate(trajectories):
        if at and len(lines) + 4 > most_lines:
            rest = f"... and {of(len(trajectories) - at, 'more trajectory', 'more trajectories')}"
            lines.append(painted(rest, "dim", paint))
            break
        lines += _cut(_Picture(trajectory, width, paint).lines(), share, paint)
    return "\n".join(lines)


def snapshot(trajectory: Trajectory) -> Trajectory:
    """Copies a trajectory's current state; nothing is recorded into the copy."""
    values = {"steps": list(trajectory.steps), "tool_runs": [replace(run) for run in trajectory.tool_runs]}
    # Without the environment, which takes up to 50 ms to collect.
    copied = with_values(trajectory, {**values, "environment": None, "_recorder": None, "_children": []})
    link_tool_runs(copied)
    return copied


def one_line(text: str) -> str:
    """A text in one line, without control characters and without the keys of this process's clients."""
    return escaped(" ".join(credentials.cut(text).split()), SPACES)


def _cut(lines: list[str], most: int, paint: Paint | None) -> list[str]:
    if len(lines) <= most:
        return lines
    # The end says most about a failure.
    begin = max(2, most // 3)
    end = max(1, most - begin - 1)
    left_out = painted(f"{'':{_GUTTER}}... {of(len(lines) - begin - end, 'more line')}", "dim", paint)
    return [*lines[:begin], left_out, *lines[-end:]]


class _Picture:
    """The lines of one trajectory."""

    def __init__(self, trajectory: Trajectory, width: int, paint: Paint | None) -> None:
        self._view = TrajectoryView(snapshot(trajectory))
        self._room = max(_LEAST, width - _GUTTER)
        self._paint = paint
        self._names: dict[str, str] = {}
        """By id of a tool call: the tool."""
        self._read = {
            message.tool_call_id
            for step in self._view.steps(tokens=False)
            for message in step.new
            if message.tool_call_id is not None
        }
        """Ids of the tool calls whose results a request has."""

    def lines(self) -> list[str]:
        """All lines of the trajectory."""
        summary = self._view.summary
        error = [] if summary.error is None else self._text("", "error", summary.error, "red")
        return [self._head(summary), *self._body(), *error]

    def _head(self, summary: Summary) -> str:
        parts = [of(summary.steps, "step"), one_line(summary.status)]
        if summary.reward is not None:
            parts.append(f"reward {summary.reward:g}")
        title = short(summary.name, self._room)
        facts = short(", ".join(parts), max(3, self._room + _GUTTER - len(title) - 2))
        return f"{painted(title, 'bold', self._paint)}  {painted(facts, 'dim', self._paint)}"

    def _body(self) -> Iterator[str]:
        for step in self._view.steps(tokens=False):
            yield from self._place(step)
            for message in step.new:
                yield from self._message(message)
            yield from self._answer(step)
        if not self._view.trajectory.steps:
            yield self._line("", "", "no call to a model was recorded", "dim")

    def _place(self, step: StepView) -> Iterator[str]:
        line, drift = step.line, step.drift
        if drift is not None:
            what = f"drift ({drift.kind}) at token {drift.position:,} of the prompt, against step {drift.previous}"
            yield from self._text(line.index, "!", f"{what}: {drift.meaning}", "yellow")
        elif step.shown_by is not None and not step.new:
            yield self._line(line.index, "", f"the same prompt as step {step.shown_by}", "dim")
        elif line.index and line.continues is None and step.new:
            yield self._line(line.index, "", "a new conversation", "dim")
        elif line.continues is not None and line.continues != line.index - 1:
            yield self._line(line.index, "", f"continues step {line.continues}", "dim")

    def _message(self, message: Message) -> Iterator[str]:
        name = message.name or self._names.get(message.tool_call_id or "")
        if message.role == "tool":
            text = " ".join(_part_text(part) for part in message.parts)
            yield from self._text("", "tool", f"{name or '?'} → {text}", None)
            return
        for part in message.parts:
            yield from self._part("", message.role, part)

    def _part(self, index: int | str, role: str, part: Part, end: str = "") -> Iterator[str]:
        if part.kind == "tool_call":
            if part.id is not None and part.name is not None:
                self._names[part.id] = part.name
            yield from self._text(index, role, f"calls {part.name or '?'} {part.text}", None, end)
        else:
            style = "dim" if part.kind == "reasoning" or role in ("system", "developer") else None
            yield from self._text(index, role, _part_text(part), style, end)

    def _answer(self, step: StepView) -> Iterator[str]:
        line, parts = step.line, [] if step.answer is None else step.answer.parts
        ends = [one_line(one) for one in (line.finish, None if line.status == "ok" else line.status) if one]
        role = "assistant" if step.answer is None else step.answer.role
        for at, part in enumerate(parts):
            # The number of the step stands at its first line, how it ended at its last part.
            yield from self._part(
                line.index if not at else "", role, part, ", ".join(ends) if at == len(parts) - 1 else ""
            )
        if not parts:
            nothing = "no text" if step.answer is not None else "no answer"
            yield from self._text(line.index, role, f"({nothing})", "dim", ", ".join(ends))
        if step.error is not None:
            yield from self._text("", "error", step.error, "red")
        for run in step.tool_runs:
            yield from self._run(run)

    def _run(self, run: ToolRunView) -> Iterator[str]:
        if run.error is not None:
            yield from self._text("", "tool", f"{run.name or '?'} failed: {run.error}", "red")
        elif run.result is not None and run.tool_call_id not in self._read:
            yield from self._text("", "tool", f"{run.name or '?'} → {run.result}", None)

    def _line(self, index: int | str, role: str, text: str, style: str | None) -> str:
        role = short(role, _GUTTER - 5)
        gutter = f"{index:>3} {painted(role, _ROLE_STYLES.get(role, style or 'bold'), self._paint)}"
        # Colours take no room.
        gutter += " " * max(1, _GUTTER - 4 - len(role))
        return (gutter + (text if style is None else painted(text, style, self._paint))).rstrip()

    def _text(self, index: int | str, role: str, text: str, style: str | None, end: str = "") -> Iterator[str]:
        """The lines of a text; behind it how the answer ended, where it ended one."""
        # Far more than is shown: a text may be of megabytes.
        lines = textwrap.wrap(one_line(text[: 16 * self._room]), self._room) or [""]
        most = _LINES.get(role, 4)
        if len(lines) > most or len(text) > 16 * self._room:
            lines = lines[:most]
            lines[-1] = lines[-1][: self._room - _MORE].rstrip()
            lines[-1] += f"... ({len(text) - len(' '.join(lines)):,} more)"
        ending = f"[{short(end, self._room - 2)}]" if end else ""
        if ending and len(lines[-1]) + 2 + len(ending) > self._room:
            lines.append("")
        for at, line in enumerate(lines):
            whole = self._line("" if at else index, "" if at else role, line, style)
            if ending and at == len(lines) - 1:
                whole += ("  " if line else " " * _GUTTER) + painted(ending, "dim", self._paint)
            yield whole


def _part_text(part: Part) -> str:
    if part.kind == "reasoning":
        return f"(thinks) {part.text}"
    if part.kind == "refusal":
        return f"(refuses) {part.text}"
    if part.kind in ("image", "audio", "file"):
        named = f"[{part.kind}{f' {part.name}' if part.name else ''}"
        # A data: address is the picture itself: letters that show nothing.
        data = part.text.partition(";base64,")[2] if part.text.startswith("data:") else ""
        return f"{named}, {size(len(data.rstrip('=')) * 3 // 4)}]" if data else f"{named}] {part.text[:60]}"
    return part.text
