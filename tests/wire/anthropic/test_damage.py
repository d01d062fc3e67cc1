"""Answers that are errors, cut, damaged or no answers at all: a step that says so, never an exception."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.model import ErrorInfo, Step
from tests.amount import examples
from tests.wire.anthropic.raw import JSON, SSE, THINKING_AND_TOOL, end, exchanges, read, sse, start, text, unary

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
BOUNDED = settings(max_examples=examples(900))
JUNK: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**64, 10**30, 1.5, float("nan"), float("inf"), "", "x", "\ud800"),
    *(
        [],
        [None],
        [[]],
        [1, "x"],
        {},
        {"a": 1},
        {"type": "text"},
        {"type": "tool_use", "input": 5},
        [{}],
        [{"index": 0}],
    ),
]


def check(step: Step) -> None:
    """What holds of every step, whatever the bytes were."""
    assert step.status in ("ok", "error", "abandoned")
    if step.status == "error":
        assert step.error is not None
        assert step.error.message
    if step.status == "ok":
        assert step.completion is not None
        assert step.completion_token_ids is not None or step.token_issue is not None
    ids, logprobs = step.completion_token_ids, step.logprobs
    assert ids is None or logprobs is None or len(ids) == len(logprobs)


@pytest.mark.parametrize("status", [400, 429, 529])
def test_an_http_error(status: int) -> None:
    """Type, message and status are the server's."""
    step = read(json.dumps(OVERLOADED).encode(), status=status, content_type=JSON)
    assert step.error == ErrorInfo(type="overloaded_error", message="Overloaded", status=status)
    assert (step.status, step.completion) == ("error", None)


def test_an_error_event_keeps_what_came_before() -> None:
    """A stream that breaks with an error event; one after the stop reason leaves the message whole."""
    step = read(sse(start(), *text("Hel")[:-1], OVERLOADED))
    assert (step.status, step.error) == ("error", ErrorInfo(type="overloaded_error", message="Overloaded"))
    assert step.completion is not None
    assert step.completion.content == "Hel"
    after = read(sse(start(), *text("Hel"), *end()[:-1], OVERLOADED))
    assert after.status == "ok"


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b"event: error\ndata: upstream is gone\n\n", "upstream is gone"),
        (b'event: error\ndata: {"error": "lost"}\n\n', "lost"),
        (b'data: {"error": {"message": "lost", "type": "x"}}\n\n', "lost"),
        (b'event: error\ndata: {"type": "error"}\n\n', "{'type': 'error'}"),
    ],
)
def test_error_events_of_other_shapes(event: bytes, message: str) -> None:
    """Proxies send them without names, as text, or with another body."""
    for body in (event, sse(start(), *text("a"), event)):
        step = read(body, content_type=SSE)
        assert step.status == "error"
        assert step.error is not None
        assert step.error.message == message


@pytest.mark.parametrize("body", [b"", b"null", b"5", b"[]", b"{}", b"<html>", b'{"type": "message"}', b'{"a": 1'])
def test_a_200_that_is_no_answer_is_an_error(body: bytes) -> None:
    """An unstreamed answer without content is never silently nothing."""
    step = read(body, content_type=JSON)
    assert (step.status, step.completion) == ("error", None)
    check(step)


@pytest.mark.parametrize("body", [b'{"error": {"message": "no"}}', b"<html>no</html>", b"data: 5\n\n", b"data: {}\n\n"])
def test_a_stream_that_is_none_is_an_error(body: bytes) -> None:
    """So is a stream that is an error object, a page, or events of something else."""
    assert read(body, content_type=SSE).status == "error"


@pytest.mark.parametrize("body", [b"", sse({"type": "ping"}), b"event: message_start\ndata: {", b": comment\n\n"])
def test_a_stream_that_was_cut_before_its_message_is_abandoned(body: bytes) -> None:
    """Nothing came, and nothing says why."""
    step = read(body, content_type=SSE)
    assert (step.status, step.completion, step.error) == ("abandoned", None, None)


def test_a_stream_without_names_or_types() -> None:
    """Either the name of an event or its type is enough; `[DONE]` ends it too."""
    events = [start(), *text("Hi"), *end()]
    bare = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events[:-1]) + b"data: [DONE]\n\n"
    named = b"".join(
        f"event: {e['type']}\ndata: {json.dumps({k: v for k, v in e.items() if k != 'type'})}\n\n".encode()
        for e in events
    )
    whole = read(sse(*events))
    for body in (bare, named, sse(*events).replace(b"\n", b"\r\n")):
        step = read(body, content_type=SSE)
        assert (step.completion, step.usage, step.status) == (whole.completion, whole.usage, "ok")


def test_every_block_numbered_zero() -> None:
    """A block that begins is a new one, whatever its number."""
    step = read(sse(start(), *text("a"), *text("b"), *end()))
    assert step.completion is not None
    assert (step.completion.content, step.completion.extra) == (
        "ab",
        {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    )


def test_deltas_without_a_beginning() -> None:
    """A delta says what kind of block it belongs to."""
    step = read(sse(start(), *text("ab")[1:], *end()))
    assert step.completion is not None
    assert (step.completion.content, step.status) == ("ab", "ok")


def test_a_stream_cut_at_any_byte() -> None:
    """What came is a prefix of what would have come; only the whole is ok."""
    full = read(THINKING_AND_TOOL)
    assert full.completion is not None
    arguments = full.completion.tool_calls[0].arguments or ""
    told = THINKING_AND_TOOL.index(b'"stop_reason":"tool_use"')
    for cut in range(len(THINKING_AND_TOOL)):
        step = read(THINKING_AND_TOOL[:cut], content_type=SSE)
        check(step)
        if cut < told:
            assert step.status == "abandoned", cut
        if step.completion is not None:
            assert str(full.completion.content).startswith(str(step.completion.content or ""))
            assert str(full.completion.reasoning).startswith(step.completion.reasoning or "")
            for call in step.completion.tool_calls:
                assert arguments.startswith((call.arguments or "").replace("{}", ""))


def test_an_unstreamed_answer_cut_at_any_byte_is_an_error() -> None:
    """Half an object is never read as a whole one."""
    body = exchanges()["vllm/messages_plain"].response.rstrip()
    for cut in range(len(body)):
        step = read(body[:cut], content_type=JSON)
        assert (step.status, step.completion) == ("error", None)
    assert read(body, content_type=JSON).status == "ok"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every field and item of a JSON value."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ([path] if path else []) + [place for key, item in items for place in places(item, (*path, key))]


STREAM = [json.loads(line[6:]) for line in THINKING_AND_TOOL.decode().split("\n") if line.startswith("data: ")]
WHOLE = json.loads(
    unary(
        {"type": "thinking", "thinking": "h", "signature": "s"},
        {"type": "text", "text": "a", "citations": [{"type": "x"}]},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        {"type": "fallback", "to": {"model": "m"}},
        token_ids=[1, 2, 3, 4, 5],
        logprobs=[-1, -1, -1, -1, -1],
        raw_output={"prompt_token_ids": [1], "completion_token_ids": [1], "completion_logprobs": {"content": []}},
    )
)


@BOUNDED
@given(st.data(), st.booleans())
def test_damaged_answers_are_steps(data: st.DataObject, streams: bool) -> None:
    """Fields deleted, doubled or of another type, in a stream and in an answer."""
    values = deepcopy(STREAM if streams else [WHOLE])
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([path for path in places(values) if len(path) > 1]))
        holder: Any = values
        for key in path[:-1]:
            holder = holder[key]
        act = data.draw(st.sampled_from(["delete", "double", "replace", "replace"]))
        if act == "delete":
            del holder[path[-1]]
        elif act == "double" and isinstance(holder, list):
            holder.insert(path[-1], deepcopy(holder[path[-1]]))
        else:
            holder[path[-1]] = deepcopy(data.draw(st.sampled_from(JUNK)))
    bodies = [json.dumps(value).encode() for value in values]
    check(read(b"".join(b"data: " + body + b"\n\n" for body in bodies) if streams else bodies[0], content_type=None))


@BOUNDED
@given(st.binary(max_size=80), st.sampled_from([JSON, SSE, None]), st.sampled_from([200, 400]))
def test_any_bytes_at_all_give_a_step(body: bytes, content_type: str | None, status: int) -> None:
    """Bytes that mean nothing, framed in every way and not."""
    for answer in (body, b"event: message_start\ndata: " + body + b"\n\n", b"\0" + body):
        check(read(answer, content_type=content_type, status=status, request=body))


@BOUNDED
@given(st.data())
def test_flipped_bytes_give_a_step(data: st.DataObject) -> None:
    """Single bytes of a stream replaced by others."""
    body = bytearray(THINKING_AND_TOOL)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check(read(bytes(body), content_type=SSE))


DEEP = b"[" * 5000 + b"]" * 5000
EXTREME = {
    "deep block": unary("@").replace(b'"@"', DEEP),
    "deep input": unary({"type": "tool_use", "input": "@"}).replace(b'"@"', b'{"a":' + DEEP + b"}"),
    "deep event": b'data: {"type": "x", "a": ' + DEEP + b"}\n\n",
    "deep last event": sse(start(), *text("a"), b'data: {"type":"message_stop","a":' + DEEP + b"}\n\n"),
    "long number": b'data: {"type":"message_delta","delta":{"stop_reason":"x"},"a":' + b"9" * 5000 + b"}\n\n",
    "large number": unary({"type": "tool_use", "input": {"a": "@"}}).replace(b'"@"', b"1e400"),
    "surrogate": unary({"type": "tool_use", "input": {"a": "\ud800"}}),
    "no utf-8": unary({"type": "text", "text": "@"}).replace(b"@", b"\xff"),
    "large logprob": unary({"type": "text", "text": "a"}, token_ids=[1], logprobs=[10**400]),
}


@pytest.mark.parametrize("case", EXTREME)
def test_extreme_bytes_do_not_raise(case: str) -> None:
    """Nesting beyond the parser's depth, numbers beyond its types, text that is not UTF-8."""
    check(read(EXTREME[case], content_type=None))
