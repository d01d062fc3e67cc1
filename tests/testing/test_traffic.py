"""Faults by the number of a request, and how fast and how much a scripted server answers."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from rollout_trace.testing import Fault, Latency, RateLimit, ScriptedServer
from rollout_trace.testing.traffic import Meter
from tests.testing.asking import CHAT, chat, post

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LIMITED = Fault(status=503, headers={"retry-after-ms": "1"})


@contextmanager
def connected(server: ScriptedServer, *, stream: bool = True) -> Iterator[socket.socket]:
    """A request that was sent, on a socket of its own."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({**BODY, "stream": stream}).encode()
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        yield connection


def read(connection: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_faults_by_the_number_of_the_request_take_no_answer() -> None:
    with ScriptedServer(["one", "two"], faults={1: LIMITED, 3: LIMITED}) as server:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=1) as client:
            found = [client.chat.completions.create(**BODY).choices[0].message.content for _ in range(2)]  # type: ignore[call-overload]
        assert post(server, "/v1/models", method="GET")[0] == 200
    assert found == ["one", "two"]
    assert [record.status for record in server.requests] == [503, 200, 503, 200, 200]
    assert server.answers_left == 0


@pytest.mark.parametrize("fault", [Fault(cut_after=2), Fault(error_event_after=2), Fault(bad_json=True)])
def test_an_answer_that_was_broken_off_comes_again(fault: Fault) -> None:
    """An equal request, as a client sends that tries again, gets what the first one would have got."""
    with ScriptedServer(["one", "two"], faults={1: fault}) as server:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:

            def text() -> str:
                with client.chat.completions.create(**BODY, stream=True) as chunks:  # type: ignore[call-overload]
                    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

            with pytest.raises((openai.APIError, json.JSONDecodeError, httpx2.RemoteProtocolError)):
                text()
            assert [text(), text()] == ["one", "two"]
    assert server.answers_left == 0


def test_a_function_says_which_requests_fail() -> None:
    with ScriptedServer("x", faults=lambda number: LIMITED if number % 2 else None) as server:
        for _ in range(4):
            post(server, CHAT, BODY)
        server.faults = None
        assert chat(server, "hi") == "x"
    assert [record.status for record in server.requests] == [503, 200, 503, 200, 200]
    assert server.faults is None


def test_a_fault_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match="`faults` gave 503 for request 1: use a Fault"):
        with ScriptedServer("x", faults={1: 503}) as server:  # type: ignore[dict-item]
            post(server, CHAT, BODY)


def test_a_reset_before_the_answer_and_in_a_stream() -> None:
    with ScriptedServer([Fault(reset=True), Fault("hello", reset=True, cut_after=2)]) as server:
        with connected(server) as connection, pytest.raises(ConnectionResetError):
            connection.recv(1)
        with connected(server) as connection:
            with pytest.raises(ConnectionResetError):
                read(connection)
    assert [record.status for record in server.requests] == [None, 200]
    assert not any(record.completed for record in server.requests)


def test_the_sdk_tries_again_after_a_reset() -> None:
    with ScriptedServer(["fine"], faults={1: Fault(reset=True)}) as server:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=1) as client:
            assert client.chat.completions.create(**BODY).choices[0].message.content == "fine"  # type: ignore[call-overload]


@pytest.mark.parametrize(("fault", "events"), [(Fault("hello", stall=True), 0), (Fault("hello", stall_after=3), 3)])
def test_a_stalled_answer_ends_when_the_client_leaves(fault: Fault, events: int) -> None:
    with ScriptedServer(fault) as server:
        with connected(server) as connection:
            server.wait_requests()
            got = b""
            while got.count(b"data: ") < events:
                got += connection.recv(65536)
            assert server.requests[0].completed is False
        server.wait_idle()
        (record,) = server.requests
    assert (record.response_body.count(b"data: "), record.completed) == (events, False)
    assert (record.status is None) == (events == 0)


def test_a_stalled_answer_ends_when_the_server_closes() -> None:
    with ScriptedServer(Fault(stall=True)) as server, connected(server) as connection, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read, connection)
        server.wait_requests()
        server.close()
        assert waiting.result() == b""


class Waits(ScriptedServer):
    """A server that notes its waits in place of waiting."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waited: list[float] = []

    def _pause(self, seconds: float) -> None:
        self.waited.append(seconds)


def test_latency_is_the_time_of_the_first_token_and_of_each_other() -> None:
    latency = Latency(first_token=10.0, per_token=1.0, per_prompt_token=0.5)
    with Waits("abc", latency=latency) as server:
        prompt = len(server.tokenizer.apply_chat_template(BODY["messages"]))  # type: ignore[arg-type]
        post(server, CHAT, BODY)
        assert server.waited == pytest.approx([10 + prompt / 2 + 4], abs=0.5)
        server.waited.clear()
        post(server, CHAT, {**BODY, "stream": True})
        body = server.requests[-1].response_body
    # The clock stands still here, so each wait is until its own time: in all, that of the four tokens after the first.
    assert len(server.waited) == body.count(b"data: ")
    assert server.waited[-1] == pytest.approx(10 + prompt / 2 + 4, abs=0.5)


def test_the_jitter_of_a_request_is_the_same_in_every_run() -> None:
    latency = Latency(1.0, 0.1, jitter=0.5, seed=3)
    paces = [latency.pace(bytes([at]), 0) for at in range(100)]
    assert paces == [latency.pace(bytes([at]), 0) for at in range(100)]
    factors = [pace.first_token for pace in paces]
    assert 0.5 <= min(factors) < 0.7 < 1.3 < max(factors) <= 1.5
    assert all(pace.per_token == pytest.approx(pace.first_token / 10) for pace in paces)
    assert Latency(1.0, jitter=0.5, seed=4).pace(b"\0", 0).first_token != factors[0]


def test_tokens_per_second_and_the_delay_between_chunks() -> None:
    with Waits("abc", tokens_per_second=2, latency=1.0) as server:
        post(server, CHAT, BODY)
        assert server.waited == pytest.approx([1 + 4 / 2], abs=0.5)
    with Waits(Fault("abc", chunk_delay=5.0)) as server:
        body = post(server, CHAT, {**BODY, "stream": True})[1]
    assert len(server.waited) == body.count(b"data: ") - 1
    assert server.waited[-1] == pytest.approx(5.0 * len(server.waited), abs=0.5)


def test_a_real_wait_is_waited() -> None:
    with ScriptedServer("abc", latency=Latency(0.001, 0.001)) as server:
        assert chat(server, "hi") == "abc"
        assert post(server, CHAT, {**BODY, "stream": True})[1].endswith(b"data: [DONE]\n\n")


def test_more_requests_than_run_at_once_wait_their_turn() -> None:
    with ScriptedServer(Fault("x", hold=True), max_parallel=2) as server, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(post, server, CHAT, BODY) for _ in range(6)]
        for _ in range(3):
            server.wait_held(2)
            with pytest.raises(TimeoutError):
                server.wait_held(3, timeout=0)
            server.release(2)
        assert [future.result()[0] for future in asked] == [200] * 6


def test_requests_that_wait_for_their_turn_end_when_the_server_closes() -> None:
    with ScriptedServer(Fault("x", hold=True), max_parallel=1) as server, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(post, server, CHAT, BODY) for _ in range(3)]
        server.wait_held(1)
        server.wait_requests(3)
        server.close()
        for future in asked:
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                future.result()


def test_too_many_requests_at_once_are_refused() -> None:
    limit = RateLimit(in_flight=1, seconds=0.2)
    with ScriptedServer([Fault("x", hold=True), "y"], rate_limit=limit) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, server, CHAT, BODY)
        server.wait_held()
        status, body, headers = post(server, CHAT, BODY)
        assert (status, headers["retry-after"], headers["retry-after-ms"]) == (429, "1", "200")
        assert json.loads(body)["error"]["type"] == "RateLimitError"
        server.release(1)
        assert first.result()[0] == 200
        server.wait_idle()
        assert chat(server, "hi") == "y"


def test_requests_in_a_span_of_time_are_limited_in_the_shape_of_each_protocol() -> None:
    with ScriptedServer("x", rate_limit=RateLimit(requests=1, seconds=3600)) as server:
        assert post(server, CHAT, BODY)[0] == 200
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError, match="rate limit of the scripted server"):
                client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        messages = json.loads(post(server, "/v1/messages", {**BODY, "max_tokens": 1})[1])
        assert messages["error"]["type"] == "rate_limit_error"
    assert server.errors == []


def test_a_meter_forgets_what_is_long_ago() -> None:
    meter = Meter(RateLimit(requests=1, seconds=1e-9))
    assert [meter.enter() for _ in range(3)] == [None, None, None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Latency(first_token=-1), r"Latency\(first_token=-1\): use 0 or more"),
        (lambda: Latency(jitter=2), "use a share from 0 to 1"),
        (lambda: RateLimit(), "limits nothing"),
        (lambda: RateLimit(requests=0), r"RateLimit\(requests=0\): use more than 0"),
        (lambda: ScriptedServer("x", max_parallel=0), "max_parallel=0: use 1 or more"),
        (lambda: ScriptedServer("x", tokens_per_second=0), "tokens_per_second=0: use more than 0"),
        (lambda: ScriptedServer("x", tokens_per_second=1, latency=Latency(per_token=1)), "give one of them"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
