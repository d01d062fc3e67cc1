"""vLLM as it answers with and without the fields that are added: what it sent, and the same without what they bring."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rollout_trace.clients.loopback.messages import Response
from rollout_trace.testing import LoopbackServer, RequestRecord, load_exchanges

DATA = Path(__file__).parents[2] / "data"
ADDED = ("logprobs", "return_token_ids", "top_logprobs")
EVENTS = (("content-type", "text/event-stream; charset=utf-8"),)
FILES = ("wire_vllm", "wire_vllm_extras", "wire_vllm_completions", "wire_llama_server")


@cache
def streams() -> dict[str, tuple[dict[str, Any], bytes]]:
    """Recorded streams of chat and completions: the request, and the answer."""
    found = {}
    for file in FILES:
        for one in load_exchanges(DATA / f"{file}.jsonl.xz"):
            if one.status == 200 and one.path.endswith("completions") and one.response.startswith(b"data:"):
                found[f"{file.removeprefix('wire_')}/{one.name}"] = (json.loads(one.request), one.response)
    return found


def events(body: bytes) -> list[bytes]:
    """The events of a stream that ends its lines with a line feed, each with its end."""
    return [event + b"\n\n" for event in body.split(b"\n\n") if event.strip()]


def chunk_of(event: bytes) -> Any:
    """What an event holds; None for the last one."""
    data = event.partition(b"data:")[2].strip()
    return None if data == b"[DONE]" else json.loads(data)


def says_something(event: bytes) -> bool:
    """Whether a program finds anything in it that is not about tokens."""
    chunk = chunk_of(event)
    return not chunk or not chunk.get("choices") or any(_said(choice) for choice in chunk["choices"])


def _said(choice: dict[str, Any]) -> Iterator[Any] | bool:
    delta = choice.get("delta", {})
    return choice.get("finish_reason") is not None or "text" in choice or any(v is not None for v in delta.values())


def bare(event: bytes) -> Any:
    """What an event holds, without the ids and logprobs of its tokens."""
    chunk = chunk_of(event)
    return chunk and without_tokens(chunk)


def without_tokens(chunk: dict[str, Any]) -> dict[str, Any]:
    """A chunk without the fields that only an added one brings."""
    names = {"token_ids", "logprobs", "prompt_token_ids", "prompt_text"}
    choices = [{name: one[name] for name in one if name not in names} for one in chunk.get("choices", ())]
    return {**{name: chunk[name] for name in chunk if name not in names}, "choices": choices}


def is_usage(event: bytes) -> bool:
    """Whether an event holds the usage alone."""
    chunk = chunk_of(event)
    return bool(chunk) and not chunk["choices"]


class Recorded(LoopbackServer):
    """Answers with a recorded stream: the chunks that come for some fields alone only to those who asked for these."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.body = streams()[name][1]

    def answer(self, record: RequestRecord) -> Response:
        asked = record.json or {}
        has_tokens = any(asked.get(name) for name in ADDED)
        has_usage = (asked.get("stream_options") or {}).get("include_usage")
        found = [event for event in events(self.body) if has_usage or not is_usage(event)]
        parts = [event for event in found if has_tokens or says_something(event)]
        return Response(200, EVENTS, parts, chunked=True)
