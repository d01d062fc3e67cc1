"""One conversation of Claude Code as steps and tool runs."""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from rollout_trace.data.lists import ListSpan
from rollout_trace.data.model import Attempt, ErrorInfo, Step, ToolRun, Usage
from rollout_trace.file.plain import dumps
from rollout_trace.importing._claude_code_lines import (
    Line,
    Response,
    duration,
    is_texts,
    parents_first,
    queued,
    responses_of,
    text_of,
)
from rollout_trace.importing.fields import Fields
from rollout_trace.importing.imported import Job
from rollout_trace.importing.steps import REBUILT, Point, Thread, missing_ids, usd
from rollout_trace.wire import blocks
from rollout_trace.wire.reading import usage_of
from rollout_trace.wire.tool_results import ToolCalls

_NO_IDS = missing_ids("Claude Code's transcripts have no token ids.")
_INTERRUPTED = "[Request interrupted"
_ENDED = frozenset({"end_turn", "stop_sequence", "refusal"})
_CALLERS = frozenset({"Task", "Agent"})


class _Kept(NamedTuple):
    """The lines that a compaction kept behind its summary."""

    first: str
    last: str
    before: dict[str, str]
    """The line before each of the others."""


class Chain:
    """The steps and tool runs of a conversation, and what connects it with those of sub-agents."""

    def __init__(self, lines: list[Line], name: str, job: Job, seen: set[str]) -> None:
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self.facts: dict[str, Any] = {}
        self.step_of_call: dict[str, str] = {}
        self.call_of_agent: dict[str, str] = {}
        self.call_of_prompt: dict[str, str] = {}
        self.first_prompt: str | None = None
        self.has_rebuilt = False
        """Whether there are steps whose request is not in the file."""
        self._name, self._job, self._seen = name, job, seen
        self._points: dict[str, Point] = {}
        self._begins: dict[str, int] = {}
        """Messages before the one of a line."""
        self._kept: dict[str, _Kept] = {}
        """Lines that a compaction kept behind its summary, by the summary's."""
        self._boundaries: dict[str, str | None] = {}
        """The line before each compaction."""
        self._compacted: Point | None = None
        """Behind the last summary, until the lines of the command that asked for it."""
        self._response_of_call: dict[str, Response] = {}
        self._calls = ToolCalls()
        self._interrupted = self._has_failed = False
        self._before: Point | None = None
        """Behind the line before."""
        self._response_of = responses_of(lines)
        for line in parents_first(lines):
            self._follow(line)
            self._before = self._points.get(line.uuid, self._before)
        own = {line.uuid for line in lines}
        responses = {id(one): one for one in self._response_of.values()}.values()
        sampled = [(one.lines[0].message, one) for one in responses if one.step is not None]
        own |= {_digest(message, one) for message, one in sampled if message is not None}
        job.report.note("lines of one response, joined", sum(len(one.lines) - 1 for one in responses))
        seen |= own

    @property
    def status(self) -> str:
        """How the session ended, as far as its last lines show it."""
        if self._interrupted:
            return "aborted"
        if self._has_failed:
            return "failed"
        last = self.steps[-1] if self.steps else None
        return "completed" if last is not None and last.finish_reason in _ENDED else "unknown"

    def _follow(self, line: Line) -> None:
        """Puts a line behind the one that it follows."""
        kept = self._kept.get(line.parent or "")
        if kept is not None and line.uuid in kept.before:
            # Written anew behind the summary; what it was sampled from is what stood before it.
            self._add(line, self._points.get(kept.before[line.uuid]) or Point(Thread(), 0))
            self._move(line.uuid, line.parent or "", kept.first)
            return
        point = self._points.get(line.parent or "")
        if line.parent is not None and point is None:
            self._job.report.note("lines whose parent is not in the file: they go on from the line before")
            point = self._before
        elif self._compacted is not None and _is_compaction(line) and not _begin_alike(point, self._compacted):
            # Written behind what stood before the summary, though the model no longer reads that.
            point = self._compacted
        self._add(line, point or Point(Thread(), 0))
        own = self._kept.get(line.uuid)
        if own is not None and own.last in self._points:
            self._move(own.last, line.uuid, own.first)
            # What comes next follows the line that was kept last, or names the summary as its parent.
            self._points[line.uuid] = self._points[own.last]
        if line.fields.get("isCompactSummary") is True:
            self._compacted = self._points.get(line.uuid)
            before = self._boundaries.get(line.parent or "")
            if own is None and before is not None and self._compacted is not None:
                self._points[before] = self._compacted

    def _move(self, last: str, summary: str, first: str) -> None:
        """Continues the conversation after a line as a compaction left it: the summary, then what it kept."""
        point, before = self._points.get(last), self._points.get(summary)
        if point is None or before is None or first not in self._begins:
            self._job.report.note("compactions that kept messages which are not in the file")
            return
        kept = point.thread.items[self._begins[first] : point.length]
        thread = Thread([*before.thread.items[: before.length], *kept])
        moved = self._points[last] = thread.end(point.time)
        if last in self._response_of:
            self._response_of[last].point = moved

    def _add(self, line: Line, point: Point) -> None:
        if line.kind == "assistant":
            self._compacted = None
            self._add_response(line, self._response_of[line.uuid], point)
        elif line.kind == "user" and line.message is not None:
            self._add_user(line, line.message, point)
        elif (given := queued(line)) is not None:
            thread = point.branch()
            thread.add(given)
            self._points[line.uuid] = thread.end(line.time)
        else:
            if line.fields.get("subtype") == "compact_boundary":
                self.facts["compactions"] = self.facts.get("compactions", 0) + 1
                self._job.report.miss("calls that summed up compacted conversations")
                point = Thread().end(line.time)
                self._boundaries[line.uuid] = line.fields.name("logicalParentUuid")
                self._keep(line)
            # The point itself: results of parallel calls may still come to it.
            self._points[line.uuid] = point

    def _keep(self, boundary: Line) -> None:
        facts = boundary.fields.object("compactMetadata")
        kept = facts.object("preservedMessages")
        names = [one for one in kept.items("uuids") or () if isinstance(one, str)]
        summary = kept.name("anchorUuid")
        if summary is not None and names:
            self._kept[summary] = _Kept(names[0], names[-1], dict(zip(names[1:], names, strict=False)))
        elif kept or facts.get("preservedSegment") is not None:
            self._job.report.note("compactions that kept messages which are not in the file")

    def _add_response(self, line: Line, response: Response, point: Point) -> None:
        if response.point is not None:
            # A further line of a response: the conversation goes on behind the whole of it.
            self._points[line.uuid] = response.point
            return
        message = line.message
        if message is None:
            return
        is_synthetic = message.get("model") == "<synthetic>"
        if line.fields.flag("isApiErrorMessage") or (is_synthetic and line.fields.get("error") is not None):
            response.point = self._points[line.uuid] = point
            if line.uuid in self._seen:
                self._job.report.note("errors copied from another session, left out")
                return
            self._has_failed = True
            if line.is_call:
                self.steps.append(self._failed(line, response, point))
            self._job.report.note("errors that the CLI wrote where nothing was asked: no steps", not line.is_call)
            return
        self._has_failed = False
        thread = point.branch()
        if is_synthetic:
            # Such as "No response requested.", which keeps the turns of a resumed session in order.
            self._job.report.note("answers that the CLI wrote in place of a model, kept as messages alone")
        elif all(one.uuid in self._seen for one in response.lines) or _digest(message, response) in self._seen:
            self._job.report.note("responses copied from another session, kept as messages alone")
        else:
            response.step = self._step(line, message, response, thread, point.time)
            self.steps.append(response.step)
        self._begins[line.uuid] = len(thread.items)
        thread.add({"role": "assistant", "content": response.content})
        response.point = self._points[line.uuid] = thread.end(line.time)
        for block in response.content:
            call_id = block.get("id") if block.get("type") == "tool_use" else None
            if isinstance(call_id, str):
                self._add_call(call_id, block, response)

    def _add_call(self, call_id: str, block: dict[str, Any], response: Response) -> None:
        given = block.get("input")
        self._response_of_call[call_id] = response
        self._calls.note(call_id, block.get("name"), given, None if response.step is None else response.step.id)
        if response.step is None:
            return
        self.step_of_call[call_id] = response.step.id
        prompt = given.get("prompt") if isinstance(given, dict) else None
        if str(block.get("name")) in _CALLERS and isinstance(prompt, str):
            self.call_of_prompt.setdefault(prompt, call_id)

    def _step(self, line: Line, message: Fields, response: Response, thread: Thread, before: datetime | None) -> Step:
        completion = blocks.completion_of(message.get("role"), [blocks.Block(one) for one in response.content], {})
        raw = sum(one.get("type") == "thinking" and not one.get("thinking") for one in response.content)
        model, request_id = message.text("model"), line.fields.name("requestId")
        usage = usage_of(response.usage, "anthropic") if response.usage else None
        self._job.report.miss_tokens()
        self._job.report.miss("usage", usage is None)
        self._job.report.note(
            "responses without a stop reason, whose output count may be of a part", response.stop_reason is None
        )
        self._job.report.note("arguments of tool calls, written as JSON anew", len(completion.tool_calls))
        self._job.report.note("thinking that the file has as a signature alone", raw)
        sent = self._sent(line, thread.span(), before)
        if not sent["attempts"] and request_id is not None:
            sent["attempts"] = (Attempt(request_id=request_id),)
        return Step(
            **{"model": model, **sent},
            response_model=model,
            response_id=message.name("id"),
            completion=completion,
            finish_reason=response.stop_reason,
            stop_reason=response.stop_sequence,
            token_issue=_NO_IDS,
            usage=None if usage == Usage() else usage,
            cost=usd(line.fields.number("costUSD")),
        )

    def _failed(self, line: Line, response: Response, point: Point) -> Step:
        texts = [block.get("text") for block in response.content if isinstance(block.get("text"), str)]
        code, kind = line.fields.get("error"), line.fields.text("apiErrorType")
        error = ErrorInfo(
            type=kind or (code if isinstance(code, str) else "api_error"),
            message="".join(filter(None, texts)),
            status=line.fields.count("apiErrorStatus"),
        )
        sent = self._sent(line, ListSpan(point.thread.items, point.length), point.time, error)
        return Step(**sent, status="error", error=error)

    def _sent(
        self, line: Line, read: ListSpan, before: datetime | None, error: ErrorInfo | None = None
    ) -> dict[str, Any]:
        """What was sent, and its attempts: from the request where the file has it, else from the lines before it."""
        own = f"{self._name}.{line.fields.name('uuid') or len(self.steps)}"
        facts = {"id": own, "call_id": own, "index": len(self.steps), "protocol": "anthropic.messages"}
        if line.request is None:
            self.has_rebuilt = True
            rebuilt = {"messages": read, "metadata": dict(REBUILT), "attempts": ()}
            return {**facts, **rebuilt, "started_at": before or line.time}
        attempts = line.request.attempts(error, line.fields.name("requestId"))
        began = attempts[0].started_at or before or line.time
        sent = line.request.of.fields(line.request, read.get())
        return {**facts, **sent, "attempts": attempts, "started_at": began}

    def _add_user(self, line: Line, message: Fields, point: Point) -> None:
        content = message.get("content")
        if not isinstance(content, (str, list)):
            message.wrong("content", "a text or a list of blocks")
            self._points[line.uuid] = point
            return
        found = message.objects("content") if isinstance(content, list) else ()
        results = [block for block in found if block.get("type") == "tool_result"]
        self._interrupted = text_of(content).startswith(_INTERRUPTED)
        if self.first_prompt is None and not line.fields.get("isMeta"):
            self.first_prompt = text_of(content)
        given = {"role": "user", "content": content}
        callers = (self._response_of_call.get(block.name("tool_use_id") or "") for block in results)
        caller = next((one for one in callers if one is not None), None)
        for block in results:
            self._add_run(block, line)
        own = None if caller is None else caller.point
        if own is not None and len(own.thread.items) == own.length and _is_behind(point, own):
            # Results of parallel calls stand on branches of their own in the file; the next prompt has all of them.
            self._begins[line.uuid] = own.length
            own.thread.add(given)
            own.length += 1
            own.time = line.time or own.time
            self._points[line.uuid] = own
            return
        thread = point.branch()
        self._begins[line.uuid] = len(thread.items)
        thread.add(given)
        self._points[line.uuid] = thread.end(line.time)

    def _add_run(self, block: Fields, line: Line) -> None:
        call_id = block.name("tool_use_id")
        more = line.fields.get("toolUseResult")
        agent = more.get("agentId") if isinstance(more, dict) else None
        if call_id is not None and isinstance(agent, str):
            self.call_of_agent[agent] = call_id
        if line.uuid in self._seen:
            return
        content, is_error = block.get("content"), block.flag("is_error")
        result = text_of(content) if is_texts(content) else content
        self.tool_runs.append(self._calls.run(call_id, result, is_error=is_error, duration=duration(line)))
        self._job.report.drop("structured results beside what the model read", more is not None)


def _digest(message: Fields, response: Response) -> str:
    """Returns a response's digest, whatever its lines: side questions repeat earlier ones under other line ids."""
    return blake2b(dumps([message.get("id"), response.content]), digest_size=16).hexdigest()


def _is_compaction(line: Line) -> bool:
    """Whether a line is of the command that compacts a conversation, which is written behind the summary."""
    text = "" if line.message is None else text_of(line.message.get("content"))
    return line.kind == "user" and text.lstrip().startswith(("<command-name>/compact", "<local-command-caveat>"))


def _is_behind(point: Point, caller: Point) -> bool:
    """Whether a result follows the conversation of its call: one that comes late may stand behind a summary of it."""
    return not point.thread.items[: point.length] or _begin_alike(point, caller)


def _begin_alike(point: Point | None, other: Point) -> bool:
    """Whether two places are in conversations that begin with the same message."""
    first = () if point is None else point.thread.items[:1]
    return any(one is known for one in first for known in other.thread.items[:1])
