"""The replaying server: every recorded exchange comes back byte for byte, in the recorded pieces."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import Exchange, ReplayServer, ScriptedServer, load_exchanges, load_reports, pack_exchanges

PACKED = Path(__file__).parent.parent / "data" / "wire_vllm.jsonl.xz"
EXCHANGES = {exchange.name: exchange for exchange in load_exchanges(PACKED)}
BINARY = Exchange("binary", "POST", "/x?a=1", b"\xff", 200, (("content-type", "a/b"),), b"\xfe\x00", (1, 1))


def raw(server: ReplayServer, exchange: Exchange, path: str) -> tuple[int, dict[str, str], list[bytes]]:
    """Ask over a plain socket; gives the status, the headers, and the pieces of the body as they were framed."""
    head = f"{exchange.method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(exchange.request)}\r\n\r\n"
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as connection, connection.makefile("rb") as stream:
        connection.sendall(head.encode() + exchange.request)
        status = int(stream.readline().split()[1])
        lines = iter(lambda: stream.readline().strip().decode(), "")
        headers = dict(line.split(": ", 1) for line in lines)
        if "content-length" in headers:
            return status, headers, [stream.read(int(headers["content-length"]))]
        pieces = []
        while size := int(stream.readline(), 16):
            pieces.append(stream.read(size))
            stream.readline()
        return status, headers, pieces


def test_every_exchange_comes_back_byte_for_byte() -> None:
    with ReplayServer(PACKED) as server:
        for exchange in EXCHANGES.values():
            path = server.base_url_for(exchange.name).removeprefix(server.url) + "/whatever"
            status, headers, pieces = raw(server, exchange, path)
            assert status == exchange.status
            assert pieces == (exchange.chunks if exchange.chunked else [exchange.response])
            kept = {"date", "server", "content-type"}
            assert {k: v for k, v in headers.items() if k in kept} == {k: v for k, v in exchange.headers if k in kept}
    assert len(EXCHANGES) > 100
    assert sum(exchange.chunked for exchange in EXCHANGES.values()) > 20
    assert all(record.completed for record in server.requests)


def test_a_request_is_found_by_its_path_and_json() -> None:
    with ReplayServer(PACKED) as server:
        for exchange in EXCHANGES.values():
            status, _, pieces = raw(server, exchange, exchange.path)
            same = [e for e in EXCHANGES.values() if (e.path, e.request) == (exchange.path, exchange.request)]
            assert (status, b"".join(pieces)) in [(e.status, e.response) for e in same]
        recorded = EXCHANGES["chat_ids"]
        turned = dict(reversed(json.loads(recorded.request).items()))
        reordered = replace(recorded, request=json.dumps(turned, indent=1).encode())
        assert raw(server, reordered, recorded.path)[2] == [recorded.response]


@pytest.mark.parametrize("stream", [False, True])
def test_an_sdk_reads_a_recording_by_its_name(stream: bool) -> None:
    name = "chat_ids_stream" if stream else "chat_ids"
    with ReplayServer(PACKED) as server, OpenAI(base_url=server.base_url_for(name), api_key="none") as client:
        answer: Any = client.chat.completions.create(model="any", messages=[], stream=stream)
        if stream:
            text = "".join(c.choices[0].delta.content or "" for c in answer if c.choices)
        else:
            text = answer.choices[0].message.content
    assert text == json.loads(EXCHANGES["chat_ids"].response)["choices"][0]["message"]["content"]


def test_a_request_that_was_not_recorded_names_the_closest() -> None:
    request = json.loads(EXCHANGES["chat_ids"].request) | {"seed": 8}
    with ReplayServer(PACKED) as server, OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="the closest is 'chat_ids', which differs in: seed"):
            client.post("/chat/completions", body=request, cast_to=object)
        with pytest.raises(KeyError, match="there is no recording 'nothing'"):
            server.base_url_for("nothing")


def test_an_own_rule_of_matching_and_an_empty_source() -> None:
    exchange = EXCHANGES["chat_plain"]
    with ReplayServer([exchange], match=lambda record, exchange: record.path == exchange.path) as server:
        assert raw(server, replace(exchange, request=b"{}"), exchange.path)[2] == [exchange.response]
    with ReplayServer([]) as server:
        status, _, body = raw(server, exchange, exchange.path)
    assert (status, json.loads(body[0])["closest"]) == (404, None)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_packing_keeps_every_byte(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"packed{suffix}"
    exchanges = [EXCHANGES["chat_ids_stream"], EXCHANGES["err_malformed_json"], BINARY]
    pack_exchanges(exchanges, file, {"notes": [1]})
    first = file.read_bytes()
    assert load_exchanges(file) == exchanges
    assert load_reports(file) == {"notes": [1]}
    pack_exchanges(load_exchanges(file), file, load_reports(file))
    assert file.read_bytes() == first


def test_a_folder_is_read_like_a_packed_file(tmp_path: Path) -> None:
    for exchange in (EXCHANGES["chat_ids_stream"], EXCHANGES["chat_ids"]):
        write_folder(tmp_path, exchange)
    (tmp_path / "notes.report.json").write_text("[1]")
    assert load_exchanges(tmp_path) == [EXCHANGES["chat_ids"], EXCHANGES["chat_ids_stream"]]
    assert load_reports(tmp_path) == {"notes": [1]}
    with ReplayServer(tmp_path) as server:
        exchange = EXCHANGES["chat_ids_stream"]
        assert raw(server, exchange, exchange.path)[2] == exchange.chunks


def write_folder(folder: Path, exchange: Exchange, sizes: list[int] | None = None) -> None:
    meta = {
        "method": exchange.method,
        "path": exchange.path,
        "request_headers": [["Content-Type", exchange.request_content_type]],
        "status": exchange.status,
        "response_headers": exchange.headers,
        "chunk_sizes": sizes or exchange.chunk_sizes,
    }
    (folder / f"{exchange.name}.meta.json").write_text(json.dumps(meta))
    (folder / f"{exchange.name}.request.json").write_bytes(exchange.request)
    (folder / f"{exchange.name}.response.bin").write_bytes(exchange.response)


def test_bad_recordings_are_told(tmp_path: Path) -> None:
    write_folder(tmp_path, EXCHANGES["chat_ids_stream"], [1, 2])
    (redacted,) = load_exchanges(tmp_path)
    assert redacted.chunks == [redacted.response]
    (tmp_path / "chat_ids_stream.response.bin").unlink()
    with pytest.raises(ValueError, match="chat_ids_stream should have one response file, found 0"):
        load_exchanges(tmp_path)
    assert load_exchanges(tmp_path, complete=False) == []
    with pytest.raises(ValueError, match=r"its name should end with one of \.jsonl, "):
        load_exchanges(tmp_path / "exchanges.zip")


def test_the_packed_reports_are_there() -> None:
    assert load_reports(PACKED)["multiturn_canonical"][0]["prefix_holds"] is True


def test_a_method_that_was_not_recorded() -> None:
    with ReplayServer([EXCHANGES["chat_plain"]]) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("GET", "/v1/chat/completions")
        response = connection.getresponse()
        message = json.loads(response.read())["error"]["message"]
        connection.close()
    assert message == (
        "no recording matches GET /v1/chat/completions; the closest is 'chat_plain', which differs in: method and body"
    )


DATA = Path(__file__).parent.parent / "file" / "data"


def test_a_file_of_trajectories_without_exchanges_is_refused_with_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"rollout-trace-1\.jsonl: the trajectories of this file have no exch"
    ) as caught:
        ReplayServer(DATA / "rollout-trace-1.jsonl")
    assert "rollout_trace.read() reads them" in str(caught.value)
    assert "pytest --replay=record" in str(caught.value)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_cassette_is_read(tmp_path: Path, suffix: str) -> None:
    (recorded,) = rt.read(DATA / "rollout-trace-1-exchanges.jsonl")
    other = Exchange("2", "GET", "/", b"", 200, (), b"", ())
    path = tmp_path / f"cassette{suffix}"
    with rt.JSONLWriter(path) as writer:
        writer.write(recorded)
        writer.write(rt.Trajectory())
        writer.write(rt.Trajectory(exchanges=(other, other)))
    found = load_exchanges(path)
    assert found[:-2] == list(recorded.exchanges)
    assert found[-2:] == [replace(other, name="2 (2)"), replace(other, name="2 (3)")]


def cassette() -> ReplayServer:
    return ReplayServer(DATA / "rollout-trace-1-exchanges.jsonl")


def test_a_call_that_was_tried_again_is_answered_as_it_was() -> None:
    """The same request three times: refused, answered, and then the last answer again."""
    with cassette() as server:
        refused, answered = server.exchanges["2"], server.exchanges["3"]
        status, headers, pieces = raw(server, refused, refused.path)
        assert (status, headers["retry-after"], pieces) == (429, "0", [refused.response])
        for _ in range(2):
            status, headers, pieces = raw(server, refused, refused.path)
            assert (status, headers["content-type"], pieces) == (200, "text/event-stream", answered.chunks)


@pytest.mark.parametrize("name", ["4", "5"])
def test_an_answer_that_ended_early_ends_there(name: str) -> None:
    with cassette() as server:
        exchange, address = server.exchanges[name], f"{server.base_url_for(name)}/chat/completions"
        with httpx.stream("POST", address, json={}) as response, pytest.raises(httpx.RemoteProtocolError) as caught:
            for _ in response.iter_bytes():
                pass
        server.wait_idle()
        (record,) = server.requests
    assert "peer closed connection" in str(caught.value)
    assert (record.response_body, record.completed) == (exchange.response, False)


def test_a_body_with_a_length_that_was_cut_is_cut() -> None:
    headers = (("content-type", "application/json"), ("content-length", "20"))
    half = Exchange("half", "GET", "/x", b"", 200, headers, b'{"a":', (5,), outcome="cut")
    with ReplayServer([half]) as server, pytest.raises(httpx.RemoteProtocolError) as caught:
        httpx.get(f"{server.url}/x")
    assert "received 5 bytes, expected 20" in str(caught.value)


def test_a_request_without_an_answer_gets_none() -> None:
    with (
        cassette() as server,
        OpenAI(base_url=server.base_url_for("6"), api_key="none", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.models.list()
    (record,) = server.requests
    assert (record.status, record.completed) == (None, False)


def test_packing_keeps_how_an_exchange_went(tmp_path: Path) -> None:
    (recorded,) = rt.read(DATA / "rollout-trace-1-exchanges.jsonl")
    pack_exchanges(recorded.exchanges, tmp_path / "packed.jsonl.xz")
    assert load_exchanges(tmp_path / "packed.jsonl.xz") == list(recorded.exchanges)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "line 2: expected an exchange or a report as pack_exchanges() writes it, found [1]"),
        (
            '{"schema": "rollout-trace/1", "id": "t"}',
            "line 2: this is a trajectory (rollout-trace/1) in a file of exch",
        ),
        ('{"name": "a", "method": "GET"}', "line 2: the exchange 'a' lacks path, status, headers"),
    ],
)
def test_a_line_that_is_no_exchange_is_named_by_its_place(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    pack_exchanges([BINARY], path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError) as caught:
        ReplayServer(path)
    assert said in str(caught.value)


def test_recordings_are_made_from_steps_that_kept_their_bytes(tmp_path: Path) -> None:
    """As docs/test-agents.md shows it."""
    path = tmp_path / "recordings.jsonl.xz"

    def ask(base_url: str, *, record: bool) -> tuple[str | None, rt.Trajectory]:
        with OpenAI(base_url=base_url, api_key="none") as client, rt.trajectory() as trajectory:
            if record:
                rt.wrap_openai(client, keep_bytes=True)
            answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        return answer.choices[0].message.content, trajectory

    with ScriptedServer("hello") as server:
        said, trajectory = ask(server.base_url, record=True)
    pack_exchanges(
        (
            Exchange(
                name=step.id,
                method="POST",
                path="/v1/chat/completions",
                request=step.request_bytes or b"",
                status=step.attempts[-1].status or 0,
                headers=(("content-type", step.attempts[-1].content_type or ""),),
                response=step.response_bytes or b"",
                chunk_sizes=(len(step.response_bytes or b""),),
            )
            for step in trajectory.steps
            if step.choice == 0
        ),
        path,
    )
    with ReplayServer(path) as replay:
        assert ask(replay.base_url, record=False)[0] == said == "hello"
