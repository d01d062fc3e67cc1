"""Exchanges of SGLang, Google and Ollama, made by hand as in tests/wire: no server of theirs could be recorded."""

from __future__ import annotations

import json
from typing import Any

from rollout_trace.testing import Exchange
from tests.wire import test_google as google
from tests.wire import test_ollama as ollama
from tests.wire.raw import JSON, SSE, sse
from tests.wire.test_sglang_extras import EXPERTS, IDS, LOGPROBS, PROMPT, TOPS, b64, flat, growing, info, spans

_LAST: dict[str, Any] = {"routed_experts": b64(EXPERTS), "weight_versions": spans(0, 2, 3)}
_SCORES: dict[str, Any] = {
    "input_token_logprobs": [[None, 11, None], *([-1.0, token, None] for token in PROMPT[1:])],
    "input_top_logprobs": [None, *TOPS],
}


def made_exchanges() -> list[Exchange]:
    """/generate, unstreamed with alternatives in all forms and streamed in both ways; chat and completions."""
    request = {"input_ids": PROMPT}
    lists = {**growing(3, 0), **_SCORES, **_LAST, "hidden_states": [[0.5]]}
    as_flat = {**flat("output", TOPS), **flat("input", TOPS, 1, as_bytes=True), **_LAST}
    samples = [_sample(lists), _sample(as_flat), _sample({**lists, "routed_experts": [[[1, 2]]] * 6})]
    found = [_exchange("/generate", request, sample) for sample in samples]
    found.append(_exchange("/generate", {**request, "sampling_params": {"n": 2}}, samples[:2]))
    for incremental in (False, True):
        chunks = [
            _sample(
                {**growing(size, size - 1 if incremental else 0), **_SCORES, **(_LAST if size == 3 else {})},
                size,
                size - 1 if incremental else 0,
            )
            for size in (1, 2, 3)
        ]
        found.append(_exchange("/generate", {**request, "stream": True}, chunks, streamed=True))
    return [*found, *_openai(lists), *_google(), *_ollama()]


def _sample(fields: dict[str, Any], size: int = 3, since: int = 0) -> dict[str, Any]:
    text = "".join((" a", " b", " c")[since:size])
    return {"text": text, "output_ids": IDS[since:size], "meta_info": info(size, since=since, **fields)}


def _openai(lists: dict[str, Any]) -> list[Exchange]:
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    entries = [{"token": "t", "logprob": value, "top_logprobs": []} for value in LOGPROBS]
    ended: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    chat = {
        **ended, "message": {"role": "assistant", "content": "abc"}, "logprobs": {"content": entries},
        "prompt_token_ids": PROMPT, "response_token_ids": IDS,
    }  # fmt: skip
    arrays = {"tokens": ["a", "b", "c"], "token_logprobs": LOGPROBS, "top_logprobs": []}
    text = {**ended, "text": "abc", "token_ids": IDS, "prompt_token_ids": PROMPT, "logprobs": arrays}
    around = {
        "sglext": {"routed_experts": _LAST["routed_experts"]},
        "metadata": {"weight_version": "v1", "weight_versions": _LAST["weight_versions"]},
    }
    paths = ("/v1/chat/completions", "/v1/completions")
    found = [_exchange(paths[0], {"messages": []}, {"choices": [{**chat, "meta_info": info(**lists)}], "usage": usage})]
    for path, choice in zip(paths, (chat, text), strict=True):
        found.append(_exchange(path, {}, {"choices": [choice], "usage": usage, **around}))
    chunks = [{"choices": [text]}, {"choices": [], **around}, {"choices": [], "usage": usage}]
    return [*found, _exchange(paths[1], {"stream": True}, chunks, streamed=True)]


def _google() -> list[Exchange]:
    path = "/v1beta/models/g:streamGenerateContent"
    request = {"contents": google.CONTENTS, "generationConfig": {"responseLogprobs": True, "logprobs": 2}}
    found = [
        _exchange(path, request, google.sse(chunks).replace(b"\r\n", b"\n"), streamed=True)
        for chunks in (google.CHUNKS, google.SCORED)
    ]
    return found + [
        _exchange(path, request, body) for body in (google.array(google.SCORED), google.array(google.CHUNKS))
    ]


def _ollama() -> list[Exchange]:
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]}
    chunks = [ollama.chunk("a", logprobs=[entry]) for _ in range(3)]
    ended = {"model": "m", "response": "a", "done": True, "context": [1, 2], "eval_count": 1}
    return [
        _exchange("/api/chat", ollama.CHAT, ollama.lines(*chunks, ollama.END)),
        _exchange("/api/chat", {**ollama.CHAT, "stream": False}, {**chunks[0], **ollama.END, "eval_count": 0}),
        _exchange("/api/generate", ollama.GENERATE, ollama.lines(ended)),
    ]


def _exchange(path: str, request: dict[str, Any], answer: Any, *, streamed: bool = False) -> Exchange:
    body = answer if isinstance(answer, bytes) else sse(*answer) if streamed else json.dumps(answer).encode()
    kind = SSE if streamed else JSON
    return Exchange("made", "POST", path, json.dumps(request).encode(), 200, (("content-type", kind),), body, ())
