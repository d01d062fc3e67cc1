"""lm15, the client inside dspy, whose transports speak HTTP on plain sockets."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Response, cut
from rollout_trace.process.redirect import CALL_HEADER, Redirected, redirect
from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer
from rollout_trace.testing._delivery import compress_parts
from tests.wire.engines.added_chunks import Recorded, bare, events, says_something, streams

transports = pytest.importorskip("dspy._vendor.lm15.transports")
pytestmark = pytest.mark.filterwarnings("ignore")  # dspy's own
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
Send = Callable[[Any], "tuple[int, bytes]"]


def sync(request: Any) -> tuple[int, bytes]:
    """Status and body of an answer, by the sync transport."""
    with transports.StdlibTransport() as transport, transport.stream(request) as response:
        return response.status, response.read()


def async_(request: Any) -> tuple[int, bytes]:
    """The same, by the async one."""

    async def agent() -> tuple[int, bytes]:
        async with transports.StdlibAsyncTransport() as transport, transport.stream(request) as response:
            return response.status, await response.read()

    return asyncio.run(agent())


@pytest.fixture(params=[sync, async_], ids=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Send:
    """One of the transports."""
    function: Send = request.param
    return function


def post(server: ScriptedServer, **more: Any) -> Any:
    """A request for a chat completion."""
    url = f"{server.base_url}/chat/completions"
    headers = [("Content-Type", "application/json"), ("Authorization", "Bearer none")]
    return transports.TransportRequest("POST", url, headers, json.dumps({**BODY, **more}).encode())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compress", [None, "gzip"])
def test_a_call_is_recorded_with_its_bytes(send: Send, stream: bool, compress: Any) -> None:
    with ScriptedServer(Reply("yes", compress=compress)) as server:
        plain = send(post(server, stream=stream))
    with ScriptedServer(Reply("yes", compress=compress)) as server, rt.instrument():
        with rt.trajectory() as trajectory:
            answer = send(post(server, stream=stream))
        (record,) = server.requests
    assert answer == plain
    assert record.body == post_body(stream=stream)
    (step,) = trajectory.steps
    assert step.completion is not None
    assert (step.status, step.completion.content, step.finish_reason) == ("ok", "yes", "stop")


def post_body(**more: Any) -> bytes:
    """Of `post`."""
    return json.dumps({**BODY, **more}).encode()


def test_ids_are_asked_for(send: Send) -> None:
    with ScriptedServer("yes") as server, rt.instrument(engine="vllm"):
        with rt.trajectory() as trajectory:
            assert send(post(server))[0] == 200
        (record,) = server.requests
    assert record.json == {**BODY, "return_token_ids": True, "return_weight_versions": True, "logprobs": True}
    (step,) = trajectory.steps
    assert step.completion_token_ids is not None
    assert step.logprobs is not None


STREAM = "vllm/tools_auto_hermes_two_stream"


@pytest.mark.parametrize("compress", [None, "gzip"])
def test_chunks_that_come_only_because_we_asked(send: Send, compress: Any) -> None:
    """They are recorded and not handed on, unless `show_added` is set."""
    body = streams()[STREAM][1]

    class InPieces(Recorded):
        def answer(self, record: RequestRecord) -> Response:
            found = super().answer(record)
            whole = b"".join(part for part in found.parts if isinstance(part, bytes))
            found.parts = [whole[at : at + 700] for at in range(0, len(whole), 700)]
            if compress is not None:
                found.parts = compress_parts(found.parts, compress)
                found.headers = [*found.headers, ("content-encoding", compress)]
            return found

    def asked(engine: Any) -> tuple[bytes, list[rt.Step]]:
        with rt.instrument(engine=engine), rt.trajectory() as trajectory:
            return send(post(cast("ScriptedServer", server), stream=True))[1], trajectory.steps

    with InPieces(STREAM) as server:
        plain = send(post(cast("ScriptedServer", server), stream=True))[1]
        ours, (step,) = asked("vllm")
        every, _ = asked(rt.Engine("vllm", show_added=True))
    assert [*map(bare, events(ours))] == [*map(bare, events(plain))]
    assert every == body
    assert not all(map(says_something, events(body)))
    assert step.status == "ok"
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert step.usage is not None
    assert len(step.completion_token_ids) == len(step.logprobs) == step.usage.output


@pytest.mark.parametrize("is_async", [False, True])
def test_what_was_read_before_a_break(is_async: bool) -> None:
    """The beginning of an event too, which is held back until its end comes."""

    class Breaks(Recorded):
        def answer(self, record: RequestRecord) -> Response:
            found = super().answer(record)
            found.parts = [b'data: {"choices":[{"index":0,"delta":{"content":"he', cut]
            return found

    read: list[bytes] = []

    async def agent(request: Any) -> None:
        async with transports.StdlibAsyncTransport() as transport, transport.stream(request) as response:
            async for chunk in response:
                read.append(chunk)

    def sync_agent(request: Any) -> None:
        with transports.StdlibTransport() as transport, transport.stream(request) as response:
            read.extend(response)

    with Breaks(STREAM) as server, rt.instrument(engine="vllm"), rt.trajectory() as trajectory:
        request = post(cast("ScriptedServer", server), stream=True)
        with pytest.raises(transports.TransportError):
            asyncio.run(agent(request)) if is_async else sync_agent(request)
    assert b"".join(read).endswith(b'"content":"he')
    (step,) = trajectory.steps
    assert step.status == "error"


def strict(request: Any) -> Any:
    """A server that refuses fields that it does not know."""
    if "return_token_ids" in request:
        error = {"message": "Extra inputs are not permitted: return_token_ids", "param": "return_token_ids"}
        return Fault(status=400, body={"error": error})
    return "yes"


def test_refused_fields_are_taken_out(send: Send) -> None:
    with ScriptedServer(strict) as server, rt.instrument(engine="vllm"):
        with rt.trajectory() as trajectory:
            status, _ = send(post(server))
        assert [record.status for record in server.requests] == [400, 200]
    assert status == 200
    (step,) = trajectory.steps
    assert [attempt.status for attempt in step.attempts] == [400, 200]


def test_an_error_that_is_no_refusal_reaches_the_caller(send: Send) -> None:
    with ScriptedServer(Fault(status=404, body={"error": {"message": "no such model"}})) as server:
        with rt.instrument(engine="vllm"), rt.trajectory() as trajectory:
            assert send(post(server)) == (404, b'{"error":{"message":"no such model"}}')
        assert len(server.requests) == 1
    (step,) = trajectory.steps
    assert step.status == "error"


def test_a_stream_that_is_closed_early() -> None:
    with ScriptedServer("one two three four") as server, rt.instrument(), rt.trajectory() as trajectory:
        with transports.StdlibTransport() as transport, transport.stream(post(server, stream=True)) as response:
            next(iter(response))
    (step,) = trajectory.steps
    assert step.status == "abandoned"


def test_a_body_that_breaks_off(send: Send) -> None:
    with ScriptedServer(Fault("one two three", cut_after=3)) as server:
        with rt.instrument(), rt.trajectory() as trajectory:
            with pytest.raises(transports.TransportError):
                send(post(server, stream=True))
    (step,) = trajectory.steps
    assert step.status == "error"


def test_the_classes_are_put_back() -> None:
    def methods() -> Iterator[Any]:
        for kind in (transports.StdlibTransport, transports.StdlibAsyncTransport):
            yield dict(vars(kind))

    before = list(methods())
    with rt.instrument():
        assert list(methods()) != before
    assert list(methods()) == before


@pytest.mark.parametrize("first", ["instrument", "redirect"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_redirected_call_is_recorded_as_it_would_be(
    send: Send, stream: bool, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    nowhere = SimpleNamespace(base_url="https://model.invalid:8443/v1")
    request = post(cast("ScriptedServer", nowhere), stream=stream)
    with ScriptedServer("yes") as server:

        def route(method: str, url: str, body: bytes | None) -> Redirected:
            assert (method, url, body) == ("POST", request.url, request.body)
            return Redirected(f"{server.base_url}/chat/completions", {"x-added": "yes"})

        makers: list[Callable[[], Any]] = [rt.instrument, lambda: redirect(route)]
        handles = [make() for make in (makers if first == "instrument" else makers[::-1])]
        with rt.trajectory() as trajectory:
            status, body = send(request)
        for handle in handles:
            handle.undo()
        (record,) = server.requests
    (step,) = trajectory.steps
    assert (status, body) == (200, record.response_body)
    assert record.headers["host"] == "model.invalid:8443"
    assert (record.headers["x-added"], record.headers[CALL_HEADER]) == ("yes", f"{os.getpid()}/{step.call_id}")
    assert step.completion is not None
    assert step.completion.content == "yes"


def test_a_redirection_is_undone_exactly() -> None:
    kinds = (transports.StdlibTransport, transports.StdlibAsyncTransport)
    homes = [sys.modules[kind.__module__] for kind in kinds]
    before = [dict(vars(one)) for one in (*kinds, *homes)]
    with redirect(lambda method, url, body: None):
        assert [dict(vars(one)) for one in (*kinds, *homes)] != before
    assert [dict(vars(one)) for one in (*kinds, *homes)] == before
