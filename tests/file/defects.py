"""A good line, and the same line with one rule broken: each with the code of the rule and its place."""

from __future__ import annotations

import base64
import json
from typing import Any


def array(dtype: str, *shape: int, size: int | None = None) -> dict[str, Any]:
    width = {"uint8": 1, "uint16": 2}.get(dtype, 4)
    count = width if size is None else size
    for one in shape if size is None else ():
        count *= one
    return {"dtype": dtype, "shape": list(shape), "data": base64.b64encode(bytes(count)).decode()}


GOOD: dict[str, Any] = {
    "schema": "rollout-trace/1",
    "id": "t",
    "started_at": "2026-11-21T00:31:30.5Z",
    "ended_at": "2026-11-21T00:31:31.5Z",
    "messages": [{"role": "user", "content": "2 + 2?"}],
    "segments": [{"ids": [5, 6, 7]}, {"from": [0, 2], "ids": [8]}],
    "arrays": [array("uint8", 2, 1, 2), array("float32", 1), array("int32", 1, 2), array("float32", 1, 2)],
    "steps": [
        {
            "id": "a.0",
            "messages": [0],
            "tokens": {
                "segment": 0,
                "prompt": 1,
                "end": 3,
                "logprobs": [-0.5, -0.25],
                "texts": "a\x7fb",
                "top_logprobs": [[{"token": "a", "logprob": -0.5}], []],
                "routed_experts": [[0, 0, 2]],
                "prompt_logprobs": [[1, 0, 1]],
                "prompt_top_tokens": {"ids": [[2, 0, 1]], "logprobs": [[3, 0, 1]]},
                "top_tokens": {"ids": array("int32", 2, 3), "logprobs": array("float32", 2, 3)},
                "sampling_mask": {"ids": array("int32", 0), "counts": array("int32", 2)},
                "policy_spans": [[0, 1, 3], [1, 2, 4]],
            },
            "token_source": "engine",
            "finish_reason": "stop",
            "usage": {"input": 1, "output": 2},
            "advantage": [0.5, 0.25],
            "request_bytes": {"base64": "AAA="},
            "latency_ms": 12.5,
        },
        {"id": "b.0", "tokens": {"segment": 1, "prompt": 2, "end": 3}},
    ],
    "tool_runs": [{"tool_call_id": "c", "name": "add", "step_id": "a.0", "duration_ms": 1.0}],
    "exchanges": [
        {
            "name": "1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "call_id": "a",
            "request": {"text": '{"messages":[1]}'},
            "status": 200,
            "headers": [["content-type", "text/event-stream"]],
            "response": {"text": "data: 1\n\ndata: 2\n\n"},
            "chunk_sizes": [9, 9],
            "chunk_times_ms": [12.125, 13],
            "duration_ms": 13.5,
        },
        {
            "name": "2",
            "method": "POST",
            "path": "/v1/chat/completions",
            "request": {"from": [0, 14, 2], "text": ",2"},
            "response": {"text": ""},
            "chunk_sizes": [],
            "outcome": "unreachable",
        },
    ],
}
TOKENS = "steps.0.tokens"


def with_value(path: str, value: Any) -> bytes:
    """The good line with one value put in the place of another (``...``: taken out)."""
    line = json.loads(json.dumps(GOOD))
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = line
    for part in above:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(line).encode()


GOOD_LINE = json.dumps(GOOD).encode()
OTHER_LINE = GOOD_LINE.replace(b'"id": "t"', b'"id": "u"', 1)

# Name: the damaged line, the code of the rule, and its place.
DEFECTS: dict[str, tuple[bytes, str, str | None]] = {
    "not-json": (b"hello", "not-json", None),
    "a-list": (b"[1, 2]", "wrong-type", "$"),
    "cut": (GOOD_LINE[:400], "truncated-line", None),
    "latin-1": (GOOD_LINE.replace(b"2 + 2?", b"caf\xe9"), "not-utf8", None),
    "nan": (with_value("metadata", {"a": [0, 7.5]}).replace(b"7.5", b"NaN"), "json-constant", "$.metadata.a[1]"),
    "deep": (  # for any Python: 3.14 goes down 20,000 levels
        with_value("metadata", 7.5).replace(b"7.5", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
        "too-deep",
        None,
    ),
    "twice": (GOOD_LINE.replace(b'"id": "a.0"', b'"id": "c.0", "id": "a.0"'), "duplicate-key", "$.steps[0].id"),
    "twice-in-a-message": (
        GOOD_LINE.replace(b'{"role"', b'{"content": 1, "role"'),
        "duplicate-key",
        "$.messages[0].content",
    ),
    "twice-in-tokens": (
        GOOD_LINE.replace(b'{"segment": 0,', b'{"segment": 0, "segment": 0,'),
        "duplicate-key",
        "$.steps[0].tokens.segment",
    ),
    "schema": (with_value("schema", "other/1"), "unknown-schema", "$.schema"),
    "newer": (with_value("schema", "rollout-trace/2"), "newer-version", "$.schema"),
    "no-schema": (with_value("schema", ...), "missing-field", "$.schema"),
    "no-step-id": (with_value("steps.1.id", ...), "missing-field", "$.steps[1].id"),
    "type": (with_value("steps.0.tokens.end", "3"), "wrong-type", "$.steps[0].tokens.end"),
    "type-in-a-list": (with_value("segments.0.ids.2", "7"), "wrong-type", "$.segments[0].ids[2]"),
    "negative-index": (with_value("steps.0.tokens.prompt", -1), "number-range", "$.steps[0].tokens.prompt"),
    "time": (with_value("started_at", "yesterday"), "bad-time", "$.started_at"),
    "naive-time": (with_value("steps.0.started_at", "2026-11-21T00:31:30"), "bad-time", "$.steps[0].started_at"),
    "message-row": (with_value("steps.0.messages", [0, 1]), "table-rows", "$.steps[0].messages"),
    "tool-row": (with_value("steps.1.tools", [[0, 2]]), "table-rows", "$.steps[1].tools"),
    "negative-token": (with_value("segments.0.ids.1", -6), "token-id", "$.segments[0].ids[1]"),
    "large-token": (with_value("segments.0.ids.1", 2**31), "token-id", "$.segments[0].ids[1]"),
    "forward-base": (with_value("segments.1.from", [1, 2]), "segment-base", "$.segments[1].from"),
    "long-base": (with_value("segments.1.from", [0, 4]), "segment-base", "$.segments[1].from"),
    "segment": (with_value("steps.1.tokens.segment", 2), "step-segment", "$.steps[1].tokens.segment"),
    "end": (with_value("steps.1.tokens.end", 4), "step-range", "$.steps[1].tokens"),
    "logprobs": (with_value("steps.0.tokens.logprobs", [-0.5]), "logprobs-length", "$.steps[0].tokens.logprobs"),
    "large-logprob": (with_value(f"{TOKENS}.logprobs.1", -1e300), "logprob-range", "$.steps[0].tokens.logprobs"),
    "positive": (with_value(f"{TOKENS}.logprobs.1", 0.5), "logprob-positive", "$.steps[0].tokens.logprobs[1]"),
    "no-logprob": (with_value(f"{TOKENS}.logprobs.1", None), "logprob-missing", "$.steps[0].tokens.logprobs[1]"),
    "no-list": (with_value(f"{TOKENS}.top_logprobs", {}), "top-logprobs-type", "$.steps[0].tokens.top_logprobs"),
    "alternatives": (
        with_value(f"{TOKENS}.top_logprobs", [[]]),
        "top-logprobs-length",
        "$.steps[0].tokens.top_logprobs",
    ),
    "texts": (with_value(f"{TOKENS}.texts", ["a"]), "texts-length", "$.steps[0].tokens.texts"),
    "dtype": (with_value("arrays.0.dtype", "int64"), "array-dtype", "$.arrays[0]"),
    "shape": (with_value("arrays.0.shape", [2, 1, 2, 1]), "array-shape", "$.arrays[0]"),
    "bytes": (with_value("arrays.0.data", "AAA="), "array-data", "$.arrays[0]"),
    "base64": (with_value("arrays.0.data", "A!"), "array-data", "$.arrays[0].data"),
    "form": (with_value(f"{TOKENS}.routed_experts", [[1, 0, 1]]), "array-form", "$.steps[0].tokens.routed_experts"),
    "runs": (with_value(f"{TOKENS}.prompt_logprobs", [[1, 0, 2]]), "array-runs", "$.steps[0].tokens.prompt_logprobs"),
    "experts": (
        with_value(f"{TOKENS}.routed_experts", [[0, 0, 2]] * 2),
        "routed-experts",
        "$.steps[0].tokens.routed_experts",
    ),
    "scores": (
        with_value(f"{TOKENS}.prompt_logprobs", [[1, 0, 0]]),
        "prompt-logprobs",
        "$.steps[0].tokens.prompt_logprobs",
    ),
    "prompt-top": (
        with_value(f"{TOKENS}.prompt_top_tokens.ids", [[2, 0, 0]]),
        "prompt-top-tokens",
        "$.steps[0].tokens.prompt_top_tokens",
    ),
    "top": (with_value(f"{TOKENS}.top_tokens.ids", array("int32", 1, 3)), "top-tokens", "$.steps[0].tokens.top_tokens"),
    "mask": (
        with_value(f"{TOKENS}.sampling_mask.ids", array("int32", 3)),
        "sampling-mask",
        "$.steps[0].tokens.sampling_mask",
    ),
    "spans": (with_value(f"{TOKENS}.policy_spans.1", [1, 9, 4]), "policy-spans", "$.steps[0].tokens.policy_spans"),
    "gap": (with_value(f"{TOKENS}.policy_spans.0", [0, 0, 3]), "policy-spans-gap", "$.steps[0].tokens.policy_spans[1]"),
    "short-spans": (
        with_value(f"{TOKENS}.policy_spans", [[0, 1, 3]]),
        "policy-spans-gap",
        "$.steps[0].tokens.policy_spans",
    ),
    "body": (with_value("steps.0.request_bytes", {"base64": "a"}), "body-bytes", "$.steps[0].request_bytes.base64"),
    "exchange-body": (
        with_value("exchanges.0.response", {"base64": "a"}),
        "body-bytes",
        "$.exchanges[0].response.base64",
    ),
    "forward-exchange": (
        with_value("exchanges.1.request.from", [1, 1, 1]),
        "exchange-base",
        "$.exchanges[1].request.from",
    ),
    "long-exchange": (
        with_value("exchanges.1.request.from", [0, 15, 2]),
        "exchange-base",
        "$.exchanges[1].request.from",
    ),
    "negative-exchange": (
        with_value("exchanges.1.request.from", [0, 15, -1]),
        "exchange-base",
        "$.exchanges[1].request.from",
    ),
    "sizes": (with_value("exchanges.0.chunk_sizes", [9, 8]), "chunk-sizes", "$.exchanges[0].chunk_sizes"),
    "chunk-times": (
        with_value("exchanges.0.chunk_times_ms", [12.125]),
        "chunk-times",
        "$.exchanges[0].chunk_times_ms",
    ),
    "negative-times": (
        with_value("exchanges.0.chunk_times_ms.0", -1),
        "negative-number",
        "$.exchanges[0].chunk_times_ms",
    ),
    "exchange-status": (with_value("exchanges.0.status", "200"), "wrong-type", "$.exchanges[0].status"),
    "header": (with_value("exchanges.0.headers.0", ["server"]), "wrong-type", "$.exchanges[0].headers[0]"),
    "no-response": (with_value("exchanges.1.response", ...), "missing-field", "$.exchanges[1].response"),
    "exchange-time": (with_value("exchanges.0.started_at", "now"), "bad-time", "$.exchanges[0].started_at"),
    "exchange-key-twice": (
        GOOD_LINE.replace(b'"name": "1"', b'"name": "1", "name": "1"'),
        "duplicate-key",
        "$.exchanges[0].name",
    ),
    "step-twice": (with_value("steps.1.id", "a.0"), "duplicate-step-id", "$.steps[1].id"),
    "choice-twice": (with_value("steps.1.call_id", "a.0"), "duplicate-choice", "$.steps[1].call_id"),
    "index": (with_value("steps.1.index", 0), "index-order", "$.steps[1].index"),
    "tool-run": (with_value("tool_runs.0.step_id", "z"), "tool-run-step", "$.tool_runs[0].step_id"),
    "own-parent": (with_value("parent_id", "t"), "parent-step", "$.parent_id"),
    "end-first": (with_value("ended_at", "2026-11-20T00:00:00Z"), "time-order", "$.ended_at"),
    "latency": (with_value("steps.0.latency_ms", -1), "negative-number", "$.steps[0].latency_ms"),
    "usage": (with_value("steps.0.usage.output", 9), "usage-output", "$.steps[0].usage.output"),
    "advantages": (with_value("steps.0.advantage", [1.0]), "advantage-length", "$.steps[0].advantage"),
    "trainer": (
        with_value("steps.0.trainer", {"entropy": {"dtype": "float32", "shape": [9], "data": "AAAA" * 12}}),
        "trainer-length",
        "$.steps[0].trainer.entropy",
    ),
    "media-gone": (
        with_value("media", {"mark": "rollout-trace-media"}).replace(
            b"2 + 2?", b"rollout-trace-media(sha256=%s;bytes=1024;as=base64)" % (b"a" * 64)
        ),
        "media-missing",
        "$.messages[0].content",
    ),
}
