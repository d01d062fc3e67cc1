"""The calls of a Codex session: which items are one answer, and what came before it."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from rollout_trace.data.model import ErrorInfo, amend
from rollout_trace.importing.conversation import Conversation
from rollout_trace.importing.fields import Fields, is_finite
from rollout_trace.importing.imported import Job
from rollout_trace.importing.steps import Thread
from rollout_trace.wire.response_items import completion_of

_WALL_TIME = re.compile(r"Wall time: ([0-9]{1,9}(?:\.[0-9]{1,9})?) seconds")
_HEAD = 400
_OUTPUT_OF = {
    "function_call": "function_call_output",
    "local_shell_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}

_CONTEXT = (
    *("<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<INSTRUCTIONS>", "<skill>"),
    *("<turn_aborted>", "<subagent_notification>", "<user_shell_command>"),
)


def is_context(item: Any) -> bool:
    """Whether an item is a message in the user's name that Codex put together: it begins no turn."""
    if not isinstance(item, dict) or item.get("role") != "user":
        return False
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else None
    text = first.get("text") if isinstance(first, dict) else content
    return isinstance(text, str) and text.lstrip().startswith(_CONTEXT)


class Calls(Conversation):
    """The calls so far, and the conversation that the next one is sent."""

    def __init__(self, name: str, job: Job) -> None:
        super().__init__(job, name, "openai.responses", "codex", "tools and sampling parameters")
        self.tools: list[Any] | None = None
        self._written: list[dict[str, Any]] = []
        self._began: datetime | None = None
        self._ended: datetime | None = None
        self._read_at: datetime | None = None
        self._model: str | None = None
        self._effort: str | None = None
        self._total: Any = None
        self._open: dict[str, str] = {}
        """Calls of tools that have no output yet, and the kind of it."""
        self._is_waiting = False
        """Whether something was read that the model has not answered."""
        self._turns: list[int] = []
        self._response_ids: set[str] = set()
        self._is_uncounted = False
        """Whether a count that comes is of the last step: what follows a compaction is of the call that summed up."""

    def pass_time(self, time: datetime | None) -> None:
        """Notes the time of a line. A fork begins with its own line; those that it copied may be older."""
        self.started_at, self.ended_at = self.started_at or time, time or self.ended_at

    def set_context(self, model: str | None, effort: str | None) -> None:
        """Sets what the turn's calls are made with."""
        self._close()
        self._model, self._effort = model or self._model, effort

    def set_tools(self, tools: list[Any]) -> None:
        """Sets the tools that the next calls are sent."""
        self._close()
        self.tools = tools

    def continue_from(self, other: Calls) -> None:
        """Continues the conversation of another session."""
        self.thread, self._turns = other.thread.fork(), list(other._turns)
        self.tools, self._open = other.tools, dict(other._open)

    def drop_system(self) -> None:
        """Takes the instructions out that the session began with: they come as an item."""
        if self._system():
            self.thread = Thread(self.thread.items[1:])
            self._turns = [at - 1 for at in self._turns]

    def _system(self) -> list[Any]:
        """The instructions that the session began with, as the one item of a list; empty where there are none."""
        first = self.thread.items[:1]
        return [one for one in first if isinstance(one, dict) and one.get("role") == "system" and "type" not in one]

    def begin_turn(self) -> None:
        """Called before a message of the user."""
        self._close()
        at = len(self.thread.items)
        # What Codex put before it goes with it when it is taken back; what it put before the first turn stays.
        while self._turns and is_context(self.thread.items[at - 1]):
            at -= 1
        self._turns.append(at)

    def add_read(self, item: dict[str, Any], time: datetime | None, output: Fields | None = None) -> None:
        """Adds an item that the next call is sent. ``output``: the item, where it is the result of a tool."""
        self._close()
        self._read_at = time or self._read_at
        self._is_waiting = True
        self.thread.add(item)
        self._note_call(item)
        if output is not None:
            value = output.get("output")
            self.run(output.name("call_id"), value, is_error=False, duration=_duration(value))

    def add_written(self, item: Fields, time: datetime | None) -> None:
        """Adds an item that the model wrote."""
        if not self._written:
            self._began = self._read_at or time
        self._ended = time or self._ended
        self._written.append(item.values)

    def replace(self, items: list[dict[str, Any]]) -> None:
        """Replaces the conversation, as a compaction does; the instructions stay."""
        self._close()
        self._is_uncounted = False
        self.thread, self._turns, self._open = Thread([*self._system(), *items]), [], {}

    def mark_summary(self, response_id: str | None, text: str) -> bool:
        """Marks the call that summed up the conversation, if it is here: what asked for the summary is in no file."""
        self._close()
        last = self.steps[-1] if self.steps else None
        content = None if last is None or last.completion is None else last.completion.content
        is_named = last is not None and response_id is not None and last.response_id == response_id
        is_last = response_id is None and not self._is_waiting and bool(content) and str(content) in text
        if last is None or not (is_named or is_last):
            return False
        amend(last, trainable=False)
        return True

    def fail(self, error: ErrorInfo, **facts: Any) -> None:
        """Adds the call that a turn failed with, unless the model has answered all that it read."""
        self._close()
        if self._is_waiting:
            super().fail(error, **self._context(), started_at=self._read_at, **facts)
            self._is_waiting = False

    def roll_back(self, turns: int) -> None:
        """Takes the last turns out of the conversation."""
        self._close()
        if turns > 0 and self._turns:
            at = max(0, len(self._turns) - turns)
            self.thread, self._turns, self._open = self.thread.fork(self._turns[at]), self._turns[:at], {}

    def add_token_count(self, event: Fields, *, is_copy: bool) -> None:
        """Ends the current call; its usage is the last one that was counted."""
        info = event.object("info")
        self._close()
        last, total = info.object("last_token_usage"), info.object("total_token_usage")
        if not info or (total and total.values == self._total):
            return  # One count comes several times: with the same total it is no other call's.
        self._total = dict(total.values) if total else None
        if last and not is_copy:
            self._set_usage(last)

    def add_usage_record(self, record: Fields, *, is_copy: bool) -> None:
        """Ends the current call; its usage and the id of its response."""
        self._close()
        own, counts = record.name("response_id"), record.object("usage")
        if is_copy or not self.steps or (own is not None and own in self._response_ids):
            return
        if counts:
            self._set_usage(counts)
        if own is not None and self.steps[-1].response_id is None:
            self._response_ids.add(own)
            amend(self.steps[-1], response_id=own)

    def _set_usage(self, counts: Fields) -> None:
        if self._is_uncounted and self.steps[-1].usage is None:
            amend(self.steps[-1], usage=counts.usage("codex"))

    def end(self) -> None:
        """Called behind the last item."""
        self._close()
        self.job.report.miss("usage", sum(step.usage is None and step.status == "ok" for step in self.steps))

    def _close(self) -> None:
        """Makes a step of the items that the model wrote since the last one that it read."""
        if not self._written:
            return
        items, self._written = self._written, []
        completion = completion_of(items)
        context = self._context()  # What was left open is answered before the messages are taken.
        step = self.add_step(completion, items, **context, started_at=self._began, latency=self._seconds())
        self._is_waiting, self._is_uncounted = False, True
        self.job.report.miss("stop reasons")
        self.job.report.miss("model", self._model is None)
        is_hidden = any(str(item.get("type")) == "reasoning" for item in items) and not completion.reasoning
        self.job.report.note("answers with reasoning that is encrypted", is_hidden)
        for item in items:
            call_id = item.get("call_id")
            if isinstance(call_id, str):
                name = item.get("name", "local_shell" if item.get("type") == "local_shell_call" else None)
                given = (item[key] for key in ("arguments", "input", "action") if item.get(key) is not None)
                self.calls.note(call_id, name, next(given, None), step.id)
            self._note_call(item)

    def _context(self) -> dict[str, Any]:
        """Returns the context of the next call."""
        self._answer_open()
        sampling = None if self._effort is None else {"reasoning": {"effort": self._effort}}
        return {"model": self._model, "tools": self.tools, "sampling": sampling}

    def _note_call(self, item: dict[str, Any]) -> None:
        call_id, kind = item.get("call_id"), str(item.get("type"))
        if isinstance(call_id, str) and kind in _OUTPUT_OF:
            self._open[call_id] = _OUTPUT_OF[kind]
        elif isinstance(call_id, str):
            self._open.pop(call_id, None)

    def _answer_open(self) -> None:
        """Puts the output behind each call that has none: Codex sends one, and does not write it."""
        if not self._open:
            return
        items: list[Any] = []
        for item in self.thread.items:
            items.append(item)
            call_id = item.get("call_id") if str(item.get("type")) in _OUTPUT_OF else None
            if isinstance(call_id, str) and call_id in self._open:
                items.append({"type": self._open[call_id], "call_id": call_id, "output": "aborted"})
        self.job.report.note("outputs of tools that were aborted, as Codex sends them", len(self._open))
        self.thread, self._open = Thread(items), {}

    def _seconds(self) -> float | None:
        if self._began is None or self._ended is None or self._ended < self._began:
            return None
        return (self._ended - self._began).total_seconds()


def _duration(output: Any) -> float | None:
    """Seconds that a command took, which its output has as text."""
    if isinstance(output, dict):
        output = output.get("content")
    if not isinstance(output, str):
        return None
    found = _WALL_TIME.search(output[:_HEAD])
    if found is not None:
        return float(found[1])
    try:
        value = json.loads(output)["metadata"]["duration_seconds"] if output.startswith("{") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(value) if is_finite(value) and 0 <= value < 1e9 else None
