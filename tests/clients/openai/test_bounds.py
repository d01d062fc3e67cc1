"""Calls longer than `max_call_bytes`: the caller gets all, the step says what is missing, and memory is bounded."""

from __future__ import annotations

import functools
import gzip
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Part, Response, json_bytes
from rollout_trace.integration import wrap_httpx
from rollout_trace.record import call as bounds
from rollout_trace.record.call import Call
from rollout_trace.record.settings import Settings
from rollout_trace.testing import Fault, LoopbackServer, Reply, RequestRecord, ScriptedServer
from rollout_trace.train.selection import reason_left_out
from rollout_trace.wire.sse import events
from tests.amount import some
from tests.clients.either import Kind, done, each, shown
from tests.wire.engines.engine_servers import on

from .harness import CHAT, STREAM, World, bare, chat, run, streamed

LIMIT = 20_000
PING = b": ping\n\n"


def limited(client: Any, limit: int = LIMIT, **options: Any) -> Any:
    return rt.wrap_openai(client, max_call_bytes=limit, **options)


def chunk(content: str | None, ids: Sequence[int] = (), finish: str | None = None) -> bytes:
    """An event with some text, its ids and logprobs."""
    entries = [{"token": "x", "logprob": -1.0, "bytes": [120], "top_logprobs": []} for _ in ids]
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish, "token_ids": list(ids)}
    choice["logprobs"] = {"content": entries} if ids else None
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json_bytes(body | {"prompt_token_ids": [1, 2]}) + b"\n\n"


DONE = b"data: [DONE]\n\n"
ANSWER = [chunk("fi", [1, 2]), chunk("ne", [3, 4]), chunk(None, finish="stop"), DONE]


class Raw(LoopbackServer):
    """Answers every request with the same bytes."""

    def __init__(self, parts: Sequence[Part], content_type: str = "text/event-stream", encoding: str = "") -> None:
        super().__init__()
        self.parts, self.chunked = parts, True
        self.headers = [("content-type", content_type), *([("content-encoding", encoding)] if encoding else [])]

    def answer(self, record: RequestRecord) -> Response:
        return Response(200, self.headers, self.parts, chunked=self.chunked)


def same(
    kind: Kind, make: Callable[[], LoopbackServer], scenario: Callable[[Any], Any], **wrap: Any
) -> tuple[Any, rt.Step]:
    """The outcome, which is that of a bare client, and the step."""
    with make() as server:
        plain, none = on(kind, server, scenario, None)
    with make() as server:
        ours, steps = on(kind, server, scenario, {"max_call_bytes": LIMIT} | wrap)
    assert ours == plain
    assert none == []
    (step,) = steps
    return ours, step


async def read(client: Any) -> list[Any]:
    stream = await done(client.chat.completions.create(**STREAM))
    return [shown(one) async for one in each(stream)]


def assert_cut(step: rt.Step, status: str, message: str) -> None:
    """No ids and no logprobs, and the reason."""
    assert (step.status, step.error) == (status, None)
    arrays = (step.prompt_token_ids, step.completion_token_ids, step.logprobs, step.top_logprobs, step.token_source)
    assert arrays == (None,) * 5
    assert step.token_issue is not None
    assert (step.token_issue.code, step.token_issue.message) == ("bytes_left_out", message)
    # The status comes first, where it is the reason.
    assert reason_left_out(step) == ("bytes_left_out" if status == "ok" else status)


# What is missing, and how the step says it.


@pytest.mark.parametrize("n", [1, 2])
def test_a_long_stream_keeps_its_beginning(kind: Kind, n: int, caplog: pytest.LogCaptureFixture) -> None:
    """The completion is what came first, without ids; each choice says so. The caller has all of it."""

    async def scenario(world: World) -> Any:
        return await streamed(world.client, n=n)

    plain = run(kind, "fine " * 40, scenario, wrap=bare)
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        ours = run(kind, "fine " * 40, scenario, wrap=limited)
    assert ours.outcome == plain.outcome
    assert len(ours.steps) == n
    sent = len(ours.requests[0].response_body)
    for step in ours.steps:
        assert_cut(
            step,
            "ok",
            f"the response has {sent:,} bytes, and the first {LIMIT:,} are kept (max_call_bytes is {LIMIT:,}).",
        )
        assert step.completion is not None
        text = step.completion.content
        assert isinstance(text, str)
        assert 0 < len(text) < 200
        assert ("fine " * 40).startswith(text)
        assert step.messages == CHAT["messages"]
    assert sum("too long to keep" in record.getMessage() for record in caplog.records) <= 1


def test_a_stream_just_within_the_limit_is_whole(kind: Kind) -> None:
    """One byte less is too few."""

    async def scenario(world: World) -> Any:
        return await streamed(world.client)

    size = len(run(kind, "fine", scenario).requests[0].response_body)
    enough = run(kind, "fine", scenario, wrap=functools.partial(limited, limit=size)).step
    assert (enough.status, enough.token_issue) == ("ok", None)
    short = run(kind, "fine", scenario, wrap=functools.partial(limited, limit=size - 1)).step
    assert short.token_issue is not None
    assert short.token_issue.code == "bytes_left_out"


@pytest.mark.parametrize("keep", [True, False])
def test_a_long_answer_that_is_one_object_is_not_read(kind: Kind, keep: bool) -> None:
    """Its beginning is no JSON: there is no completion. The request is there; `keep_bytes` keeps what was kept."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    reply = Reply("fine", extra={"padding": "x" * LIMIT})
    plain = run(kind, reply, scenario, wrap=bare)
    ours = run(kind, reply, scenario, wrap=functools.partial(limited, keep_bytes=keep))
    assert ours.outcome == plain.outcome
    sent = ours.requests[0].response_body
    assert_cut(
        ours.step,
        "ok",
        f"the response has {len(sent):,} bytes, and the first {LIMIT:,} are kept (max_call_bytes is {LIMIT:,}).",
    )
    assert (ours.step.completion, ours.step.model, ours.step.messages) == (None, "m", CHAT["messages"])
    assert ours.step.response_bytes == (sent[:LIMIT] if keep else None)


def test_a_long_request_is_not_kept(kind: Kind) -> None:
    """The answer is read without it, but for its ids: what they answer is not known."""

    async def scenario(client: Any) -> Any:
        messages = [{"role": "user", "content": "x" * LIMIT}]
        stream = await done(client.chat.completions.create(**{**STREAM, "messages": messages}))
        return [shown(one) async for one in each(stream)]

    made: list[Raw] = []
    _, step = same(kind, lambda: made.append(Raw(ANSWER)) or made[-1], scenario)  # type: ignore[func-returns-value]
    sent = len(made[-1].requests[0].body)
    assert_cut(step, "ok", f"the request has {sent:,} bytes, and none are kept (max_call_bytes is {LIMIT:,}).")
    assert step.completion is not None
    assert (step.completion.content, step.messages, step.model) == ("fine", None, None)


def test_an_attempt_that_was_too_long_is_forgotten(kind: Kind) -> None:
    """What was left out of an attempt that failed is nothing of the next one's."""

    def script(request: Any, record: RequestRecord) -> Any:
        return Fault(status=500, body="x" * (2 * LIMIT)) if record.index == 0 else "fine"

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    ours = run(kind, script, scenario, wrap=limited, max_retries=1)
    assert (ours.step.status, ours.step.token_issue) == ("ok", None)
    assert len(ours.step.attempts) == 2


def test_a_long_error_is_cut(kind: Kind) -> None:
    """Its beginning is the message."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    fault = Fault(status=400, body="no " * 2_000_000)
    plain, ours = run(kind, fault, scenario, wrap=bare), run(kind, fault, scenario, wrap=limited)
    assert ours.outcome == plain.outcome
    assert ours.step.status == "error"
    assert ours.step.error is not None
    assert (ours.step.error.status, ours.step.error.message) == (400, ("no " * 2000)[:2000])


def test_a_long_stream_that_breaks_off_is_an_error(kind: Kind) -> None:
    """Its status is that of what the caller saw."""

    async def scenario(world: World) -> Any:
        return await streamed(world.client)

    fault = Fault(Reply("fine " * 40), cut_after=150)
    plain, ours = run(kind, fault, scenario, wrap=bare), run(kind, fault, scenario, wrap=limited)
    assert ours.outcome == plain.outcome
    assert (ours.step.status, ours.step.completion_token_ids) == ("error", None)
    assert ours.step.token_issue is not None
    assert ours.step.token_issue.code == "bytes_left_out"


def test_a_long_stream_that_its_reader_closes_is_abandoned(kind: Kind) -> None:
    """Neither its end nor [DONE] was seen."""

    async def scenario(client: Any) -> Any:
        stream = await done(client.chat.completions.create(**STREAM))
        async for _ in each(stream):
            # In the answer's 200th event, far past the limit.
            seen.append(_)
            if len(seen) % 200 == 0:
                break
        await done(stream.close())

    seen: list[Any] = []
    _, step = same(kind, lambda: Raw([chunk("x", [1])] * 400 + ANSWER), scenario)
    assert step.status == "abandoned"
    assert step.token_issue is not None
    assert step.token_issue.code == "bytes_left_out"


def test_what_comes_after_a_gap_is_not_kept(kind: Kind) -> None:
    """A long chunk and then a short one: without the first, the second would follow what it does not follow."""
    parts = [chunk("a", [1]), chunk("b" * LIMIT, [2]), chunk("c", [3]), chunk(None, finish="stop"), DONE]
    _, step = same(kind, lambda: Raw(parts), read)
    assert step.completion is not None
    assert (step.status, step.completion.content) == ("ok", "a")


@pytest.mark.parametrize("protocol", ["anthropic.messages", "openai.responses", "openai.completions"])
def test_every_protocol_keeps_the_beginning_of_a_long_stream(protocol: str) -> None:
    """Read to its end it is ok, although the record lacks the end."""
    anthropic = pytest.importorskip("anthropic")
    import openai

    with ScriptedServer("fine " * 300) as server, rt.trajectory() as trajectory:
        with openai.OpenAI(base_url=server.base_url, api_key="x") as one:
            limited(one)
            with anthropic.Anthropic(base_url=server.url, api_key="x") as other:
                rt.wrap_anthropic(other, max_call_bytes=LIMIT)
                ask: dict[str, Callable[..., Any]] = {
                    "anthropic.messages": functools.partial(
                        other.messages.create, max_tokens=1000, messages=CHAT["messages"]
                    ),
                    "openai.responses": functools.partial(one.responses.create, input="hi"),
                    "openai.completions": functools.partial(one.completions.create, prompt="hi"),
                }
                for _ in ask[protocol](model="m", stream=True):
                    pass
    (step,) = trajectory.steps
    sent = len(server.requests[0].response_body)
    assert step.protocol == protocol
    assert_cut(
        step, "ok", f"the response has {sent:,} bytes, and the first {LIMIT:,} are kept (max_call_bytes is {LIMIT:,})."
    )
    assert step.completion is not None
    assert str(step.completion.content).startswith("fine fine")


# Compressed answers.


def test_an_answer_that_unpacks_to_too_much(kind: Kind) -> None:
    """Its beginning is read; how much longer than four times the limit it is is not said, since nobody has looked."""
    body = gzip.compress(b"".join([chunk("x" * 1000)] * 400 + ANSWER))
    _, step = same(kind, lambda: Raw([body], encoding="gzip"), read)
    assert len(body) < LIMIT
    limits = f"unpack to more than {4 * LIMIT:,}, and the first {LIMIT:,} of them are read"
    assert step.token_issue is not None
    assert (step.token_issue.code, step.token_issue.message) == (
        "bytes_left_out",
        f"{len(body):,} bytes of the response {limits} (max_call_bytes is {LIMIT:,}).",
    )
    assert step.completion is not None
    text = step.completion.content
    assert isinstance(text, str)
    assert 0 < len(text) < LIMIT
    assert step.completion_token_ids is None


def test_an_answer_that_is_too_long_although_it_is_packed(kind: Kind) -> None:
    """Of what arrived, what can be unpacked is read."""
    noise = "".join(chr(33 + os.urandom(1)[0] % 90) for _ in range(40_000)).replace("\\", "x").replace('"', "y")
    body = gzip.compress(b"".join([chunk(noise[start : start + 100]) for start in range(0, 40_000, 100)] + ANSWER))
    assert len(body) > LIMIT
    _, step = same(kind, lambda: Raw([body], encoding="gzip"), read)
    assert step.token_issue is not None
    assert f"the response has {len(body):,} bytes, and the first {LIMIT:,} are kept" in step.token_issue.message
    assert step.completion is not None
    text = step.completion.content
    assert isinstance(text, str)
    assert text
    assert noise.startswith(text)


# Heartbeats.


@pytest.mark.parametrize("newline", some([b"\n", b"\r\n"], b"\r\n"))
@pytest.mark.parametrize("size", some([None, 7, 1000, 300_000], 1000))
def test_heartbeats_are_nothing(kind: Kind, size: int | None, newline: bytes) -> None:
    """Comments of many times the limit, before, within and after an answer, however the bytes are cut: all is there."""
    beats = [PING] * {7: 400, None: 8_000}.get(size, 40_000)
    body = [*beats, ANSWER[0], *beats, b": in an event\n" + ANSWER[1], *beats, *ANSWER[2:]]
    whole = b"".join(body).replace(b"\n", newline)
    parts = [part.replace(b"\n", newline) for part in body] if size is None else cut(whole, size)
    if size is None and newline == b"\r\n":
        parts = [whole]
    limit = LIMIT if size != 7 else 3_000
    _, step = same(kind, lambda: Raw(parts), read, max_call_bytes=limit)
    assert len(whole) > limit
    assert (step.status, step.token_issue, step.finish_reason) == ("ok", None, "stop")
    assert step.completion is not None
    assert step.completion.content == "fine"
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == [1, 2, 3, 4]


LINES = st.lists(st.sampled_from([b"", b"", b": ping", b":", b"data: a", b"data: : b", b"event: x"]), max_size=60)


@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(1, 30)), st.integers(1, 40))
def test_however_a_stream_is_cut_its_events_stay(
    lines: list[bytes], newline: bytes, sizes: list[int], piece: int
) -> None:
    """What is kept of a stream in chunks of any size holds the same events, and is counted right."""
    body = newline.join(lines)
    parts, usual = [], bounds.PIECE
    try:
        bounds.PIECE = piece
        call = Call(Settings(lambda *_: None, max_call_bytes=10_000), "openai.chat")
        call.attempt(b"{}")
        call.answered(200, {"content-type": "text/event-stream; charset=utf-8"})
        rest = body
        for size in sizes:
            parts.append(rest[:size])
            rest = rest[size:]
        for part in (*parts, rest):
            call.receive(part)
    finally:
        bounds.PIECE = usual
    kept = b"".join(call.chunks)
    assert list(events(kept)) == list(events(body))
    assert (call.held, call.left_out) == (len(kept), 0)


def test_what_looks_like_a_comment_and_is_none(kind: Kind) -> None:
    """A text with colons at the beginning of its lines is no comment."""
    text = ": ping\n\n: pong\r\n" * 20_000
    parts = cut(b"".join([chunk(text[start : start + 97], [5]) for start in range(0, len(text), 97)] + ANSWER), 1000)
    _, step = same(kind, lambda: Raw(parts), read, max_call_bytes=64 * 1024 * 1024)
    assert step.token_issue is None
    assert step.completion is not None
    assert step.completion.content == text + "fine"


def test_a_comment_without_an_end_is_counted(kind: Kind) -> None:
    """It cannot be told from one that is data; it is left out past the limit, and the step says so."""
    parts = [ANSWER[0], *[b":" + b"x" * 1000] * 400, b"\n\n", *ANSWER[1:]]
    _, step = same(kind, lambda: Raw(parts), read)
    assert step.status == "ok"
    assert step.token_issue is not None
    assert step.token_issue.code == "bytes_left_out"


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


# Other clients, and arguments.


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_an_http_client_that_reads_whole_bodies(encoding: str) -> None:
    """Of a stream that was read as a whole the beginning is kept; unpacked, it may have four times as many bytes."""
    # Unpacked, it may have four times as many bytes.
    body = b"".join([chunk("x" * 100)] * 400 + ANSWER)
    sent = gzip.compress(body) if encoding else body
    with Raw([sent], encoding=encoding) as server, httpx.Client() as client, rt.trajectory() as trajectory:
        wrap_httpx(client, max_call_bytes=LIMIT)
        response = client.post(f"{server.base_url}/chat/completions", json=STREAM)
        assert response.content == body
    (step,) = trajectory.steps
    assert step.token_issue is not None
    assert f"has {len(body):,} bytes, and the first {LIMIT:,} are kept" in step.token_issue.message
    assert (step.status, step.completion is None) == ("ok", False)


@pytest.mark.parametrize("wrap", [rt.wrap_openai, rt.wrap_anthropic, wrap_httpx])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "64", None])
def test_the_limit_is_checked_at_once(wrap: Any, value: Any) -> None:
    """A positive whole number."""
    anthropic = pytest.importorskip("anthropic")
    import openai

    with openai.OpenAI(api_key="x") as one, anthropic.Anthropic(api_key="x") as other, httpx.Client() as http:
        client = {rt.wrap_openai: one, rt.wrap_anthropic: other}.get(wrap, http)
        kind = ValueError if type(value) is int else TypeError
        with pytest.raises(kind, match=rf"^max_call_bytes={value!r}: expected "):
            wrap(client, max_call_bytes=value)


# Memory.

MB = 1024 * 1024
FULL = bool(os.environ.get("ROLLOUT_TRACE_FULL_SIZES"))
"""The default limit and the largest sizes; without, a sixteenth of the limit and sizes far above it."""
CALL_BYTES = 64 * MB if FULL else 4 * MB


def heartbeats() -> Raw:
    return Raw([*ANSWER[:1], *[PING * 8192] * ((1600 if FULL else 100) * MB // 65536), *ANSWER[1:]])


def packed_heartbeats() -> Raw:
    member = gzip.compress(PING * MB)
    return Raw([member] * (30 if FULL else 1) + [gzip.compress(b"".join(ANSWER))], encoding="gzip")


def bomb(content_type: str) -> Raw:
    member = gzip.compress(b" " * (64 * MB))
    return Raw([gzip.compress(b'{"a": "'), *[member] * (160 if FULL else 4)], content_type, "gzip")


def event_bomb() -> Raw:
    member = gzip.compress(chunk("x" * 10_000, [1]) * 1000)
    return Raw([member] * (60 if FULL else 4), encoding="gzip")


def long_body() -> Raw:
    return Raw([b'{"a": "', *[b"x" * MB] * (300 if FULL else 100)], "application/json")


SERVERS: dict[str, tuple[Callable[[], Raw], int]] = {
    "heartbeats in a stream": (heartbeats, 1),
    "packed heartbeats in a stream": (packed_heartbeats, 1),
    "bomb": (functools.partial(bomb, "application/json"), 1),
    "bomb in a stream": (functools.partial(bomb, "text/event-stream"), 1),
    "bomb of events in a stream": (event_bomb, 1),
    "body": (long_body, 1),
    "request in a stream": (lambda: Raw(ANSWER), (300 if FULL else 100) * MB),
}


@pytest.fixture(scope="module")
def in_a_process() -> Iterator[Callable[..., Any]]:
    """Makes one call in a process of its own: `bounded_call`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, str(Path(__file__).with_name("bounded_call.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as caller:
        assert caller.stdin
        assert caller.stdout

        def call(*arguments: Any) -> Any:
            print(json.dumps(arguments), file=caller.stdin)
            found = json.loads(caller.stdout.readline())  # type: ignore[union-attr]
            assert "failed" not in found, found["failed"]
            return found

        yield call
        caller.stdin.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
@pytest.mark.parametrize("name", some(SERVERS, next(iter(SERVERS))))
def test_memory_is_bounded(name: str, in_a_process: Callable[..., Any]) -> None:
    """A process that records takes at most twice the limits more than one that does not, and reads the same."""
    make, request_bytes = SERVERS[name]
    with make() as server:
        plain, ours = (in_a_process(server.base_url, name, limit, request_bytes) for limit in (0, CALL_BYTES))
    assert (ours["size"], ours["digest"]) == (plain["size"], plain["digest"])
    assert ours["memory"] - plain["memory"] < 2 * (CALL_BYTES + 4 * CALL_BYTES)
    (step,) = ours["steps"]
    assert step["status"] == "ok"
    if "heartbeats" in name:
        assert (step["content"], step["issue"]) == ("fine", None)
    else:
        assert f"max_call_bytes is {CALL_BYTES:,}" in step["issue"]
