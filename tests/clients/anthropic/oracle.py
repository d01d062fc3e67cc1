"""What a server said, read from the bytes it sent: a second opinion, independent of the library's decoder."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import rollout_trace as rt
from rollout_trace.testing import RequestRecord


class Told(NamedTuple):
    """A whole message."""

    id: str
    text: str
    thinking: str
    calls: list[tuple[str, str, Any]]
    stop_reason: str
    stop_sequence: str | None
    output_tokens: int


def body_of(record: RequestRecord) -> bytes:
    """The body of the answer, without its content encoding."""
    if dict(record.response_headers).get("content-encoding") == "gzip":
        return zlib.decompressobj(31).decompress(record.response_body)
    return record.response_body


def told(record: RequestRecord) -> Told:
    """The message of an answer."""
    text = body_of(record).decode()
    return _told_at_once(json.loads(text)) if text.startswith("{") else _told_in_events(text)


def _told_at_once(message: dict[str, Any]) -> Told:
    blocks = message["content"]
    return Told(
        message["id"],
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        message["stop_reason"],
        message["stop_sequence"],
        message["usage"]["output_tokens"],
    )


def _told_in_events(text: str) -> Told:
    data = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    deltas = [event["delta"] for event in data if event["type"] == "content_block_delta"]
    calls: list[tuple[str, str, Any]] = []
    for begun in (event for event in data if event["type"] == "content_block_start"):
        if begun["content_block"]["type"] == "tool_use":
            mine = [e["delta"] for e in data if e["type"] == "content_block_delta" and e["index"] == begun["index"]]
            arguments = "".join(delta["partial_json"] for delta in mine)
            calls.append((begun["content_block"]["id"], begun["content_block"]["name"], json.loads(arguments)))
    (last,) = [event for event in data if event["type"] == "message_delta"]
    return Told(
        data[0]["message"]["id"],
        "".join(delta.get("text", "") for delta in deltas),
        "".join(delta.get("thinking", "") for delta in deltas),
        calls,
        last["delta"]["stop_reason"],
        last["delta"]["stop_sequence"],
        last["usage"]["output_tokens"],
    )


def assert_said(steps: Sequence[rt.Step], records: Sequence[RequestRecord]) -> None:
    """Every whole step holds what the server said."""
    answers = {}
    for record in records:
        if record.status == 200:
            try:
                message = told(record)
            except (ValueError, KeyError):
                continue  # cut, or no message: no step of it is whole
            answers[message.id] = message
    for step in steps:
        if step.status != "ok":
            continue
        said, completion = answers[str(step.response_id)], step.completion
        assert completion is not None
        assert (completion.content or "", completion.reasoning or "") == (said.text, said.thinking)
        assert [(c.id, c.name, json.loads(c.arguments or "")) for c in completion.tool_calls] == said.calls
        assert (step.finish_reason, step.stop_reason) == (said.stop_reason, said.stop_sequence)
        assert step.usage is not None
        assert step.usage.output == said.output_tokens
