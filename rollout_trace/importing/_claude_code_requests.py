"""The requests that Claude Code writes into its transcripts since 2.1.332: hashes of messages, tools, parameters.

The format is the maker's own, and no page describes it. ``api-request`` lists hashes of messages: the first ``keep`` of
an earlier request, its ``base``, then ``tail``. A message stands in an ``api-request-blob``, unless the lines of the
conversation have it. The hash is SHA-256 of the message as compact JSON with sorted names, its content as a list of
blocks, without marks for the cache, whose places the request names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Attempt, ErrorInfo
from rollout_trace.importing.fields import Fields, is_whole
from rollout_trace.importing.imported import ImportReport
from rollout_trace.importing.steps import REBUILT, Point, Thread

KINDS = frozenset({"api-request-shape", "api-request-blob", "api-request"})
_NO_PARAMETERS = frozenset({"model", "betas"})
_UNKNOWN = ErrorInfo(type="unknown", message="The session does not say why this request was sent again.")


@dataclass(eq=False)
class Request:
    """One request, which may be an attempt of several."""

    id: str
    of: Requests
    time: datetime | None
    shape: str
    params: dict[str, Any]
    thread: Thread | None
    """Hashes of its messages, the first ``length`` of it; None where they follow a request that is not in the file."""
    length: int
    marks: list[tuple[list[Any], Any]]
    error: ErrorInfo | None = None
    failed: list[Request] = field(default_factory=list)
    """The attempts before it."""

    def attempts(self, last: ErrorInfo | None, request_id: str | None) -> tuple[Attempt, ...]:
        """Returns the request's attempts. ``last``: why the last one failed; None if it was answered."""
        before = [(one.time, one.error or _UNKNOWN) for one in self.failed]
        made = [Attempt(started_at=time, status=error.status, error=error) for time, error in before]
        status = 200 if last is None else last.status
        return (*made, Attempt(started_at=self.time, status=status, error=last, request_id=request_id))


class Requests:
    """The requests of one file, in its order."""

    def __init__(self, report: ImportReport) -> None:
        self._report = report
        self._shapes: dict[str, dict[str, Any]] = {}
        self._messages: dict[str, dict[str, Any]] = {}
        self._by_id: dict[str, Request] = {}
        self._open: dict[str | None, list[Request]] = {}
        """Requests that no line has answered yet, by what asked."""
        self._last: str | None = None
        self._new: set[str] = set()
        """Hashes of messages written since the last request."""
        self._hashed: set[tuple[int, int]] = set()
        """The messages of the conversation that were hashed: the identity of the first, and how many were joined."""
        self._made: dict[tuple[str, str], Any] = {}
        """Messages with marks, so that equal ones are one object."""
        self._stored = ListStore()

    @property
    def is_empty(self) -> bool:
        """Whether the file has no requests: it is of an older release, or what a fork copied."""
        return not self._by_id

    def add(self, record: Fields, kind: str) -> None:
        """Adds a line of one of ``KINDS``."""
        if kind == "api-request-shape":
            shape = record.require_object("shape")
            self._shapes[record.require_name("shapeHash")] = shape.values
        elif kind == "api-request-blob":
            key = record.require_name("hash")
            self._messages.setdefault(key, record.require_object("message").values)
            self._new.add(key)
        else:
            self._add_request(record)

    def _add_request(self, record: Fields) -> None:
        base, keep = self._by_id.get(record.name("base") or ""), record.count("keep") or 0
        tail = [one for one in record.items("tail") or () if isinstance(one, str)]
        thread = None if keep else Thread()
        if base is not None and base.thread is not None and keep <= base.length:
            thread = Point(base.thread, keep).branch()
        if thread is not None:
            thread.add(*tail)
        marks = [(path, one.get("value")) for one in record.objects("cacheControl") if (path := one.items("path"))]
        request = Request(
            id=record.require_name("id"),
            of=self,
            time=record.time("timestamp"),
            shape=record.name("shapeHash") or "",
            params=record.mapping("params"),
            thread=thread,
            length=0 if thread is None else len(thread.items),
            marks=marks,
        )
        self._unlist(request)
        self._by_id[request.id] = request
        self._last = record.name("querySource")
        self._open.setdefault(self._last, []).append(request)

    def _unlist(self, request: Request) -> None:
        """Makes texts of contents that are a list only because a mark was in them when they were written."""
        hashes = [] if request.thread is None else request.thread.items[: request.length]
        for path, _ in request.marks:
            is_block = path[0] == "messages" and len(path) > 3 and _is_place(path[1], len(hashes))
            key = hashes[path[1]] if is_block else ""
            message = self._messages.get(key) if key in self._new else None
            content = None if message is None or message.get("role") == "assistant" else message.get("content")
            first = content[0] if isinstance(content, list) and len(content) == 1 else None
            if message is not None and isinstance(first, dict) and first.keys() == {"type", "text"}:
                self._messages[key] = {**message, "content": first["text"]}
        self._new.clear()

    def fail(self, error: Fields) -> None:
        """Sets why the last request failed: the error of a ``system/api_error`` line."""
        waiting = self._open.get(self._last)
        if waiting and waiting[-1].error is None:
            text = error.get("formatted") or error.get("message")
            waiting[-1].error = ErrorInfo(
                type=_type_in(error.get("message")) or "api_error",
                message=text if isinstance(text, str) else "",
                status=error.count("status"),
            )

    def answered(self, request_id: str | None) -> Request | None:
        """The request that a line answers, with the attempts before it; without an id, the last one that waits."""
        if request_id is None:
            last = self._open.get(self._last)
            request = last[-1] if last else None
        else:
            request = self._by_id.get(request_id)
        for waiting in self._open.values():
            if request in waiting:
                at = waiting.index(request)
                request.failed += waiting[:at]
                del waiting[: at + 1]
        return request

    def turn(self) -> None:
        """Called for a new message of the user: what was asked before it is not asked again."""
        self._report.note("requests whose answer is not in the file", sum(map(len, self._open.values())))
        self._open.clear()

    def fields(self, request: Request, read: list[Any]) -> dict[str, Any]:
        """The fields of a step that say what was sent. ``read``: the messages before it by the lines around."""
        shape, sent = self._shapes.get(request.shape, {}), self._sent(request, read)
        self._report.miss("system prompt and tools of requests", request.shape not in self._shapes)
        messages = list(read) if sent is None else sent
        if shape.get("system") is not None:
            first = {"role": "system", "content": shape["system"]}
            marks = [(["content", *path[1:]], mark) for path, mark in request.marks if path[0] == "system"]
            messages.insert(0, self._once(f"{request.shape} system", first, marks))
        tools, model = shape.get("tools"), request.params.get("model")
        marks = [(path[1:], mark) for path, mark in request.marks if path[0] == "tools"]
        betas = request.params.get("betas")
        self._report.note("requests of which a message is not in the file: rebuilt", sent is None)
        return {
            "messages": self._stored.add_items(messages),
            "tools": self._once(f"{request.shape} tools", tools, marks) if isinstance(tools, list) else None,
            "model": model if isinstance(model, str) else None,
            "sampling": {name: value for name, value in request.params.items() if name not in _NO_PARAMETERS},
            "metadata": {**(REBUILT if sent is None else {}), **({"betas": betas} if betas else {})},
        }

    def _sent(self, request: Request, read: list[Any]) -> list[Any] | None:
        """The messages of a request; None where one of them cannot be found."""
        if request.thread is None:
            return None
        hashes = request.thread.items[: request.length]
        self._look_for({one for one in hashes if one not in self._messages}, read)
        found = [self._messages.get(one) for one in hashes]
        if None in found:
            return None
        by_place: dict[int, list[tuple[list[Any], Any]]] = {}
        for path, mark in request.marks:
            if path[0] == "messages" and len(path) > 2 and _is_place(path[1], len(found)):
                by_place.setdefault(path[1], []).append((path[2:], mark))
        for at, marks in by_place.items():
            found[at] = self._once(hashes[at], found[at], marks)
        return found

    def _look_for(self, missing: set[str], read: list[Any]) -> None:
        """Adds the messages of a conversation by their hashes, the last ones first, until all of these are found."""
        end = len(read)
        while missing and end:
            begin = end - 1
            role = read[begin]["role"]
            # The lines of a user one after another, such as the results of parallel calls, were sent as one message.
            while role == "user" and begin and read[begin - 1]["role"] == role:
                begin -= 1
            group = read[begin:end]
            if (id(group[0]), len(group)) not in self._hashed:
                content = [block for one in group for block in _blocks(one["content"])]
                self._hash(group, {"role": role, "content": content} if len(group) > 1 else group[0])
            for one in group:
                if (id(one), 1) not in self._hashed:
                    self._hash([one], one)
            missing.difference_update(self._messages)
            end = begin

    def _hash(self, group: list[Any], message: dict[str, Any]) -> None:
        self._hashed.add((id(group[0]), len(group)))
        try:
            self._messages.setdefault(hash_of(message), message)
        except RecursionError:  # Its hash is then one that no request can be found by.
            return

    def _once(self, key: str, value: Any, marks: list[tuple[list[Any], Any]]) -> Any:
        """The value with its marks: one object for equal ones, so that steps share it."""
        own = key, json.dumps(marks)
        if own not in self._made:
            for path, mark in marks:
                value = _marked(value, path, mark)
            self._made[own] = value
        return self._made[own]


def hash_of(message: dict[str, Any]) -> str:
    """The hash by which a request names a message."""
    plain = _unmarked({**message, "content": _blocks(message.get("content"))})
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _blocks(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _unmarked(value: Any) -> Any:
    """A value without the fields for the cache, at any depth: the CLI leaves them out of arguments of tools, too."""
    if isinstance(value, dict):
        return {name: _unmarked(item) for name, item in value.items() if name != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def _marked(value: Any, path: list[Any], mark: Any) -> Any:
    """A copy of a value with a mark for the cache in the object at a path."""
    if not path:
        return {**value, "cache_control": mark} if isinstance(value, dict) else value
    value = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if isinstance(value, list) and _is_place(path[0], len(value)):
        at = path[0]
        return [*value[:at], _marked(value[at], path[1:], mark), *value[at + 1 :]]
    if isinstance(value, dict) and isinstance(path[0], str) and path[0] in value:
        return {**value, path[0]: _marked(value[path[0]], path[1:], mark)}
    return value


def _is_place(at: Any, length: int) -> bool:
    return is_whole(at) and 0 <= at < length


def _type_in(message: Any) -> str | None:
    """The provider's error type, which stands in the text of the CLI's error behind the status."""
    try:
        found = json.loads(message[message.index("{") :])["error"]["type"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None
