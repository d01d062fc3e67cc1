"""What a server said, read from the bytes it sent: a second opinion, independent of the library's decoder."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace.testing import RequestRecord


@dataclass
class Told:
    """One choice of an answer."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None


def body_of(record: RequestRecord) -> bytes:
    """The body of the answer, without its content encoding."""
    encoding = dict(record.response_headers).get("content-encoding")
    if encoding is None:
        return record.response_body
    if encoding == "gzip":
        return zlib.decompressobj(31).decompress(record.response_body)
    if encoding == "br":
        import brotli

        decoder = brotli.Decompressor()
        return b"".join(decoder.process(chunk) for chunk in record.response_chunks)
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj().decompress(record.response_body)


def bodies_of(record: RequestRecord) -> list[Any]:
    """The JSON objects of an answer: one, or one for each event."""
    text = body_of(record).decode()
    if not text.startswith("data:"):
        return [json.loads(text)]
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(event) for event in events if event != "[DONE]"]


def told(record: RequestRecord) -> tuple[str, list[int] | None, dict[int, Told]]:
    """The id of an answer, the ids of its prompt, and its choices by index."""
    bodies = bodies_of(record)
    prompt = next((body["prompt_token_ids"] for body in bodies if body.get("prompt_token_ids") is not None), None)
    choices: dict[int, Told] = {}
    for body in bodies:
        for choice in body.get("choices", ()):
            found = choices.setdefault(choice["index"], Told())
            message = choice.get("message") or choice.get("delta") or {}
            found.text += message.get("content") or ""
            found.ids += choice.get("token_ids") or ()
            found.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or ()]
            found.finish_reason = choice.get("finish_reason") or found.finish_reason
    return bodies[0]["id"], prompt, choices


def assert_said(steps: Sequence[rt.Step], records: Sequence[RequestRecord]) -> None:
    """Every whole chat step holds what the server said, token for token."""
    whole = [step for step in steps if step.status == "ok" and step.protocol == "openai.chat"]
    answers = dict(_by_id(records)) if whole else {}
    for step in whole:
        prompt, choices = answers[str(step.response_id)]
        said = choices[step.choice]
        assert step.completion is not None
        assert (step.completion.content or "") == said.text
        assert step.finish_reason == said.finish_reason
        assert (
            step.usage is None
            or step.usage.output == sum(len(choice.ids) for choice in choices.values())
            or not said.ids
        )
        if step.token_issue is None:
            assert prompt is not None
            assert step.prompt_token_ids is not None
            assert step.prompt_token_ids.tolist() == prompt
            assert step.completion_token_ids is not None
            assert step.completion_token_ids.tolist() == said.ids
            if said.logprobs:
                assert step.logprobs is not None
                np.testing.assert_array_equal(step.logprobs, np.array(said.logprobs, np.float32))


def _by_id(records: Sequence[RequestRecord]) -> Iterator[tuple[str, tuple[list[int] | None, dict[int, Told]]]]:
    for record in records:
        if record.status == 200 and record.path.endswith("/chat/completions"):
            try:
                response_id, prompt, choices = told(record)
            except ValueError:
                continue  # cut, or no JSON: no step of it is whole
            yield response_id, (prompt, choices)
