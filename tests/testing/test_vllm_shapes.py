"""The scripted server's bodies have the keys, the order of keys and the nulls of recorded vLLM bodies."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from rollout_trace.testing import Exchange, Reply, ScriptedServer, ToolCall, load_exchanges

RECORDED = {e.name: e for e in load_exchanges(Path(__file__).parent.parent / "data" / "wire_vllm.jsonl.xz")}

TEXT = Reply("a é" + "b" * 40)
CALL = ToolCall("get_weather", '{"city": "Paris"}')
SHAPES = {
    "chat_plain": TEXT,
    "chat_logprobs": TEXT,
    "chat_logprobs_top0": TEXT,
    "chat_ids": TEXT,
    "chat_ids_nologprobs": TEXT,
    "chat_tokens_as_ids": TEXT,
    "chat_n2": TEXT,
    "chat_forced_eos": Reply(""),
    "chat_plain_stream": Reply("b" * 40),
    "chat_stream_no_usage": Reply("b" * 40),
    "chat_stream_continuous_usage": Reply("b" * 40),
    "chat_logprobs_stream": TEXT,
    "chat_ids_stream": TEXT,
    "chat_ids_nologprobs_stream": TEXT,
    "chat_tokens_as_ids_stream": TEXT,
    "chat_n2_stream": TEXT,
    "chat_forced_eos_stream": Reply(""),
    "chat_stop_string": Reply("the end"),
    "chat_utf8_regex_stream": Reply("🙂é你"),
    "tools_auto_hermes": Reply(tool_calls=[CALL], stop_reason=2039),
    "tools_auto_hermes_stream": Reply(tool_calls=[CALL], stop_reason=2039),
    "tools_auto_hermes_two": Reply("Let me see.\n", tool_calls=[CALL, CALL], stop_reason=2039),
    "tools_auto_hermes_two_stream": Reply("Let me see.\n", tool_calls=[CALL, CALL], stop_reason=2039),
    "tools_named": Reply(tool_calls=[CALL], stop_reason=2039),
    "tools_named_stream": Reply(tool_calls=[CALL], stop_reason=2039),
    "tools_required_plain": Reply(tool_calls=[CALL], stop_reason=2039),
    "tools_required_plain_stream": Reply(tool_calls=[CALL], stop_reason=2039),
    "completions_plain": TEXT,
    "completions_ids": TEXT,
    "completions_logprobs": TEXT,
    "completions_tokens_as_ids": TEXT,
    "completions_n2": TEXT,
    "completions_batch_prompts": TEXT,
    "completions_ids_stream": TEXT,
    "completions_logprobs_stream": TEXT,
    "completions_n2_stream": TEXT,
}


def shape(value: object) -> object:
    """Keys in order, and which values are null."""
    if isinstance(value, dict):
        # `top_logprobs` of text completions is keyed by token text
        return [(key, "…" if key == "top_logprobs" else shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        kinds: list[object] = []
        for item in value:
            if shape(item) not in kinds:
                kinds.append(shape(item))
        return kinds if any(isinstance(item, dict) for item in value) else "list"
    return "null" if value is None else "value"


def events(body: bytes) -> list[Any]:
    lines = body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def post(server: ScriptedServer, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("name", SHAPES)
def test_bodies_have_the_shape_that_vllm_sends(name: str) -> None:
    recorded = RECORDED[name]
    with ScriptedServer(SHAPES[name]) as server:
        status, body = post(server, recorded.path, recorded.request)
    assert status == recorded.status
    if name.endswith("_stream") or "_stream_" in name:
        ours, theirs = (sorted({repr(shape(event)) for event in events(b)}) for b in (body, recorded.response))
        assert ours == theirs
    else:
        assert shape(json.loads(body)) == shape(json.loads(recorded.response))


@pytest.mark.parametrize("name", ["err_unknown_model", "err_unknown_path", "err_malformed_json", "err_bad_json"])
def test_errors_have_the_shape_that_vllm_sends(name: str) -> None:
    recorded: Exchange = RECORDED[name]
    with ScriptedServer("x", model="tiny", strict_model=True) as server:
        status, body = post(server, recorded.path, recorded.request)
    assert status == recorded.status
    assert shape(json.loads(body)) == shape(json.loads(recorded.response))
