"""The Messages API in Anthropic's shape: text, thinking and tool use, as one message or as its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_trace.clients.loopback.messages import Response, anthropic_error, json_bytes

from ._api import Api, Ask, Row, Turn, arguments_object
from ._delivery import BREAKS, Delivery, sse
from ._sampling import Completion, Effect

_Json = dict[str, Any]

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_BROKEN = b'{"type": "broken", "content": [{'


def _event(kind: str, data: bytes) -> bytes:
    return b"event: " + kind.encode() + b"\n" + sse(data)


class MessagesApi(Api):
    """POST …/messages."""

    protocol = "anthropic.messages"
    ends = ("/messages",)
    takes_ids = True
    prefix = "msg_"

    def limits(self, request: Mapping[str, Any]) -> _Json:
        return {"max_tokens": request.get("max_tokens"), "stop": request.get("stop_sequences")}

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        completion = rows[0].completion
        facts = {"content": list(_blocks(turn, completion)), "usage": _usage(turn, completion)}
        return _head(turn, completion) | _reasons(completion) | facts

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        events = [_event(value["type"], json_bytes(value)) for value in _events(turn, rows[0].completion)]
        if delivery.fault.no_done:
            events.pop()  # `message_stop`
        broken, error = _event("content_block_delta", _BROKEN), json_bytes(anthropic_error(500, BREAKS))
        return delivery.stream(events, broken, _event("error", error), "text/event-stream; charset=utf-8")

    def refusal(self, ask: Ask | None, status: int, message: str, param: str | None = None) -> _Json:
        return anthropic_error(status, message)


def _head(turn: Turn, completion: Completion) -> _Json:
    head: _Json = {"id": turn.id, "type": "message", "role": "assistant", "model": turn.model, "content": []}
    nothing_yet = {"stop_reason": None, "stop_sequence": None}
    return head | nothing_yet | dict(completion.reply.extra_message) | dict(completion.reply.extra)


def _blocks(turn: Turn, completion: Completion) -> Iterator[_Json]:
    reasoning, text = completion.text("reasoning"), completion.text("content")
    if reasoning:
        yield {"type": "thinking", "thinking": reasoning, "signature": _signature(turn)}
    if text:
        yield {"type": "text", "text": text}
    for call in range(completion.call_count + completion.call_cut):
        name, arguments = completion.text("call_name", call), completion.text("call_arguments", call)
        yield _call_begun(turn, name, call) | {"input": arguments_object(arguments)}


def _call_begun(turn: Turn, name: str, call: int) -> _Json:
    call_id = turn.call_id(0, call).replace("chatcmpl-tool-", "toolu_")
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def _signature(turn: Turn) -> str:
    return f"signature of {turn.id}"


def _reasons(completion: Completion) -> _Json:
    if isinstance(completion.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop_reason}
    reason = _STOP_REASONS.get(completion.finish_reason, completion.finish_reason)
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(turn: Turn, completion: Completion) -> _Json:
    counts = {"input_tokens": len(turn.prompt_ids), "output_tokens": len(completion.tokens)}
    return counts | dict(completion.reply.usage or {})


def _events(turn: Turn, completion: Completion) -> Iterator[_Json]:
    """The events of a streamed answer; `type` is also the name of the event."""
    begun = {"usage": _usage(turn, completion) | {"output_tokens": 0}}
    yield {"type": "message_start", "message": _head(turn, completion) | begun}
    yield {"type": "ping"}
    writer = _BlockWriter(turn)
    for group, _ in turn.groups(completion.tokens):
        yield from writer.events([token.effect for token in group if token.effect is not None])
    yield from writer.end()
    yield {"type": "message_delta", "delta": _reasons(completion), "usage": _usage(turn, completion)}
    yield {"type": "message_stop"}


class _BlockWriter:
    """Writes effects as content blocks; a new one begins where the field or the tool call changes."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._index = -1
        self._open: tuple[str, int] | None = None

    def events(self, effects: Sequence[Effect]) -> Iterator[_Json]:
        """The events of some tokens' effects."""
        for effect in effects:
            if not effect.text:
                continue
            if effect.kind == "call_name":
                yield from self._begin(("call", effect.call), _call_begun(self._turn, effect.text, effect.call))
            elif effect.kind == "call_arguments":
                yield self._delta({"type": "input_json_delta", "partial_json": effect.text})
            elif effect.kind == "content":
                yield from self._begin(("content", 0), {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": effect.text})
            elif effect.kind == "reasoning":
                yield from self._begin(("reasoning", 0), {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": effect.text})

    def end(self) -> Iterator[_Json]:
        """The events that end the open block."""
        if self._open is None:
            return
        if self._open[0] == "reasoning":
            yield self._delta({"type": "signature_delta", "signature": _signature(self._turn)})
        yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _begin(self, place: tuple[str, int], block: _Json) -> Iterator[_Json]:
        if place != self._open:
            yield from self.end()
            self._index, self._open = self._index + 1, place
            yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: _Json) -> _Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
