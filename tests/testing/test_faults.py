"""What a scripted server can do wrong, and the pauses that a test controls."""

from __future__ import annotations

import gzip
import http.client
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import openai
import pytest
from openai import OpenAI

from rollout_trace.testing import Answer, Fault, Reply, ScriptedServer, by_conversation, when
from rollout_trace.testing.script import Compression

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**BODY, "stream": True}
BARE: Any = ["weather"]


@contextmanager
def asked(server: ScriptedServer, body: object) -> Iterator[http.client.HTTPResponse]:
    """Send a chat request on a connection of its own, and read the head of the response."""
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        with connection.getresponse() as response:
            yield response


def text_of(server: ScriptedServer, *, stream: bool = False, retries: int = 0) -> str:
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=retries) as client:
        if not stream:
            answer = client.chat.completions.create(**BODY)  # type: ignore[call-overload]
            return str(answer.choices[0].message.content)
        with client.chat.completions.create(**STREAM) as chunks:  # type: ignore[call-overload]
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_attempts_of_an_equal_request_get_successive_answers() -> None:
    html = Fault(status=500, body="oops", headers={"Content-Type": "text/html"})
    answers: Answer = [Fault(status=429, headers={"retry-after-ms": "1"}), html, "fine"]
    with ScriptedServer(lambda request: answers) as server:
        with pytest.raises(openai.RateLimitError) as error:
            text_of(server)
        with pytest.raises(openai.InternalServerError) as other:
            text_of(server)
        assert [text_of(server), text_of(server)] == ["fine", "fine"]
    assert error.value.response.headers["retry-after-ms"] == "1"
    assert (other.value.response.text, other.value.response.headers["content-type"]) == ("oops", "text/html")
    assert [record.status for record in server.requests] == [429, 500, 200, 200]


def test_the_sdk_retries_a_fault() -> None:
    with ScriptedServer([Fault(status=429, headers={"retry-after-ms": "1"}), "fine"]) as server:
        assert text_of(server, retries=2) == "fine"
    assert [record.status for record in server.requests] == [429, 200]


def test_a_stream_is_cut_after_some_chunks() -> None:
    with ScriptedServer(Fault("hello", cut_after=3)) as server:
        with asked(server, STREAM) as response, pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
        server.wait_idle()
        (record,) = server.requests
    assert cut.value.partial == record.response_body
    assert record.response_body.count(b"data: ") == 3
    assert not record.completed


def test_an_unstreamed_answer_is_cut_after_some_bytes() -> None:
    with ScriptedServer(Fault("hello", cut_after=10)) as server:
        with asked(server, BODY) as response, pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
    assert cut.value.partial == b'{"id":"cha'


def test_the_sdk_sees_a_cut_connection() -> None:
    with ScriptedServer(Fault("hello", cut_after=0)) as server:
        with pytest.raises(Exception, match=r"Connection error|peer closed connection"):
            text_of(server, stream=True)


def test_a_stream_without_done_and_one_with_an_error_event() -> None:
    with ScriptedServer([Fault("hello", no_done=True), Fault("hello", error_event_after=2)]) as server:
        assert text_of(server, stream=True) == "hello"
        with pytest.raises(openai.APIError, match="the script breaks this stream"):
            text_of(server, stream=True)
    first, second = server.requests
    assert first.completed
    assert b"[DONE]" not in first.response_body
    assert second.response_body.count(b"data: ") == 4
    assert second.response_body.endswith(b'"code":500}}\n\ndata: [DONE]\n\n')


def test_a_body_that_is_no_json() -> None:
    with ScriptedServer(Fault(bad_json=True)) as server:
        for stream in (False, True):
            with pytest.raises(json.JSONDecodeError):
                text_of(server, stream=stream)
    assert [record.status for record in server.requests] == [200, 200]


def test_an_answer_waits_before_its_head() -> None:
    with ScriptedServer(Fault("late", hold=True)) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(text_of, server)
        server.wait_held()
        (record,) = server.requests
        assert record.status is None
        server.release(1)
        assert waiting.result() == "late"


def test_an_answer_waits_after_some_chunks() -> None:
    with ScriptedServer(Fault("late", hold_after=2)) as server:
        with asked(server, STREAM) as response:
            got = [response.readline() for _ in range(4)]
            server.wait_held()
            assert json.loads(got[2][6:])["choices"][0]["delta"] == {"content": "l"}
            assert not server.requests[0].completed
            server.release()
            assert response.read().endswith(b"data: [DONE]\n\n")
    assert server.requests[0].completed


def test_a_permit_given_early_counts_and_a_wait_that_nothing_ends_is_an_error() -> None:
    with ScriptedServer(Fault("x", hold=True)) as server:
        server.release(1)
        assert text_of(server) == "x"
        with pytest.raises(TimeoutError, match="0 responses are held"):
            server.wait_held(timeout=0)


def test_hold_and_cut_together() -> None:
    with ScriptedServer(Fault("hello", hold_after=1, cut_after=2)) as server:
        with asked(server, STREAM) as response:
            server.wait_held()
            server.release(1)
            with pytest.raises(http.client.IncompleteRead) as cut:
                response.read()
    assert cut.value.partial.count(b"data: ") == 2


def test_a_delay_ends_when_the_server_closes() -> None:
    with ThreadPoolExecutor(1) as pool, ScriptedServer(Fault(delay=3600)) as server:
        with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(BODY))
            waiting = pool.submit(connection.getresponse)
            server.close()
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                waiting.result()


def test_a_short_delay() -> None:
    with ScriptedServer(Fault("x", delay=0.001), delay=0.001) as server:
        assert text_of(server) == "x"


def expand(data: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(data)
    if encoding == "br":
        return bytes(pytest.importorskip("brotli").decompress(data))
    return bytes(pytest.importorskip("zstandard").ZstdDecompressor().decompressobj().decompress(data))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
def test_compressed_answers(encoding: Compression, stream: bool) -> None:
    pytest.importorskip({"gzip": "gzip", "br": "brotli", "zstd": "zstandard"}[encoding])
    with ScriptedServer([Reply("hello 🙂", compress=encoding), "hello 🙂"]) as server:
        for _ in range(2):
            with asked(server, STREAM if stream else BODY) as response:
                response.read()
    packed, plain = server.requests
    assert ("content-encoding", encoding) in packed.response_headers
    own_id = re.compile(rb"chatcmpl-[0-9a-f]{16}")
    assert own_id.sub(b"", expand(packed.response_body, encoding)) == own_id.sub(b"", plain.response_body)


def test_the_sdk_reads_a_compressed_stream() -> None:
    with ScriptedServer(Reply("hello 🙂", compress="gzip")) as server:
        assert text_of(server, stream=True) == "hello 🙂"


@pytest.mark.parametrize("compress", [None, "gzip"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_bytes_of_a_body_are_cut_anywhere(stream: bool, compress: Compression | None) -> None:
    with ScriptedServer(Reply("hello 🙂", compress=compress), chunk_bytes=7) as server:
        assert text_of(server, stream=stream) == "hello 🙂"
    (record,) = server.requests
    assert {len(chunk) for chunk in record.response_chunks[:-1]} == {7}
    assert 1 <= len(record.response_chunks[-1]) <= 7


def test_a_client_that_goes_away() -> None:
    def script(request: Any) -> Answer:
        return Fault("x" * 10_000, hold_after=1)

    with ScriptedServer(script) as server:
        with asked(server, {**STREAM, "logprobs": True}):
            server.wait_held()
        server.release()
        server.wait_idle()
        assert not server.requests[0].completed
    assert server.errors == []


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        (ScriptedServer, {"faults": {"2": Fault(status=500)}}, "`faults` has '2': use numbers"),
        (ScriptedServer, {"faults": {0: Fault(status=500)}}, "`faults` has 0: requests are counted from 1"),
        (ScriptedServer, {"faults": [Fault(status=500)]}, "use a dict by number"),
        (by_conversation, {"factory": {}, "faults": {"2": Fault(status=500)}}, "`faults` has '2': use numbers"),
        (ScriptedServer, {"rate_limit": 5}, "rate_limit=5: use RateLimit"),
        (ScriptedServer, {"latency": "1"}, "latency='1': use seconds, or a Latency"),
        (when, {"turn": "1"}, "when(turn='1'): use a number"),
    ],
)
def test_what_would_never_happen_is_refused(made: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        made(**given)
    assert message in str(refused.value)


def test_a_tool_call_without_arguments_is_named() -> None:
    script = Reply(tool_calls=BARE)
    server = ScriptedServer(script)
    server.start()
    with asked(server, BODY) as response:
        assert response.status == 400
        assert "the tool call 'weather': use a pair of name and arguments" in response.read().decode()
    server.close()
