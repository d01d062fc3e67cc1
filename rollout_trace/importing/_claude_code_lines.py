"""The lines of Claude Code's files: their conversations, and the responses that several lines are of."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rollout_trace.data.model import Step
from rollout_trace.importing._claude_code_requests import KINDS, Request, Requests
from rollout_trace.importing.fields import Fields, is_finite, is_whole
from rollout_trace.importing.imported import ImportReport
from rollout_trace.importing.steps import Point

_BESIDE = frozenset(
    {"file-history-snapshot", "queue-operation", "permission-mode", "mode", "last-prompt", "tag", "agent-name"}
    | {"agent-color", "agent-setting", "frame-link", "pr-link", "content-replacement", "stream_event", "progress"}
    | {"atis-latch", "tools-used", "cost-state"}
)
"""Kinds of lines that no model reads."""
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}


class Lines:
    """The lines of one file: conversations by agent, the session's own under the empty name."""

    def __init__(self, report: ImportReport) -> None:
        self.chains: dict[str, list[Line]] = {}
        self.session_id: str | None = None
        self.facts: dict[str, Any] = {}
        """Titles and totals, for the metadata of the session."""
        self.environment: dict[str, Any] = {}
        self.attachments = 0
        """Lines of which it is not known what the model read, unless the requests are there."""
        self.requests = Requests(report)
        self._report = report
        self._uuids: set[str] = set()
        self._chain_of: dict[str, str] = {}
        self._last: dict[str, str] = {}

    def add(self, record: Fields) -> None:
        """Adds a line."""
        kind = record.require_text("type")
        self.session_id = self.session_id or record.name("sessionId") or record.name("session_id")
        if kind in ("user", "assistant", "system", "attachment") and not self._is_stream_head(record, kind):
            self._add_line(record, kind)
        elif kind in KINDS:
            self.requests.add(record, kind)
        elif kind in _TITLES:
            self.facts["title"] = record.text(_TITLES[kind]) or record.text("title")
        elif kind == "result":
            names = ("total_cost_usd", "num_turns", "duration_ms", "subtype", "usage", "modelUsage", "model_usage")
            self.facts["result"] = {name: record.get(name) for name in names if record.get(name) is not None}
        elif kind in _BESIDE or kind == "system":
            if kind == "progress" and record.name("uuid"):
                self._pass_on(record)
            self._report.note("lines that are no part of a conversation", kind != "system")
        else:
            self._report.drop(f"lines of an unknown kind: {kind[:40]}")

    def _is_stream_head(self, record: Fields, kind: str) -> bool:
        """Whether a line is the first of a printed stream: what the session can use."""
        if kind != "system" or record.get("subtype") != "init" or "parentUuid" in record.values:
            return False
        for name in ("cwd", "model", "tools", "claude_code_version"):
            if record.get(name) is not None:
                self.environment[name] = record.get(name)
        return True

    def _add_line(self, record: Fields, kind: str) -> None:
        uuid = record.name("uuid")
        if uuid is not None and uuid in self._uuids:
            self._report.note("lines that a file has twice, joined")
            return
        # One that no other file has.
        uuid = uuid or str(record.place)
        self._uuids.add(uuid)
        parent = record.name("parentUuid")
        chain = self._chain(record, parent)
        if "parentUuid" not in record.values:
            # A printed stream has no chain: each line follows the one before it of its agent.
            parent = self._last.get(chain)
        self._chain_of[uuid], self._last[chain] = chain, uuid
        message = record.require_object("message") if kind in ("user", "assistant") else None
        if message is not None and "parts" in message.values and "content" not in message.values:
            message.refuse("content", "a text or a list of blocks, and not the parts of Qwen Code's sessions")
        line = Line(record, kind, uuid, parent, record.time("timestamp"), message, record.text("agentName"))
        self.chains.setdefault(chain, []).append(line)
        if kind == "assistant":
            answered, is_error = record.name("requestRef"), record.flag("isApiErrorMessage")
            line.request = self.requests.answered(answered) if answered or is_error else None
            line.is_call = line.request is not None or self.requests.is_empty
        elif kind == "system" and record.get("subtype") == "api_error":
            self.requests.fail(record.object("error") or record)
        elif is_prompt(line):
            self.requests.turn()
        else:
            self.attachments += kind == "attachment" and queued(line) is None

    def _pass_on(self, record: Fields) -> None:
        """A line that no model reads, but that others follow."""
        uuid = record.require_name("uuid")
        if uuid not in self._uuids:
            self._uuids.add(uuid)
            chain = self._chain(record, record.name("parentUuid"))
            self._chain_of[uuid] = chain
            if chain in self.chains:
                line = Line(record, "progress", uuid, record.name("parentUuid"), None, None)
                self.chains[chain].append(line)

    def _chain(self, record: Fields, parent: str | None) -> str:
        """The agent that a line is of; empty for the session's own."""
        tool_use = record.name("parent_tool_use_id")
        if tool_use is not None:
            return tool_use
        if not record.flag("isSidechain"):
            return ""
        own = record.name("agentId")
        if own is not None:
            return own
        known = self._chain_of.get(parent or "")
        # Releases before 2.1 have no agent ids: a sub-agent is what follows one first line.
        return known if known else f"sidechain-{sum(one.startswith('sidechain-') for one in self.chains) + 1}"


@dataclass(slots=True)
class Line:
    """A line of a conversation."""

    fields: Fields
    kind: str
    uuid: str
    parent: str | None
    time: datetime | None
    message: Fields | None
    agent_name: str | None = None
    request: Request | None = None
    """What an answer, or an error, was the answer to; None in files of older releases."""
    is_call: bool = True
    """False of an error that the CLI wrote where no request waited for an answer."""


def parents_first(lines: list[Line]) -> list[Line]:
    """The lines in their order, a line that stands before its parent behind it."""
    known, own = {""}, {line.uuid for line in lines}
    waiting: dict[str, list[Line]] = {}
    found: list[Line] = []
    for line in lines:
        if line.parent in own and line.parent not in known:
            waiting.setdefault(line.parent or "", []).append(line)
            continue
        ready = [line]
        while ready:
            one = ready.pop()
            found.append(one)
            known.add(one.uuid)
            ready += reversed(waiting.pop(one.uuid, []))
    # Of a circle: each is above the others.
    return [*found, *(line for left in waiting.values() for line in left)]


def duration(line: Line) -> float | None:
    """Seconds that a tool took, where its structured result has them."""
    more = line.fields.get("toolUseResult")
    for name in ("totalDurationMs", "durationMs") if isinstance(more, dict) else ():
        value = more.get(name)
        if is_finite(value) and 0 <= value < 1e12:
            return value / 1e3
    return None


def is_texts(content: Any) -> bool:
    """Whether a content is a list of text blocks alone."""
    return isinstance(content, list) and all(isinstance(one, dict) and one.get("type") == "text" for one in content)


def text_of(content: Any) -> str:
    """The text of a content: itself, or that of its text blocks."""
    if isinstance(content, str):
        return content
    texts = [one.get("text") for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def is_prompt(line: Line) -> bool:
    """Whether a line is what the user said, or that the user interrupted."""
    content = None if line.message is None else line.message.get("content")
    blocks = content if isinstance(content, list) else ()
    is_result = any(isinstance(one, dict) and one.get("type") == "tool_result" for one in blocks)
    return line.kind == "user" and not is_result and line.fields.get("isMeta") is not True


def queued(line: Line) -> dict[str, Any] | None:
    """The message of a prompt that was typed while the model worked, and was read with the next results of tools."""
    given = line.fields.get("attachment") if line.kind == "attachment" else None
    if not isinstance(given, dict) or given.get("type") != "queued_command":
        return None
    prompt, shown = given.get("prompt"), line.fields.get("rendered")
    texts = [one.get("content") for one in shown if isinstance(one, dict)] if isinstance(shown, list) else []
    content = texts[0] if len(texts) == 1 else prompt
    role = line.fields.get("renderedRole") if content is not prompt else "user"
    return {"role": role or "user", "content": content} if isinstance(content, (str, list)) else None


_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_TEXTS = ("text", "thinking")
_SIZED = (str, list, dict)


@dataclass
class Response:
    """One response."""

    lines: list[Line] = field(default_factory=list)
    blocks: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    """The blocks of its lines, each with its place in the response where its line has one."""
    content: list[Any] = field(default_factory=list)
    """The blocks of the response, each once; set by ``responses_of``."""
    usage: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    point: Point | None = None
    step: Step | None = None


def responses_of(lines: list[Line]) -> dict[str, Response]:
    """The response that each line of the assistant is of, by the line's uuid."""
    made: dict[str, Response] = {}
    requests: dict[str, str] = {}
    found: dict[str, Response] = {}
    for line in lines:
        if line.kind != "assistant" or line.message is None:
            continue
        key = line.message.name("id") or line.uuid
        request = line.fields.name("requestId") or line.fields.name("requestRef")
        if request is not None and requests.setdefault(key, request) != request:
            # Some gateways give every response the same id.
            key = f"{key} {request}"
        found[line.uuid] = response = made.setdefault(key, Response())
        _collect(response, line, line.message)
    for response in made.values():
        response.content = joined(response.blocks)
    return found


def _collect(response: Response, line: Line, message: Fields) -> None:
    response.lines.append(line)
    content = message.get("content")
    if content is None:
        message.wrong("content", "a text or a list of blocks")
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else None
    blocks = [block.values for block in message.objects("content")] if texts is None else texts
    place = line.fields.get("apiBlockIndex") if len(blocks) == 1 else None
    response.blocks += [(place, block) for block in blocks]
    usage = message.object("usage")
    for name, value in usage.values.items():
        known = response.usage.get(name)
        # Early lines of older releases have counts of what had been streamed by then.
        if value is not None and not (is_whole(known) and is_whole(value) and known > value):
            response.usage[name] = value
    for name in _COUNTS:
        usage.count(name)
    response.stop_reason = message.text("stop_reason") or response.stop_reason
    response.stop_sequence = message.text("stop_sequence") or response.stop_sequence


def joined(blocks: list[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The blocks of a response, each once: some are written again, as they were or as far as they had been streamed.

    Blocks with equal texts may be two: they are one where their lines have the same place for them, or where all that
    was written of the response is written again from its begin.
    """
    made: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    marks: dict[str, int] = {}
    at = 0
    while at < len(blocks):
        place, block = blocks[at]
        # The id of a call and the signature of a thought are of one block alone.
        mark = block.get("id") or block.get("signature")
        known = marks.get(mark) if isinstance(mark, str) else None
        known = places.get(place) if known is None and is_whole(place) else known
        count = 0 if is_whole(place) or known is not None else _repeated(blocks[at:], made)
        if known is not None:
            made[known] = _fuller(made[known], block)
            at += 1
        elif count:
            made[:count] = map(_fuller, made[:count], (one for _, one in blocks[at : at + count]))
            at += count
        else:
            if is_whole(place):
                places[place] = len(made)
            if isinstance(mark, str):
                marks[mark] = len(made)
            made.append(block)
            at += 1
    return made


def _repeated(blocks: list[tuple[Any, dict[str, Any]]], made: list[dict[str, Any]]) -> int:
    """How many of the next blocks repeat the first ones; 0 where others follow before all of those are repeated."""
    count = 0
    for (_, block), known in zip(blocks, made, strict=False):
        if not _repeats(block, known):
            break
        count += 1
    return count if count in (len(blocks), len(made)) else 0


def _repeats(block: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether two blocks are one at two times."""
    kind = block.get("type")
    if kind != known.get("type"):
        return False
    if kind == "tool_use" and block.get("id") is not None:
        return bool(block["id"] == known.get("id"))
    if block.get("signature") and known.get("signature") not in (None, "", block["signature"]):
        return False  # Of thoughts whose text is not shown, nothing else differs.
    name = str(kind)
    new, old = block.get(name), known.get(name)
    if name in _TEXTS and isinstance(new, str) and isinstance(old, str):
        return new.startswith(old) or old.startswith(new)
    return block == known


def _fuller(known: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    """The later of two states of a block: what it holds only grows."""
    first, second = (sum(len(one) for one in each.values() if isinstance(one, _SIZED)) for each in (known, block))
    return block if second >= first else known
