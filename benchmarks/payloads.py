"""Seeded exchanges in vLLM 0.32's shape: small, large, streamed, and the turns of a long agent."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

VOCABULARY = 151_936
MODEL = "bench-7b"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one call sends and gets."""

    name: str
    messages: list[dict[str, Any]]
    pieces: tuple[bytes, ...]
    """The body of the answer as it arrives from the network."""
    streamed: bool = False

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)

    @property
    def content_type(self) -> str:
        """As vLLM sends it."""
        return "text/event-stream; charset=utf-8" if self.streamed else "application/json"

    @property
    def request(self) -> bytes:
        """The body that the SDK sends for the call."""
        asked = {"messages": self.messages, "model": MODEL, "logprobs": True}
        if self.streamed:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        return compact({**asked, "return_token_ids": True})


def small(seed: int = 1) -> Exchange:
    """1.7 kB answered: 50 prompt ids, 8 sampled."""
    return unary("small call", conversation(1, 200, seed), token_ids(50, seed + 1), 8, seed + 2)


def large(seed: int = 4) -> Exchange:
    """63 kB answered to 7.8 kB asked: 2,000 prompt ids, 500 sampled with their logprobs."""
    return unary("63 kB call", conversation(8, 7_300, seed), token_ids(2_000, seed + 1), 500, seed + 2)


def stream(seed: int = 4) -> Exchange:
    """The same answer as 102 events: 100 of them with five tokens each."""
    words, ids, logprobs = sampled(500, seed + 2)
    head = {"id": f"chatcmpl-{seed:016x}", "object": "chat.completion.chunk", "created": 1_795_221_090, "model": MODEL}
    first = _delta({"role": "assistant", "content": ""}, None, None)
    events = [{**head, "choices": [first], "prompt_token_ids": token_ids(2_000, seed + 1), "prompt_text": None}]
    for start in range(0, 500, 5):
        part = slice(start, start + 5)
        choice = _delta({"content": "".join(words[part])}, _logprobs(words[part], logprobs[part]), ids[part])
        if start == 495:
            choice |= {"finish_reason": "stop", "stop_reason": None}
        events.append({**head, "choices": [choice]})
    events.append({**head, "choices": [], "usage": usage(2_000, 500)})
    pieces = [b"data: " + compact(event) + b"\n\n" for event in events]
    return Exchange("100-chunk stream", conversation(8, 7_300, seed), (*pieces, b"data: [DONE]\n\n"), streamed=True)


def unary(name: str, messages: list[dict[str, Any]], prompt: list[int], length: int, seed: int) -> Exchange:
    """An answer of ``length`` tokens to a prompt."""
    words, ids, logprobs = sampled(length, seed)
    return Exchange(name, messages, (compact(_answer(seed, prompt, words, ids, logprobs)),))


def _answer(seed: int, prompt: list[int], words: list[str], ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(words), "refusal": None, "annotations": None, "audio": None}
    choice = {
        "index": 0,
        "message": {**message, "function_call": None, "reasoning": None},
        "logprobs": _logprobs(words, logprobs),
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": ids,
        "routed_experts": None,
    }
    return {
        "id": f"chatcmpl-{seed:016x}",
        "object": "chat.completion",
        "created": 1_795_221_090,
        "model": MODEL,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0",
        "usage": {**usage(len(prompt), len(ids)), "prompt_tokens_details": None},
        "prompt_logprobs": None,
        "prompt_token_ids": prompt,
        "kv_transfer_params": None,
    }


def _delta(delta: dict[str, Any], logprobs: dict[str, Any] | None, ids: list[int] | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
    return choice if ids is None else {**choice, "token_ids": ids}


def _logprobs(words: list[str], logprobs: list[float]) -> dict[str, Any]:
    return {
        "content": [
            {"token": word, "logprob": logprob, "bytes": list(word.encode()), "top_logprobs": []}
            for word, logprob in zip(words, logprobs, strict=True)
        ]
    }


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """Token counts that agree with the ids."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def sampled(length: int, seed: int) -> tuple[list[str], list[int], list[float]]:
    """Words, ids and logprobs of a completion."""
    source = random.Random(seed)
    words = [" " + "".join(source.choices("etaoinshrdlu", k=source.randint(1, 5))) for _ in range(length)]
    logprobs = [-source.expovariate(2.0) for _ in range(length)]
    return words, token_ids(length, seed), logprobs


def token_ids(length: int, seed: int) -> list[int]:
    """Ids of a prompt."""
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def conversation(turns: int, characters: int, seed: int) -> list[dict[str, Any]]:
    """Messages of about ``characters`` in all, the last of them the user's."""
    source = random.Random(seed)
    each = characters // (2 * turns)
    roles = ["system", *["user", "assistant"] * (turns - 1), "user"]
    return [{"role": role, "content": text(each, source)} for role in roles]


def text(characters: int, source: random.Random) -> str:
    """Words of random letters."""
    return " ".join("".join(source.choices("etaoinshrdlu", k=5)) for _ in range(characters // 6))


def compact(value: Any) -> bytes:
    """JSON as vLLM and the SDK write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def ask(client: Any, exchange: Exchange) -> None:
    """One call, as its user makes it; a stream is read to its end."""
    answer = client.chat.completions.create(**arguments(exchange))
    if exchange.streamed:
        for _ in answer:
            pass


def arguments(exchange: Exchange) -> dict[str, Any]:
    """Arguments of ``create``; they ask for ids and logprobs, so that a recorder has nothing to add to the request."""
    asked: dict[str, Any] = {"model": MODEL, "messages": exchange.messages, "logprobs": True}
    if exchange.streamed:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return {**asked, "extra_body": {"return_token_ids": True}}
