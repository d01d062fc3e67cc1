"""Chunks that come only because of added fields: told from all others, however the network cuts the stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.wire import decode
from rollout_trace.wire.added_chunks import AddedChunks, answers_to
from tests.amount import some

from .added_chunks import ADDED, chunk_of, events, says_something, streams

IDS_AND_LOGPROBS = answers_to("openai.chat", {"logprobs": True, "return_token_ids": True}, {"stream": True})


def shown(names: frozenset[str], body: bytes, size: int) -> bytes:
    """A stream as its reader gets it, where it arrives in pieces of a size."""
    added = AddedChunks(names)
    pieces = [added.shown(body[at : at + size]) for at in range(0, len(body), size)]
    return b"".join(pieces) + added.rest()


@pytest.mark.parametrize("name", some(streams(), *list(streams())[::4]))
def test_recorded_streams(name: str) -> None:
    """What is left is what says something, and it is the same answer."""
    request, body = streams()[name]
    protocol = "openai.chat" if "messages" in request else "openai.completions"
    added = {field: request[field] for field in ADDED if field in request}
    own = {field: value for field, value in request.items() if field not in added}
    expected = b"".join(event for event in events(body) if says_something(event))
    names = answers_to(protocol, added, own)
    for size in (len(body), 4096, 61):
        assert shown(names, body, size) == (expected if names else body)
    given = [
        decode(protocol, json.dumps(request).encode(), one, content_type="text/event-stream", status=200)
        for one in (body, expected)
    ]
    assert [step.completion for step in given[0]] == [step.completion for step in given[1]]
    assert [step.finish_reason for step in given[0]] == [step.finish_reason for step in given[1]]


def test_it_was_seen_in_recordings() -> None:
    """Else the test above would show nothing."""
    empty = [name for name, (_, body) in streams().items() if not all(map(says_something, events(body)))]
    assert {"vllm/tools_required_stream", "vllm/chat_utf8_split_stream"} <= {*empty}
    assert len(empty) >= 15


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_any_end_of_an_event(end: bytes, size: int) -> None:
    ours = b'data: {"choices": [{"index": 0, "delta": {}, "token_ids": [4], "finish_reason": null}]}'
    theirs = b'data: {"choices": [{"index": 0, "delta": {"content": "{}"}, "token_ids": [4]}]}'
    comment = b': choices":[] {}'
    body = end.join([ours, theirs, comment, ours, ours, theirs, b"data: [DONE]", b""])
    assert shown(IDS_AND_LOGPROBS, body, size) == end.join([theirs, comment, theirs, b"data: [DONE]", b""])


def test_a_stream_that_breaks_off() -> None:
    """The beginning of an event is handed on at the end."""
    body = b'data: {"choices":[{"delta":{}'
    assert shown(IDS_AND_LOGPROBS, body, 7) == body


CHUNKS: list[tuple[str, dict[str, Any], bool]] = [
    ("ids alone", {"choices": [{"delta": {}, "token_ids": [1]}]}, True),
    ("logprobs alone", {"choices": [{"delta": {}, "logprobs": {"content": []}}]}, True),
    ("nulls beside them", {"choices": [{"delta": {"content": None, "role": None}, "token_ids": [1], "x": None}]}, True),
    ("no ids of this token", {"choices": [{"delta": {}, "token_ids": []}]}, True),
    ("two choices", {"choices": [{"index": 0, "delta": {}, "token_ids": [1]}, {"index": 1, "delta": {}}]}, True),
    ("one of two says something", {"choices": [{"delta": {}, "token_ids": [1]}, {"delta": {"content": ""}}]}, False),
    ("an empty text", {"choices": [{"delta": {"content": ""}, "token_ids": [1]}]}, False),
    ("a role", {"choices": [{"delta": {"role": "assistant", "content": None}, "token_ids": [1]}]}, False),
    ("an end", {"choices": [{"delta": {}, "token_ids": [1], "finish_reason": "stop"}]}, False),
    ("an end of no reason", {"choices": [{"delta": {}, "token_ids": [1], "finish_reason": ""}]}, False),
    ("nothing", {"choices": [{"delta": {}, "finish_reason": None}]}, False),
    ("usage", {"choices": [], "usage": {"prompt_tokens": 1}}, False),
    ("usage of a choice", {"choices": [{"delta": {}, "token_ids": [1]}], "usage": {"total_tokens": 1}}, False),
    ("an unknown field", {"choices": [{"delta": {}, "token_ids": [1], "audio": {}}]}, False),
    ("an unknown field beside", {"choices": [{"delta": {}, "token_ids": [1]}], "note": {}}, False),
    ("an error", {"choices": [], "error": {"message": "m"}}, False),
    ("no chunk", {"choices": {}}, False),
]


@pytest.mark.parametrize(("chunk", "is_added"), [case[1:] for case in CHUNKS], ids=[case[0] for case in CHUNKS])
def test_which_chunks(chunk: dict[str, Any], is_added: bool) -> None:
    event = b"data: " + json.dumps({"id": "c", "model": "m", **chunk}).encode() + b"\n\n"
    assert (shown(IDS_AND_LOGPROBS, event, 1000) == b"") is is_added


OF_SGLANG = {"sglext": {"output_ids": [[1]]}, "choices": []}
USAGE = {"choices": [], "usage": {"prompt_tokens": 1}, "metrics": {"time": 1.0}}
TOTAL = {"choices": [{"delta": {}, "token_ids": [1]}], "usage": {"total_tokens": 1}}
EMPTY = {"choices": [{"delta": {}, "token_ids": [1], "logprobs": {"content": [1]}}]}


@pytest.mark.parametrize(
    ("added", "own", "chunk", "is_added"),
    [
        ({"return_output_ids_in_sglext": True}, {}, OF_SGLANG, True),
        ({"logprobs": True}, {"return_output_ids_in_sglext": True}, OF_SGLANG, False),
        ({"return_output_ids_in_sglext": True}, {}, {**OF_SGLANG, "usage": {"prompt_tokens": 1}}, False),
        ({"stream_options": {"include_usage": True}}, {}, USAGE, True),
        ({"stream_options.include_usage": True}, {"stream_options": {"x": 1}}, USAGE, True),
        ({"return_token_ids": True}, {"stream_options": {"include_usage": True}}, USAGE, False),
        ({"return_token_ids": True}, {"stream_options": {"continuous_usage_stats": True}}, TOTAL, True),
        ({"return_token_ids": True, "logprobs": True}, {}, EMPTY, True),
        ({"return_token_ids": True}, {"logprobs": True}, EMPTY, False),
        ({"logprobs": True}, {"return_token_ids": True}, EMPTY, False),
        ({"top_logprobs": 3, "return_token_ids": True}, {"logprobs": True}, EMPTY, False),
    ],
)
def test_what_the_caller_asked_for_stays(added: Any, own: Any, chunk: Any, is_added: bool) -> None:
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    names = answers_to("openai.chat", added, {**own, "stream": True})
    assert (shown(names, event, 1000) == b"") is is_added


TEXT = {"choices": [{"delta": {"content": "a"}}]}
TOTAL_OF_TEXT = {**TEXT, "usage": {"total_tokens": 1}}
RUNNING = {"stream_options": {"continuous_usage_stats": True}}


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(
    ("text", "own", "is_added"),
    [
        (TEXT, {}, True),
        ({**TEXT, "usage": None}, {}, True),
        ({"choices": [{"delta": {"content": '"usage":{'}}]}, {}, True),
        # Of --enable-force-include-usage: the program reads it without the recorder.
        (TOTAL_OF_TEXT, {}, False),
        (TOTAL_OF_TEXT, RUNNING, True),
    ],
)
def test_usage_that_nobody_has_to_ask_for(text: Any, own: Any, is_added: bool, space: str, size: int) -> None:
    separators = ("," + space, ":" + space)
    chunks = [json.dumps(one, separators=separators).encode() for one in (text, TOTAL, USAGE)]
    body = b"".join(b"data: " + one + b"\n\n" for one in [*chunks, b"[DONE]"])
    names = answers_to(
        "openai.chat", {"return_token_ids": True, "stream_options.include_usage": True}, {**own, "stream": True}
    )
    read = shown(names, body, size)
    assert (b"prompt_tokens" not in read) is is_added
    # An empty delta comes only because of the ids, whatever usage it has.
    assert read.count(b"data: ") == (2 if is_added else 3)


def test_other_requests_are_not_looked_at() -> None:
    asked = {"return_token_ids": True}
    assert answers_to("openai.chat", {}, {"stream": True}) == frozenset()
    assert answers_to("openai.chat", asked, {}) == frozenset()
    assert (
        answers_to("openai.responses", {"include": ["message.output_text.logprobs"]}, {"stream": True}) == frozenset()
    )
    assert chunk_of(b"data: [DONE]\n\n") is None
