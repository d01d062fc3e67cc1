"""Recorded exchanges, and streams as Anthropic sends them, spelled out by hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import Step
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode

DATA = Path(__file__).parents[2] / "data"
ENGINES = ("vllm", "llama_server", "transformers_serve", "llama_cpp_python")
JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"


@cache
def exchanges() -> dict[str, Exchange]:
    """The recorded exchanges of /v1/messages, by engine and name."""
    found = {}
    for engine in ENGINES:
        for exchange in load_exchanges(DATA / f"wire_messages_{engine}.jsonl.xz"):
            if exchange.path.partition("?")[0] == "/v1/messages":
                found[f"{engine}/{exchange.name}"] = exchange
    return found


def steps_of(exchange: Exchange) -> list[Step]:
    """What the decoder makes of an exchange."""
    kind = exchange.content_type
    return decode(
        "anthropic.messages", exchange.request, exchange.response, content_type=kind, status=exchange.status or 0
    )


def read(response: bytes, *, content_type: str | None = None, status: int = 200, request: bytes = b"{}") -> Step:
    """The only step of an answer; the content type is what its bytes look like where none is given."""
    (step,) = decode("anthropic.messages", request, response, content_type=content_type, status=status)
    return step


def sse(*events: Any) -> bytes:
    """The body of a stream: events as JSON, or as the bytes they are."""
    parts = []
    for event in events:
        if isinstance(event, bytes):
            parts.append(event)
        else:
            parts.append(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    return b"".join(parts)


def start(**fields: Any) -> dict[str, Any]:
    """The event that begins a message."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    usage = {"input_tokens": 10, "output_tokens": 1}
    return {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage, **fields}}


def block(index: int, value: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one content block."""
    begun = {"type": "content_block_start", "index": index, "content_block": value}
    changes = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [begun, *changes, {"type": "content_block_stop", "index": index}]


def end(stop_reason: str = "end_turn", output: int = 5, **fields: Any) -> list[dict[str, Any]]:
    """The events that end a message."""
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}, **fields}, STOP]


def text(value: str, *, index: int = 0) -> list[dict[str, Any]]:
    """A text block whose every character is a delta."""
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": part} for part in value))


STOP: dict[str, Any] = {"type": "message_stop"}


def unary(*content: Any, **fields: Any) -> bytes:
    """The body of an unstreamed answer."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": list(content)}
    rest = {"stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 5}}
    return json.dumps({**message, **rest, **fields}).encode()


# As the documentation of Anthropic's API shows it, with what is long left out.
THINKING_AND_TOOL = rb"""event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","content":[],"model":"claude-sonnet-4-5","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":377,"cache_creation_input_tokens":20,"cache_read_input_tokens":3,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"The user asks "}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"for the weather."}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqoBCkgIARAB"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"EmwKAhgB"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"Let me "}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"look: \ud83d\ude42"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_01","name":"get_weather","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{\"location\":"}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":" \"Z\\u00fcrich\",  \"days\": 1.50}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"""  # noqa: E501
