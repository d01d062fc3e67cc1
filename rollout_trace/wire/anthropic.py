"""``anthropic.messages``: /v1/messages of Anthropic and of engines with the same API, streamed or not.

Anthropic sends no token ids. Fireworks has them in ``raw_output``. ``token_ids``, ``prompt_token_ids`` and ``logprobs``
are also read from the message, its blocks and the events of its stream, where a server puts them there.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from msgspec import Raw, Struct, json

from rollout_trace.data.model import ErrorInfo
from rollout_trace.wire import align, blocks
from rollout_trace.wire.errors import brief, error_of, error_value
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, LenientDecoder, loads
from rollout_trace.wire.logprobs import number_of
from rollout_trace.wire.places import COMPLETION_IDS, MESSAGES, PROMPT_IDS, Path, look_up
from rollout_trace.wire.reading import (
    error_without_choices,
    is_read,
    mark_malformed,
    merged,
    text_of,
    unreadable,
    usage_of,
)
from rollout_trace.wire.sse import Event, events, framed_events, is_framed


class _Event(Struct):
    type: Any = None
    index: int | None = None
    message: dict[str, Any] | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    token_ids: Any = None
    prompt_token_ids: Any = None
    logprobs: Any = None
    raw_output: Any = None


class _Input(Struct):
    input: Raw = Raw()


class _Inputs(Struct):
    content: list[_Input] = []
    content_block: _Input | None = None


_EVENT = LenientDecoder(_Event)
_INPUTS = json.Decoder(_Inputs)
_NEEDED = {
    "message_start": "message",
    "content_block_start": "content_block",
    "content_block_delta": "delta",
    "message_delta": "delta",
}
_WITHOUT_CONTENT = frozenset({"ping", "content_block_stop"})
_MAPPED_FIELDS = frozenset(
    {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage", "index", "delta", "message"}
    | blocks.TOKEN_FIELDS
)


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    message = _Message()
    # Requests to Bedrock have no `stream` in their body: only the bytes of the answer show that it is a stream.
    framed = is_framed(response)
    if framed or streamed:
        parts = list(framed_events(response) if framed else events(response))
        done = _read_events(parts, facts, message)
        if not message.begun and facts.error is None:
            facts.error = error_without_choices(parts, response, status, _is_known)
    else:
        done = _read_body(response, facts, message, status)
    if message.begun:
        message.write_to(facts, done=done)
        for choice in facts.choices:
            choice.prompt_token_ids = request.ids(choice.prompt_token_ids)
        mark_malformed(facts, streamed=framed or streamed)
    align.check(facts.choices, facts.usage)
    return facts


def _read_body(response: bytes, facts: ResponseFacts, message: _Message, status: int) -> bool:
    try:
        body = loads(response)
    except ValueError as error:
        facts.error = ErrorInfo(type="InvalidJSON", message=f"{error} in {brief(response)}")
        return False
    if not isinstance(body, dict) or body.get("error") or not isinstance(body.get("content"), (list, str)):
        facts.error = error_of(response, status)
        return False
    message.add_body(body, response)
    return True


def _read_events(parts: list[Event], facts: ResponseFacts, message: _Message) -> bool:
    """Reads the events of a stream in order; True where the stream reached its end (``message_stop`` or [DONE]).

    Behind its end an error counts alone: its caller gets it.
    """
    done = False
    for part in parts:
        if part.data.startswith(b"[DONE]"):
            return True
        try:
            event, problem = _EVENT.decode(part.data)
        except ValueError as error:
            kind = part.type.decode("utf-8", "replace")
            if part.complete and kind not in ("", "error", "message_stop") and kind not in _NEEDED:
                continue
            # A cut event is where the stream broke off, not an error of the server's.
            if part.complete and not done:
                facts.error = unreadable(part, error)
            return done
        facts.malformed = facts.malformed or (None if done else problem)
        kind = event.type if isinstance(event.type, str) else part.type.decode("utf-8", "replace")
        if kind == "error" or part.type == b"error" or event.error:
            facts.error = error_value(event.error or _fields_of(part.data))
            return done
        if not done:
            message.add(kind, event, part.data)
        done = done or kind == "message_stop"
    return done


def _is_known(part: Event) -> bool:
    return part.type in (b"ping", b"message_stop") or is_read(_EVENT, part, lambda event: isinstance(event.type, str))


class _Message:
    """One message, from its only body or from its events."""

    def __init__(self) -> None:
        self.begun = False
        self._fields: dict[str, Any] = {}
        self._extra: dict[str, Any] = {}
        self._counts: dict[str, Any] = {}
        self._blocks: list[blocks.Block] = []
        self._block_at: dict[int | None, blocks.Block] = {}
        self._tokens = MessageTokens()
        self._problem: str | None = None

    def add_body(self, body: dict[str, Any], data: bytes) -> None:
        """Reads a whole, unstreamed message."""
        self._tokens.add_message(body)
        self._add_message(body, data)
        for value in body["content"] if isinstance(body["content"], list) else ():
            self._tokens.add_part(value)

    def add(self, kind: str, event: _Event, data: bytes) -> None:
        """Reads the next event of a stream. Unknown kinds are kept as they came, in ``extra["events"]``."""
        if kind == "content_block_delta" and event.delta is not None:
            # Nearly every event is one of these.
            self._tokens.add_event(event)
            self._tokens.add_part(event.delta)
            block = self._blocks[-1] if event.index is None and self._blocks else self._block_at.get(event.index)
            if block is None:
                block = self._start_block(event.index, blocks.implied_start(event.delta), b"")
            block.add(event.delta)
            return
        needed = _NEEDED.get(kind)
        if needed is not None and getattr(event, needed) is None:
            self._problem = self._problem or f"An event {kind} has no `{needed}`"
            return
        self._tokens.add_event(event)
        self._count(event.usage)
        if event.message is not None and kind == "message_start":
            self._tokens.add_part(event.message)
            self._add_message(event.message, data)
        elif event.content_block is not None and kind == "content_block_start":
            self._tokens.add_part(event.content_block)
            self._start_block(event.index, event.content_block, data)
        elif event.delta is not None and kind == "message_delta":
            self._tokens.add_part(event.delta)
            self.begun = True
            for name in ("stop_reason", "stop_sequence"):
                self._fields[name] = event.delta.get(name) or self._fields.get(name)
            self._keep_extra(event.delta)
            self._keep_extra(_fields_of(data))
            self._count(event.delta.get("usage"))
        elif kind == "message_stop":
            self._keep_extra(_fields_of(data))
        elif kind not in _WITHOUT_CONTENT:
            self._extra.setdefault("events", []).append(_fields_of(data))

    def write_to(self, facts: ResponseFacts, *, done: bool) -> None:
        """Writes what was read to the facts. ``done``: the answer reached its end."""
        fields, finish_reason = self._fields, text_of(self._fields.get("stop_reason"))
        facts.response_id, facts.model = text_of(fields.get("id")), text_of(fields.get("model"))
        facts.usage = usage_of(self._counts, "anthropic") if self._counts else None
        facts.malformed = facts.malformed or self._problem or self._tokens.problem
        choice = ChoiceFacts(
            completion=blocks.completion_of(fields.get("role"), self._blocks, self._extra),
            finish_reason=finish_reason,
            stop_reason=text_of(fields.get("stop_sequence")),
            complete=done or finish_reason is not None,
        )
        self._tokens.write_to(choice)
        facts.choices = [choice]

    def _add_message(self, message: dict[str, Any], data: bytes) -> None:
        self.begun = True
        for name in ("id", "role", "model", "stop_reason", "stop_sequence"):
            self._fields[name] = self._fields.get(name) or message.get(name) or None
        self._keep_extra(message)
        self._count(message.get("usage"))
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        values = content if isinstance(content, list) else []
        inputs = _raw_inputs(data) if any(isinstance(v, dict) and v.get("input") for v in values) else []
        for position, value in enumerate(values):
            self._add_block(position, blocks.Block(value, inputs[position] if position < len(inputs) else None), value)

    def _start_block(self, index: int | None, value: dict[str, Any], data: bytes) -> blocks.Block:
        self.begun = True
        raw = _raw_inputs(data) if value.get("input") else []
        self._add_block(index, blocks.Block(value, raw[0] if raw else None), value)
        return self._blocks[-1]

    def _add_block(self, index: int | None, block: blocks.Block, value: Any) -> None:
        # Some servers number every block 0: a block that begins is always a new one, whatever its index.
        self._blocks.append(block)
        self._block_at[len(self._blocks) - 1 if index is None else index] = block
        if block.type == "fallback" and isinstance(value.get("to"), dict):
            # The model that continues is the one that an unstreamed answer names.
            self._fields["model"] = value["to"].get("model") or self._fields.get("model")

    def _keep_extra(self, values: dict[str, Any]) -> None:
        """Collects the fields that no field of a step holds, for ``extra``."""
        for name, value in values.items():
            if value is not None and name not in _MAPPED_FIELDS:
                # Its ids and logprobs become the step's own arrays.
                self._extra[name] = _without_tokens(value) if name == "raw_output" else value

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts = merged(self._counts, usage)


def _fields_of(data: bytes) -> dict[str, Any]:
    try:
        fields = loads(data)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _raw_inputs(data: bytes) -> list[str | None]:
    """The JSON source of each block's ``input``, from a message, its event, or the event that starts a block."""
    try:
        found = _INPUTS.decode(data)
    except DECODE_ERRORS:
        return []
    inputs = found.content if found.content_block is None else [found.content_block]
    return [bytes(item.input).decode("utf-8", "replace") or None for item in inputs]


_COMPLETIONS = tuple(row for row in COMPLETION_IDS if row.protocols >= MESSAGES)
_PROMPTS = tuple(row.ids for row in PROMPT_IDS if row.protocols >= MESSAGES)
_PATHS = (*_PROMPTS, *(row.ids for row in _COMPLETIONS), *(row.logprobs for row in _COMPLETIONS if row.logprobs))
NAMES = tuple(sorted({str(path[0]) for path in _PATHS}))
"""The fields that can hold ids or logprobs."""
_VALUES = attrgetter(*NAMES)
_NOTHING = (None,) * len(NAMES)


class MessageTokens:
    """Gathers ids and logprobs: those of the whole message, else of its parts in order, else in ``raw_output``."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._prompt: list[int] | None = None
        self._whole: tuple[list[int] | None, list[Any] | None] = (None, None)
        self._raw: tuple[list[int] | None, list[Any] | None] = (None, None)
        self._ids: list[int] = []
        self._logprobs: list[Any] = []
        self._uneven = False

    def add_message(self, message: dict[str, Any]) -> None:
        """Reads the ids and logprobs of an unstreamed message, those of its blocks excepted."""
        if not message.keys().isdisjoint(NAMES):
            self._set_prompt_ids(message)
            self._whole = self._tokens_in(message)

    def add_part(self, values: Any) -> None:
        """Appends the ids and logprobs of a block, a delta, or the message that begins a stream."""
        # Nearly no server sends any of these: the common case ends here.
        if not isinstance(values, dict) or values.keys().isdisjoint(NAMES):
            return
        self._set_prompt_ids(values)
        ids, logprobs = self._tokens_in(values)
        if ids or logprobs:
            self._uneven = self._uneven or len(ids or ()) != len(logprobs or ())
            self._ids += ids or ()
            self._logprobs += logprobs or ()

    def add_event(self, event: Any) -> None:
        """Appends the ids and logprobs that are on an event itself, beside its delta."""
        found = _VALUES(event)
        if found != _NOTHING:
            self.add_part({name: value for name, value in zip(NAMES, found, strict=True) if value})

    def write_to(self, choice: ChoiceFacts) -> None:
        """Writes the gathered ids and logprobs to a choice."""
        # Never mixed: ids of one place beside logprobs of another could be of different tokens.
        parts = (self._ids or None, self._logprobs or None)
        found = next((pair for pair in (self._whole, parts, self._raw) if pair[0] or pair[1]), (None, None))
        choice.prompt_token_ids = self._prompt
        choice.completion_token_ids, choice.logprobs = found
        choice.token_source = None if found[0] is None else "engine"
        choice.uneven = found is parts and self._uneven

    def _set_prompt_ids(self, values: dict[str, Any]) -> None:
        for path in _PROMPTS:
            self._prompt = self._prompt or self._ids_at(values, path)

    def _tokens_in(self, values: dict[str, Any]) -> tuple[list[int] | None, list[Any] | None]:
        """Ids and logprobs on the values themselves. Those of the whole answer (``raw_output``) are kept apart."""
        own: tuple[list[int] | None, list[Any] | None] = (None, None)
        for row in _COMPLETIONS:
            logprobs = None if row.logprobs is None else _logprobs_of(look_up(values, row.logprobs, 0))
            found = (self._ids_at(values, row.ids), logprobs)
            if row.of_body and (found[0] or found[1]):
                self._raw = found
            elif not row.of_body:
                own = found
        return own

    def _ids_at(self, values: dict[str, Any], path: Path) -> list[int] | None:
        ids = look_up(values, path, 0)
        if ids is None or (isinstance(ids, list) and all(type(item) is int for item in ids)):
            return ids
        self.problem = self.problem or f"`{path[-1]}` is not a list of whole numbers"
        return None


def _logprobs_of(value: Any) -> list[Any] | None:
    """Numbers, OpenAI's ``content`` entries, or the older ``token_logprobs``; None where it is none of these."""
    if isinstance(value, dict):
        value = value.get("content") if value.get("content") is not None else value.get("token_logprobs")
    if not isinstance(value, list):
        return None
    return [number_of(item.get("logprob") if isinstance(item, dict) else item) for item in value]


def _without_tokens(raw_output: Any) -> Any:
    if not isinstance(raw_output, dict):
        return raw_output
    gathered = ("prompt_token_ids", "completion_token_ids", "completion_logprobs")
    return {name: value for name, value in raw_output.items() if name not in gathered}
