"""``ollama.chat`` (/api/chat) and ``ollama.generate`` (/api/generate) of Ollama, streamed or not.

A stream, which is the default, is JSON objects by lines. The last one has ``done``, the reason, counts and durations.
Tool calls come whole, with their arguments as an object; its text is kept as it came.

There are no token ids. ``context`` of /api/generate looks like them, and is not: once the answer is there, Ollama
tokenises the text of prompt and answer together (``server/routes.go``). A sampled token may be another there, and the
stop token is missing. It goes to ``extra``. ``logprobs`` have no ids either, and lack the tokens without a text of
their own (the stop token, parts of a character): unless the engine counts as many, they are no array of the step, but
go to ``extra`` as they came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from rollout_trace.data.counts import is_count
from rollout_trace.data.lists import PackedTexts
from rollout_trace.data.model import TokenIssue
from rollout_trace.wire import align
from rollout_trace.wire.answer_extras import NO_EXTRA, extra_of, fields_without
from rollout_trace.wire.chat_messages import NO_OBJECT, drop_if
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import NULL, LenientDecoder, loads
from rollout_trace.wire.logprobs import top_logprobs_of
from rollout_trace.wire.message import completion_of
from rollout_trace.wire.reading import mark_malformed, merged, read_bodies, text_of, usage_of
from rollout_trace.wire.sse import Event
from rollout_trace.wire.token_texts import texts_of

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport


class _Function(Struct):
    name: str | None = None
    arguments: Raw = NULL
    index: Any = None


class _ToolCall(Struct):
    id: str | None = None
    function: _Function | None = None


class _Message(Struct):
    role: str | None = None
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[_ToolCall] | None = None


class _Entry(Struct, gc=False):
    logprob: float | None = None
    # As bytes: of a long answer the garbage collector would visit a million objects, with all threads stopped.
    top_logprobs: Raw = NULL
    token: Raw = NULL
    bytes: Raw = NULL


class _Body(Struct):
    model: Any = None
    created_at: Any = None
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None
    done: bool | None = None
    done_reason: str | None = None
    context: Any = None
    logprobs: list[_Entry] | None = None
    prompt_eval_count: int | float | None = None
    eval_count: int | float | None = None
    total_duration: Any = None
    load_duration: Any = None
    prompt_eval_duration: Any = None
    eval_duration: Any = None
    error: Any = None


class _StrictMessage(_Message, forbid_unknown_fields=True):
    pass


class _StrictBody(_Body, forbid_unknown_fields=True):
    message: _StrictMessage | None = None


_BODY = LenientDecoder(_Body, _StrictBody)
_EXTRA = ("created_at", "context", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_COUNTS = ("prompt_eval_count", "eval_count")
_KNOWN = NO_EXTRA.union(_Body.__struct_fields__)
_KNOWN_OF_MESSAGE = NO_EXTRA.union(_Message.__struct_fields__)
_NOTHING_SAMPLED = frozenset({"load", "unload"})
"""``done_reason`` of requests without a prompt, which load or unload the model."""
_CONTEXT = (
    "ollama.generate has no place for token ids: `context` is the text of prompt and answer, tokenised once more after "
    "sampling."
)


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    answer = _Answer(facts)
    parts = _lines(response) if streamed else [Event(b"", response)]
    read_bodies(parts, _BODY, facts, answer.add, streamed=streamed)
    choice = answer.choice(streamed=streamed)
    if choice is None:
        if facts.error is None and not (streamed and _is_cut_early(parts)):
            facts.error = error_of(parts[0].data, status)
        return facts
    facts.choices = [choice]
    mark_malformed(facts, streamed=streamed)
    align.check(facts.choices, facts.usage)
    answer.add_extra(choice)
    return facts


def _lines(response: bytes) -> list[Event]:
    *lines, rest = response.split(b"\n")
    # A last line without its end is whole where it is an object; else the stream was cut in it.
    found = [Event(b"", line) for line in lines if line.strip()]
    return [*found, Event(b"", rest, complete=False)] if rest.strip() else found


def _is_cut_early(parts: list[Event]) -> bool:
    """Whether a stream ended inside its first object; else what there is of it is something else."""
    if not parts:
        return True
    first = parts[0]
    if first.complete or first.data.lstrip()[:1] != b"{":
        return False
    try:
        loads(first.data)
    except ValueError:
        return True
    return False


class _Answer:
    """The one completion of an answer."""

    def __init__(self, facts: ResponseFacts) -> None:
        self._facts = facts
        self._role: str | None = None
        self._texts: dict[str, list[str]] = {"content": [], "thinking": []}
        self._calls: list[dict[str, Any]] = []
        self._images: list[Any] = []
        self._others: dict[str, Any] = {}
        self._entries: list[_Entry] | None = None
        self._extra: dict[str, Any] = {}
        self._has_message = self._is_done = False
        self._reason: str | None = None

    def add(self, body: _Body, part: Event) -> None:
        """Reads the next body."""
        self._facts.model = self._facts.model or text_of(body.model)
        message = body.message
        if message is None and body.response is not None:
            message = _Message(content=body.response, thinking=body.thinking, tool_calls=body.tool_calls)
        if message is not None:
            self._add_message(message)
        if body.logprobs is not None:
            self._entries = [*(self._entries or ()), *body.logprobs]
        self._reason = body.done_reason or self._reason
        self._is_done = self._is_done or bool(body.done)
        counts = {name: value for name in _COUNTS if is_count(value := getattr(body, name))}
        if counts:
            self._facts.counts = merged(self._facts.counts, counts)
            self._facts.usage = usage_of(self._facts.counts, "ollama")
        self._extra.update((name, value) for name in _EXTRA if (value := getattr(body, name)) is not None)
        if _BODY.has_unknown(body):
            self._extra.update(fields_without(part.data, _KNOWN))
            self._others.update(fields_without(part.data, _KNOWN_OF_MESSAGE, "message"))

    def choice(self, *, streamed: bool) -> ChoiceFacts | None:
        """The facts of the completion; None where nothing was sampled."""
        if not self._has_message or self._reason in _NOTHING_SAMPLED:
            return None
        message = {
            **self._others,
            "role": self._role,
            "content": "".join(self._texts["content"]),
            "reasoning": "".join(self._texts["thinking"]) or None,
            "tool_calls": self._calls or None,
            "images": self._images or None,
        }
        entries = self._entries
        return ChoiceFacts(
            completion=completion_of(message),
            finish_reason=self._reason,
            logprobs=None if entries is None else [entry.logprob for entry in entries],
            top_logprobs=None if entries is None else top_logprobs_of([entry.top_logprobs for entry in entries]),
            token_texts=None if entries is None else _texts(entries),
            complete=self._facts.error is None and (self._is_done or not streamed),
            issue=TokenIssue(code="ids_missing", message=_CONTEXT) if self._extra.get("context") else None,
        )

    def add_extra(self, choice: ChoiceFacts) -> None:
        """Adds to the choice, whose logprobs have been checked, what has no field of its own."""
        lost = {} if choice.logprobs is not None or not self._entries else {"logprobs": _plain(self._entries)}
        choice.extra = extra_of(self._extra, lost)

    def _add_message(self, message: _Message) -> None:
        self._has_message = True
        self._role = self._role or message.role
        self._texts["content"].append(message.content or "")
        self._texts["thinking"].append(message.thinking or "")
        self._images += message.images or ()
        for call in message.tool_calls or ():
            function = call.function or _Function()
            arguments = None if function.arguments == NULL else bytes(function.arguments).decode("utf-8", "replace")
            self._calls.append({"id": call.id, "function": {"name": function.name, "arguments": arguments}})


def _texts(entries: list[_Entry]) -> PackedTexts | None:
    return texts_of([loads(bytes(entry.token)) for entry in entries], [entry.bytes for entry in entries])


def _plain(entries: list[_Entry]) -> list[Any]:
    """Entries of logprobs as they came."""
    found = []
    for entry in entries:
        raws = {"token": entry.token, "bytes": entry.bytes, "top_logprobs": entry.top_logprobs}
        values = {name: loads(bytes(raw)) for name, raw in raws.items() if raw != NULL}
        found.append({"logprob": entry.logprob, **values})
    return found


_IMAGES = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lG": "image/gif", "UklGR": "image/webp"}
"""Media types of images by how their base64 begins. Ollama's messages do not name them."""


def _content(message: dict[str, Any], report: ExportReport | None) -> Any:
    images = message.get("images")
    if not isinstance(images, list) or not images:
        return message.get("content")
    parts: list[Any] = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    for image in images:
        text = image if isinstance(image, str) else ""
        kind = next((media for beginning, media in _IMAGES.items() if text.startswith(beginning)), None)
        if kind is not None:
            parts.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{text}"}})
        else:
            drop_if(report, True, "images of a format that is not known")
    return parts


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False, separators=(",", ":"))
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def to_chat(sent: tuple[Any, ...], report: ExportReport | None) -> Iterator[dict[str, Any]]:
    """One message, or one prompt, as a chat message.

    Thinking becomes ``reasoning_content``, images become parts of the content, arguments of tool calls a JSON text.
    """
    (message,) = sent
    if isinstance(message, str):
        yield {"role": "user", "content": message}
        return
    if not isinstance(message, dict):
        drop_if(report, True, NO_OBJECT)
        return
    found = {"role": message.get("role"), "content": _content(message, report)}
    if message.get("thinking"):
        found["reasoning_content"] = message["thinking"]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        found["tool_calls"] = [_call(call) for call in calls if isinstance(call, dict)]
    if message.get("role") == "tool":
        named = {"tool_call_id": message.get("tool_call_id"), "name": message.get("tool_name")}
        found.update((name, value) for name, value in named.items() if value)
    yield found
