"""What a server said, read from the bytes it sent: a second opinion, independent of the library's decoder."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import rollout_trace as rt
from rollout_trace.testing import RequestRecord


def body_of(record: RequestRecord) -> bytes:
    """The body of the answer, without its content encoding."""
    if dict(record.response_headers).get("content-encoding") == "gzip":
        return zlib.decompressobj(31).decompress(record.response_body)
    return record.response_body


def _objects(record: RequestRecord) -> list[dict[str, Any]]:
    text = body_of(record).decode()
    if text.startswith("data:"):
        return [json.loads(line[6:]) for line in text.split("\r\n") if line.startswith("data: ")]
    value = json.loads(text)
    return value if isinstance(value, list) else [value]


def _said(objects: Sequence[dict[str, Any]], index: int) -> Any:
    """Text, thoughts, calls, finish reason, ids and logprobs of one candidate."""
    candidates = [c for one in objects for c in one["candidates"] if c.get("index", 0) == index]
    parts = [part for candidate in candidates for part in candidate["content"]["parts"]]
    chosen = [entry for c in candidates for entry in c.get("logprobsResult", {}).get("chosenCandidates", [])]
    return (
        "".join(part.get("text", "") for part in parts if not part.get("thought")),
        "".join(part.get("text", "") for part in parts if part.get("thought")),
        [(call["name"], call["args"]) for part in parts if (call := part.get("functionCall"))],
        next(c["finishReason"] for c in candidates if "finishReason" in c),
        [entry["tokenId"] for entry in chosen],
        [entry["logProbability"] for entry in chosen],
    )


def _held(step: rt.Step) -> Any:
    completion = step.completion
    assert completion is not None
    return (
        completion.content or "",
        completion.reasoning or "",
        [(call.name, json.loads(call.arguments or "{}")) for call in completion.tool_calls],
        step.finish_reason,
        [] if step.completion_token_ids is None else step.completion_token_ids.tolist(),
        [] if step.logprobs is None else step.logprobs.tolist(),
    )


def assert_said(steps: Sequence[rt.Step], records: Sequence[RequestRecord]) -> None:
    """Every whole step holds what the server said."""
    answers = {}
    for record in records:
        if record.status == 200:
            try:
                objects = _objects(record)
                answers[objects[-1]["responseId"]] = objects
            except (ValueError, KeyError):
                continue  # Cut, or no answer: no step of it is whole.
    for step in steps:
        if step.status == "ok":
            objects = answers[str(step.response_id)]
            assert _held(step) == _said(objects, step.choice)
            usage = {name: count for one in objects for name, count in one["usageMetadata"].items()}
            assert step.usage is not None
            assert step.usage.output == usage["totalTokenCount"] - usage["promptTokenCount"]
