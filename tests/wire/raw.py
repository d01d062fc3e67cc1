"""Plain readings of recorded exchanges, made with `json` alone: what the decoder must find. And builders of answers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import Step
from rollout_trace.testing.recordings import load_exchanges, load_reports
from rollout_trace.wire import decode

PACKED = Path(__file__).parent.parent / "data" / "wire_vllm.jsonl.xz"
JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"


@cache
def exchanges() -> dict[str, Exchange]:
    """The recorded exchanges of /chat/completions and what lies below it, by name."""
    return {e.name: e for e in load_exchanges(PACKED) if e.path.startswith("/v1/chat/completions")}


@cache
def reports() -> dict[str, Any]:
    """The recorder's own findings about the multi-turn recordings, by name."""
    return load_reports(PACKED)


def steps_of(exchange: Exchange) -> list[Step]:
    """What the decoder makes of an exchange; of a recording it is asked once, for many tests."""
    return list(_recorded(exchange.name)) if exchanges().get(exchange.name) is exchange else decoded(exchange)


@cache
def _recorded(name: str) -> list[Step]:
    return decoded(exchanges()[name])


def decoded(exchange: Exchange) -> list[Step]:
    """What the decoder makes of an exchange, asked anew."""
    return decode(
        "openai.chat",
        exchange.request,
        exchange.response,
        content_type=exchange.content_type,
        status=exchange.status or 0,
    )


def bodies(exchange: Exchange) -> list[dict[str, Any]]:
    """The answer's JSON: one object, or one for each chunk."""
    text = exchange.response.decode()
    if "event-stream" not in exchange.content_type:
        return [json.loads(text)]
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def copied(value: Any) -> Any:
    """A copy of a JSON value; of long ones ten times faster than `deepcopy`."""
    return pickle.loads(pickle.dumps(value))


class Said(NamedTuple):
    """One choice, as the bytes say it."""

    prompt_ids: list[int] | None
    ids: list[int] | None
    logprobs: list[float] | None
    top_logprobs: list[list[dict[str, Any]]] | None
    text: str | None
    calls: list[tuple[str | None, str | None, str | None]]  # id, name, arguments
    finish_reason: str | None
    stop_reason: str | int | None


def said(exchange: Exchange) -> dict[int, Said]:
    """Every choice of an answer, by its index."""
    parts: dict[int, list[dict[str, Any]]] = {}
    prompts = [body["prompt_token_ids"] for body in bodies(exchange) if body.get("prompt_token_ids")]
    for body in bodies(exchange):
        for choice in body.get("choices", ()):
            parts.setdefault(choice["index"], []).append(choice)
    return {index: _choice(prompts[0] if prompts else None, found) for index, found in parts.items()}


def _choice(prompt_ids: list[int] | None, parts: list[dict[str, Any]]) -> Said:
    messages = [part.get("message") or part.get("delta") or {} for part in parts]
    entries = concatenated(part["logprobs"]["content"] for part in parts if part.get("logprobs"))
    ids = concatenated(part["token_ids"] for part in parts if part.get("token_ids") is not None)
    if ids is None and entries and all(entry["token"].startswith("token_id:") for entry in entries):
        ids = [int(entry["token"].removeprefix("token_id:")) for entry in entries]
    texts = [message["content"] for message in messages if message.get("content") is not None]
    tops = [entry["top_logprobs"] for entry in entries or ()]
    return Said(
        prompt_ids,
        ids,
        None if entries is None else [entry["logprob"] for entry in entries],
        tops if any(tops) else None,
        "".join(texts) if texts else None,
        _calls(messages),
        next((part["finish_reason"] for part in parts if part.get("finish_reason")), None),
        next((part["stop_reason"] for part in parts if part.get("stop_reason") is not None), None),
    )


def _calls(messages: list[dict[str, Any]]) -> list[tuple[str | None, str | None, str | None]]:
    found: dict[int, dict[str, str]] = {}
    for message in messages:
        for position, call in enumerate(message.get("tool_calls") or ()):
            kept = found.setdefault(call.get("index", position), {})
            function = call.get("function") or {}
            for name, value in (("id", call.get("id")), *((key, function.get(key)) for key in ("name", "arguments"))):
                if value is not None:
                    kept[name] = kept.get(name, "") + value
    return [(call.get("id"), call.get("name"), call.get("arguments")) for call in found.values()]


def concatenated(lists: Iterable[list[Any]]) -> list[Any] | None:
    """All items in order; None where there was no list at all."""
    found = list(lists)
    return [item for items in found for item in items] if found else None


def entries(*logprobs: Any) -> dict[str, Any]:
    """`logprobs` of a choice that holds these numbers (or whatever else stands in their place)."""
    return {"content": [{"token": "x", "logprob": value, "bytes": [120], "top_logprobs": []} for value in logprobs]}


def unary(*choices: dict[str, Any], **fields: Any) -> bytes:
    """The body of an unstreamed answer."""
    numbered = [{"index": index, "finish_reason": "stop", **choice} for index, choice in enumerate(choices)]
    return json.dumps({"id": "r", "object": "chat.completion", "model": "m", "choices": numbered, **fields}).encode()


def tokens(ids: Any, logprobs: Any, **fields: Any) -> dict[str, Any]:
    """A choice that says "x" with these ids and logprobs."""
    return {"message": {"role": "assistant", "content": "x"}, "token_ids": ids, "logprobs": logprobs, **fields}


def sse(*chunks: Any, done: bool = True) -> bytes:
    """The body of a stream: chunks as JSON, or as the bytes they are."""
    data = [chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode() for chunk in chunks]
    return b"".join(b"data: " + item + b"\n\n" for item in [*data, *([b"[DONE]"] if done else [])])


def delta(part: dict[str, Any] | None = None, *, index: int = 0, **fields: Any) -> dict[str, Any]:
    """A chunk of one choice."""
    return {"id": "r", "model": "m", "choices": [{"index": index, "delta": part or {}, **fields}]}


def streamed(*parts: dict[str, Any], finish_reason: str = "stop") -> bytes:
    """A whole stream of one choice, made of these deltas."""
    return sse(*(delta(part) for part in parts), delta(finish_reason=finish_reason))


def read(response: bytes, *, request: bytes | None = b"{}", content_type: str | None = None, status: int = 200) -> Step:
    """The only step of an answer; the content type is what its bytes look like where none is given."""
    if content_type is None:
        content_type = SSE if response.startswith(b"data:") else JSON
    (step,) = decode("openai.chat", request, response, content_type=content_type, status=status)
    return step
