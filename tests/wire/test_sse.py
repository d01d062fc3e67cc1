"""Framing of streams: however the same events are spelled the step is the same; wherever they are cut, a prefix."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from rollout_trace.wire import sse as sse_module
from rollout_trace.wire.sse import Event, events, without_comments
from tests.amount import cuts, examples, some
from tests.wire.raw import SSE, delta, entries, exchanges, read, said, sse, steps_of, tokens, unary
from tests.wire.recorded import differing

STREAMS = [name for name, exchange in exchanges().items() if exchange.response.startswith(b"data: ")]
NEWLINES = st.sampled_from([b"\n", b"\r", b"\r\n"])
NOISE = st.sampled_from(
    [b": ping", b":", b"event: message", b"id: 7", b"retry: 3000", b"event", b"unknown: field", b"data-like: {}"]
)
BOUNDED = settings(max_examples=examples(450))


def same(one: list[Step], other: list[Step]) -> bool:
    """Equal save the ids that are derived from the bytes."""
    plain = [[replace(step, id="", call_id="") for step in steps] for steps in (one, other)]
    return plain[0] == plain[1]


def with_body(exchange: Exchange, body: bytes) -> list[Step]:
    """The steps of an exchange whose response had these bytes."""
    return steps_of(replace(exchange, response=body, chunk_sizes=(len(body),)))


def data_lines(exchange: Exchange) -> list[bytes]:
    """The data of each event of a recording."""
    return [line.removeprefix(b"data: ") for line in exchange.response.split(b"\n") if line]


@st.composite
def respelled(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """The same events with other newlines, comments, further fields, and data split over lines."""
    newline = draw(NEWLINES)
    blank, parts = newline * 2, []
    multiline, spaced = draw(st.booleans()), draw(st.booleans())
    for data in lines:
        extra = draw(st.lists(NOISE, max_size=2))
        # JSON may be broken between its tokens: after the brace that opens it, and before the one that ends it.
        pieces = [data[:1], data[1:-1], data[-1:]] if multiline and data.startswith(b"{") else [data]
        field = b"data: " if spaced else b"data:"
        fields = [field + piece for piece in pieces]
        at = draw(st.integers(0, len(fields)))
        parts.append(newline.join([*fields[:at], *extra, *fields[at:]]))
    body = blank.join(parts)
    ending = draw(st.sampled_from([blank, newline, b""]))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + draw(st.sampled_from([b"", newline])) + body + ending


@BOUNDED
@given(st.data())
def test_the_spelling_of_a_stream_changes_nothing(data: st.DataObject) -> None:
    """Newlines, BOM, comments, event and id lines, multi-line data and a missing last newline leave the steps alone."""
    exchange = exchanges()[data.draw(st.sampled_from(STREAMS))]
    body = data.draw(respelled(data_lines(exchange)))
    assert same(with_body(exchange, body), steps_of(exchange))


@pytest.mark.parametrize("newline", [b"\r", b"\r\n"])
@pytest.mark.parametrize("name", STREAMS)
def test_any_newline_ends_a_line(name: str, newline: bytes) -> None:
    """Every recorded stream with CR or CRLF gives the steps it gives with LF."""
    exchange = exchanges()[name]
    assert same(with_body(exchange, exchange.response.replace(b"\n", newline)), steps_of(exchange))


LINES = st.lists(
    st.sampled_from(
        [b"", b"", b": ping", b":", b": pong", b"data: a", b"data:", b" : no comment", b"event: x", b"id: 1"]
    ),
    max_size=40,
)


@settings(max_examples=examples(1500))
@given(LINES, NEWLINES, st.booleans(), st.integers(0, 60))
def test_a_stream_without_its_comments_is_the_same(lines: list[bytes], newline: bytes, ended: bool, at: int) -> None:
    """Whatever stands around them, also where only a part of the stream, from a line's beginning on, is searched."""
    body = newline.join(lines) + (newline if ended else b"")
    assert list(events(without_comments(body))) == list(events(body))
    start = body.find(b"\n", at) + 1
    assert list(events(body[:start] + without_comments(body[start:]))) == list(events(body))


@given(LINES, NEWLINES, st.integers(0, 20))
def test_a_long_stream_is_split_as_a_short_one(lines: list[bytes], newline: bytes, size: int) -> None:
    """The events of a stream that is split slice by slice."""
    body, whole = newline.join(lines), sse_module._SLICE
    expected = list(events(body))
    try:
        sse_module._SLICE = size
        assert list(events(body)) == expected
    finally:
        sse_module._SLICE = whole


def test_heartbeats_are_removed() -> None:
    """Comments and all but two of the line ends around them; nothing that only looks like a comment."""
    assert without_comments(b": ping\n\n" * 1000) == b"\n\n"
    assert without_comments(b": a\r\n\r\n: b\r\n\r\ndata: x\r\n: c\r\n") == b"\r\n\r\ndata: x\r\n"
    kept = b"data: : ping\n\ndata: x\n: cut of"
    assert without_comments(kept) == kept


def test_events_of_a_stream() -> None:
    """Type and data of each event, by the standard's own examples; comments and blank events are none."""
    body = (
        b"\xef\xbb\xbf: hello\n\ndata: YHOO\ndata: +2\ndata: 10\n\nevent: add\r\ndata:73\r\n\r\ndata:  two\r\rid: 1\n\n"
    )
    assert list(events(body)) == [Event(b"", b"YHOO\n+2\n10"), Event(b"add", b"73"), Event(b"", b" two")]
    assert list(events(b"")) == []
    assert list(events(b"data: cut of")) == [Event(b"", b"cut of", complete=False)]


@pytest.mark.parametrize("name", some(["chat_ids_stream", "tools_named_stream"], "chat_ids_stream"))
def test_a_stream_cut_at_any_byte_gives_a_prefix(name: str) -> None:
    """Never raises; ids, logprobs and text are prefixes of the whole, and it is ok once the finish chunk is there."""
    exchange = exchanges()[name]
    (whole,) = steps_of(exchange)
    raw = said(exchange)[0]
    body = exchange.response
    finish = body.index(b"\n", body.index(f'"finish_reason":"{raw.finish_reason}"'.encode()))
    lengths = []
    for cut in cuts(body):
        (step,) = decode("openai.chat", exchange.request, body[:cut], content_type=SSE)
        assert step.error is None
        assert step.status == ("ok" if cut >= finish else "abandoned"), cut
        ids, logprobs = step.completion_token_ids, step.logprobs
        assert (ids is None) == (logprobs is None), cut
        if ids is not None and logprobs is not None:
            assert step.token_issue is None
            assert ids.tolist() == (raw.ids or [])[: len(ids)]
            assert logprobs.tolist() == (whole.logprobs[: len(ids)].tolist() if whole.logprobs is not None else None)
            assert len(ids) == len(logprobs)
        lengths.append(0 if ids is None else len(ids))
        if step.completion is not None and step.completion.content and raw.text:
            assert raw.text.startswith(str(step.completion.content))
        if cut >= finish:
            assert (step.completion, step.finish_reason) == (whole.completion, whole.finish_reason)
    assert all(one <= other for one, other in pairwise(lengths))
    assert lengths[-1] == len(raw.ids or ())


def test_every_byte_of_a_short_stream_of_two_choices() -> None:
    """A choice that ended before the cut is ok with all its tokens; the other is abandoned with what came."""
    body = sse(
        delta({"role": "assistant", "content": ""}, index=0),
        delta({"role": "assistant", "content": ""}, index=1),
        delta({"content": "a"}, index=1, token_ids=[10], logprobs=entries(-0.5)),
        delta({"content": "b"}, index=0, token_ids=[20, 21], logprobs=entries(-1.0, -2.0)),
        delta({"content": "c"}, index=1, token_ids=[11], logprobs=entries(-1.5), finish_reason="stop"),
        delta({"content": "d"}, index=0, token_ids=[22], logprobs=entries(-3.0), finish_reason="length"),
        {"id": "r", "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
    )
    first, second = (body.index(b"\n", body.index(mark)) for mark in (b'"stop"', b'"length"'))
    for cut in range(len(body) + 1):
        steps = {step.choice: step for step in decode("openai.chat", b"{}", body[:cut], content_type=SSE)}
        assert steps[0].status == ("ok" if cut >= second else "abandoned"), cut
        if 1 in steps:
            assert steps[1].status == ("ok" if cut >= first else "abandoned"), cut
        for index, ids in ((0, [20, 21, 22]), (1, [10, 11])):
            found = steps[index].completion_token_ids if index in steps else None
            if found is not None:
                logprobs = steps[index].logprobs
                assert found.tolist() == ids[: len(found)]
                assert logprobs is not None
                assert len(logprobs) == len(found)
                assert len(found) == len(ids) or steps[index].status == "abandoned"


def test_a_stream_without_its_end_mark_is_whole_once_its_choices_are() -> None:
    """`[DONE]` may be missing: some servers never send it."""
    chunks = [delta({"content": "hi"}), delta(finish_reason="stop")]
    assert read(sse(*chunks, done=False)).status == "ok"
    assert read(sse(chunks[0], done=False)).status == "abandoned"
    assert read(sse(chunks[0])).status == "ok"


def test_nothing_after_the_end_mark_counts() -> None:
    """What follows `[DONE]` is not part of the answer."""
    body = sse(delta({"content": "hi"}), delta(finish_reason="stop")) + sse(delta({"content": " there"}))
    completion = read(body).completion
    assert completion is not None
    assert completion.content == "hi"


@pytest.mark.parametrize("content_type", ["text/event-stream", "text/event-stream; charset=utf-8", None])
def test_the_content_type_says_that_it_is_a_stream_or_the_bytes_do(content_type: str | None) -> None:
    """With or without parameters; guessed where it is not known."""
    (step,) = decode("openai.chat", b"{}", sse(delta({"content": "hi"})), content_type=content_type)
    assert step.completion is not None
    assert step.completion.content == "hi"


WRONG = ["application/json", "application/json; charset=utf-8", "text/plain", "application/octet-stream", "", "x"]


@pytest.mark.parametrize("content_type", WRONG)
def test_a_stream_that_was_asked_for_is_one_whatever_its_content_type_says(content_type: str) -> None:
    """Cut at any byte it says what it says with the right one. SDKs do not look at the type either."""
    asked = b'{"stream": true}'
    body = sse(delta({"content": "hi"}, token_ids=[5], logprobs=entries(-1.0)), delta(finish_reason="stop"))
    for begins in (b"", b": hello\n\n", b"\n\n", b"\xef\xbb\xbf", b"event: x\n", b"id:1\n", b"retry: 5\n\n"):
        whole = begins + body
        for cut in cuts(whole):
            (step,) = decode("openai.chat", asked, whole[:cut], content_type=content_type)
            (right,) = decode("openai.chat", asked, whole[:cut], content_type=SSE)
            assert differing(step, right) == set(), cut
        assert step.completion_token_ids is not None
        assert step.status == "ok"


@pytest.mark.parametrize("asked", [b"{}", b'{"stream": false}', b'{"stream": null}', b"", b'{"stream": true}'])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", ""])
def test_an_answer_that_is_no_stream_stays_one(asked: bytes, content_type: str) -> None:
    """A server that does not stream answers with an object, also where a stream was asked for; or with a text."""
    body = unary(tokens([5], entries(-1.0)))
    (step,) = decode("openai.chat", asked, body, content_type=content_type)
    assert step.completion is not None
    assert (step.status, step.completion.content) == ("ok", "x")
    (step,) = decode("openai.chat", asked, b"dates are not data: sorry", content_type=content_type)
    assert step.error is not None
    assert "sorry" in step.error.message


def test_an_object_that_is_called_a_stream_is_read_where_none_was_asked_for() -> None:
    """The SDKs read it too. Where a stream was asked for it is none, for them as for us."""
    body = unary(tokens([5], entries(-1.0)))
    (step,) = decode("openai.chat", b"{}", body, content_type=SSE)
    assert step.status == "ok"
    (step,) = decode("openai.chat", b'{"stream": true}', body, content_type=SSE)
    assert step.error is not None


def test_the_case_of_a_content_type_means_nothing() -> None:
    """`Text/Event-Stream` is `text/event-stream`."""
    step = read(sse(delta({"content": "hi"})), content_type="Text/Event-Stream")
    assert step.completion is not None
    assert step.completion.content == "hi"


def test_an_empty_stream_is_an_abandoned_step() -> None:
    """A 200 with no bytes at all (llama-cpp-python, too long a prompt) still gives a step."""
    step = read(b"", content_type=SSE)
    assert (step.status, step.completion, step.completion_token_ids) == ("abandoned", None, None)
