"""Exchanges in a file: what a conversation costs, keys in their bytes, and what else handles lines with them."""

from __future__ import annotations

import base64
import copy
import gzip
import itertools
import json
import logging
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import JSONLWriter, credentials, guard, read
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file import parallel
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.merge import merge
from rollout_trace.file.validate import validate
from rollout_trace.file.validate_line import check_line
from rollout_trace.record.redaction import Redactor
from tests.file.test_format import with_exchanges
from tests.file.test_linear import peak
from tests.strategies import PROFILE

KEY = "sk-proj-0123456789abcdef"
MASK = credentials.MASK.encode()


@pytest.fixture(autouse=True)
def _no_keys_of_other_tests() -> Iterator[None]:
    credentials.forget_all()
    yield
    credentials.forget_all()


def exchange(
    request: Any = b"{}", response: bytes = b"{}", sizes: tuple[int, ...] | None = None, **more: Any
) -> Exchange:
    data = request if isinstance(request, bytes) else json.dumps(request, ensure_ascii=False).encode()
    fields: dict[str, Any] = {
        "name": "1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "headers": (("content-type", "application/json"),),
        "chunk_sizes": (len(response),) if sizes is None else sizes,
        **more,
    }
    return Exchange(request=data, response=response, **fields)


def cassette(*exchanges: Exchange, **more: Any) -> Trajectory:
    return Trajectory(id="t", exchanges=exchanges, environment={}, **more)


def back(trajectory: Trajectory) -> tuple[Exchange, ...]:
    return decode(encode(trajectory)).exchanges


# What a conversation costs


def talk(turns: int, agents: int = 1, start: str = "You are agent {}.", said: int = 300) -> Trajectory:
    """Agents take turns; each request has all that its agent has said before, between the fields of the request."""
    found: list[Exchange] = []
    messages = [[{"role": "system", "content": start.format(agent)}] for agent in range(agents)]
    for turn, agent in itertools.product(range(turns), range(agents)):
        messages[agent].append({"role": "user", "content": f"Frage {turn}.{agent} 数 " + "x" * said})
        request = {"model": "m", "messages": messages[agent], "tools": [{"name": "t"}], "seed": 7}
        answer = f"answer {turn}.{agent}"
        body = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
        found.append(exchange(request, body, name=str(len(found))))
        messages[agent].append({"role": "assistant", "content": answer})
    return cassette(*found)


def new_in(trajectory: Trajectory) -> int:
    """Bytes of the longest request of each agent, and of all answers."""
    whole: dict[bytes, int] = {}
    for one in trajectory.exchanges:
        whole[json.loads(one.request)["messages"][0]["content"]] = len(one.request)
    return sum(whole.values()) + sum(len(one.response) for one in trajectory.exchanges)


@pytest.mark.parametrize("agents", [1, 2, 7])
def test_a_conversation_of_exchanges_costs_what_is_new_in_each(agents: int) -> None:
    small, large = (talk(turns, agents) for turns in (50, 100))
    assert decode(encode(large)) == large
    assert len(encode(large)) < 2.05 * len(encode(small))
    # Each has its name, its headers and sizes besides, and quotes are escaped.
    assert len(encode(large)) < 1.3 * new_in(large) + 300 * len(large.exchanges)


def test_agents_with_one_long_beginning_find_their_own_requests() -> None:
    """What all requests share is longer than what each agent has said: the nearest is the one that shares most."""
    small, large = (talk(turns, 3, "The rules: " + "y" * 50_000 + " agent {}") for turns in (20, 40))
    assert decode(encode(large)) == large
    assert len(encode(large)) - len(encode(small)) < 60 * 700


def test_a_request_that_was_sent_again_costs_nothing() -> None:
    request = {"messages": ["a" * 5000]}
    one, many = (len(encode(cassette(*[exchange(request)] * count))) for count in (1, 21))
    assert many - one < 20 * 220


@PROFILE
@given(
    st.lists(st.text(alphabet="aé数🐍", max_size=6), max_size=5), st.text(alphabet="aé数🐍", min_size=60, max_size=80)
)
def test_differences_end_between_characters(changes: list[str], whole: str) -> None:
    """Requests that part inside a character are text in the line, and come back to the byte."""
    requests = [(whole + change + whole).encode() for change in changes]
    trajectory = cassette(*(exchange(one) for one in requests))
    line = json.loads(encode(trajectory))
    assert all("text" in one["request"] for one in line.get("exchanges", ()))
    assert [one.request for one in back(trajectory)] == requests


def test_bytes_that_are_no_text_are_differences_too() -> None:
    image = bytes(range(256)) * 20
    requests = [b"\xff" + image, b"\xff\x80" + image, b"\xff\x80" + image + b"\x80"]
    trajectory = cassette(*(exchange(one) for one in requests))
    assert [one.request for one in back(trajectory)] == requests
    assert len(encode(trajectory)) < 1.4 * len(image) + 1500


def test_exchanges_are_put_together_when_they_are_read() -> None:
    """Each request is whole in memory: the square of the conversation, which a file of rollouts need not pay."""
    line = encode(talk(200, said=2000))
    trajectory = decode(line)
    assert peak(lambda: decode(line)) < 8 * len(line)
    assert sum(len(one.request) for one in trajectory.exchanges) > 80 * len(line)
    assert trajectory.exchanges is trajectory.exchanges


# What does not fit


def test_what_does_not_fit_is_refused_with_its_place() -> None:
    line = json.loads(encode(with_exchanges()))
    line["exchanges"][2]["chunk_sizes"][0] -= 1
    with pytest.raises(BadLine) as caught:
        decode(json.dumps(line).encode())
    assert str(caught.value) == (
        "$.exchanges[2].chunk_sizes: expected sizes that add up to 63, the bytes of the response, got 62"
    )
    assert (caught.value.code, caught.value.path) == ("chunk-sizes", "$.exchanges[2].chunk_sizes")


def test_a_reference_to_what_is_not_there_is_refused() -> None:
    line = json.loads(encode(with_exchanges()))
    line["exchanges"][3]["request"]["from"] = [3, 1, 1]
    with pytest.raises(
        BadLine, match=r"\$\.exchanges\[3\]\.request\.from: expected an earlier exchange, got exchange 3"
    ):
        decode(json.dumps(line).encode())
    line["exchanges"][3]["request"]["from"] = [2, 60, 60]
    with pytest.raises(BadLine, match=r"expected at most 84 bytes, .*\(exchange 2\), got 60 and 60"):
        decode(json.dumps(line).encode())


def test_what_could_not_be_read_is_not_written() -> None:
    with pytest.raises(ValueError, match=r"exchange '1' has chunk_sizes that add up to 3, and a response of 2 bytes"):
        encode(cassette(exchange(sizes=(1, 2))))
    with pytest.raises(ValueError, match=r"exchange '1' has 1 chunk_sizes and 2 chunk_times"):
        encode(cassette(exchange(chunk_times=(0.5, 0.75))))
    credentials.remember(KEY)
    with rt.trajectory() as trajectory:
        trajectory.exchanges = (exchange(sizes=(1, 2)),)
    assert trajectory.steps == []
    with pytest.raises(ValueError, match="add up to 3"):
        trajectory.to_json()
    (found,) = back(cassette(exchange(chunk_times=(float("nan"),))))
    assert found.chunk_times == ()


def test_a_list_of_exchanges_becomes_a_tuple() -> None:
    given: Any = [exchange()]
    trajectory = Trajectory(id="t", exchanges=given)
    assert trajectory.exchanges == (exchange(),)
    trajectory.exchanges = given * 2
    assert trajectory.exchanges == (exchange(), exchange())


def damaged(line: bytes, data: st.DataObject) -> bytes:
    """A cassette with a few of its values replaced."""
    record = json.loads(line)
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = record["exchanges"]
        while isinstance(place, (list, dict)) and place:
            above = place
            key = data.draw(st.sampled_from(list(range(len(place))) if isinstance(place, list) else list(place)))
            place = place[key]
        above[key] = data.draw(
            st.sampled_from([None, -1, 0, 3, 2**70, 0.5, "", "A", "\ud83d", [], [0, 1, 2], {}, True])
        )
    return json.dumps(record).encode()


@PROFILE
@given(st.data())
def test_a_damaged_table_is_refused_or_read(data: st.DataObject) -> None:
    line = damaged(encode(with_exchanges()), data)
    problems = [str(one) for one in check_line(line, None)[1]]
    refused = ""
    try:
        found = decode(line)
    except BadLine as error:
        refused = str(error)
    assert bool(refused) <= bool(problems)
    if refused:
        return
    assert all(sum(one.chunk_sizes) == len(one.response) for one in found.exchanges)
    assert decode(encode(found)).exchanges == found.exchanges


# Keys


def cut(*exchanges: Exchange) -> tuple[Exchange, ...]:
    """What is read of exchanges that were written while the key is known; nothing of the line has it."""
    credentials.remember(KEY)
    line = encode(cassette(*exchanges))
    assert KEY.encode() not in line
    assert len(validate_line(line)) == 0
    return decode(line).exchanges


def validate_line(line: bytes) -> list[Any]:
    return check_line(line, None)[1]


def test_a_key_is_cut_out_of_every_part() -> None:
    error = b'{"error":"bad key %s"}' % KEY.encode()
    sent = exchange(
        {"messages": [f"my key is {KEY}"]},
        error,
        path=f"/v1/models/m:generateContent?key={KEY}",
        headers=(("content-type", "application/json"), ("x-echo", f"Bearer {KEY}")),
        status=401,
    )
    (found,) = cut(sent)
    assert found.request == sent.request.replace(KEY.encode(), MASK)
    assert found.response == error.replace(KEY.encode(), MASK)
    assert found.chunk_sizes == (len(found.response),)
    assert found.path == "/v1/models/m:generateContent?key=[redacted]"
    assert found.headers[1] == ("x-echo", "Bearer [redacted]")


@pytest.mark.parametrize("size", range(1, 30))
def test_a_key_in_several_pieces_is_cut_and_their_sizes_fit(size: int) -> None:
    """Pieces of the transport, whose boundaries are anywhere. What is outside the key stays in its piece."""
    body = b"[1," + KEY.encode() + b",2," + KEY.encode() + KEY.encode() + b"]"
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    (found,) = cut(exchange(response=body, sizes=tuple(map(len, pieces)), chunk_times=tuple(range(len(pieces)))))
    assert found.response == body.replace(KEY.encode(), MASK)
    assert sum(found.chunk_sizes) == len(found.response)
    assert len(found.chunk_sizes) == len(found.chunk_times) == len(pieces)
    # Byte by byte: the mask takes the places of a key's first bytes, and the others are gone.
    kept = [body[at : at + 1] for at in range(len(body))]
    for place in (place for place in range(len(body)) if body.startswith(KEY.encode(), place)):
        kept[place : place + len(KEY)] = [MASK[at : at + 1] for at in range(len(KEY))]
    assert found.chunks == [b"".join(kept[at : at + size]) for at in range(0, len(body), size)]


def test_keys_that_share_their_beginning_are_not_spelled_by_a_difference() -> None:
    """The second key is in no place of the line as a whole, and could be put together from two."""
    other = KEY[:-1] + "0"
    credentials.remember(KEY)
    credentials.remember(other)
    requests = [b"%s-%s" % (b"x" * 200, one.encode()) for one in (KEY[:-1] + "1", other)]
    found = back(cassette(*map(exchange, requests)))
    assert found[0].request == requests[0]
    assert found[1].request == requests[1].replace(other.encode(), MASK)


IDS = b'{"choices":[{"message":{"content":"%s"},"token_ids":[5,6]}]}'
IN_PIECES = b"".join(
    b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % one for one in (b"sk-proj-01", b"23456789abcdef")
)
ESCAPED = b'{"choices":[{"message":{"content":"%s"}}]}' % KEY.replace("-", "\\u002d").encode()


ECHO = b'{"error":"bad key %s"}' % KEY.encode()


@pytest.mark.parametrize(
    ("request_", "response", "coding"),
    [
        (f"my key is {KEY}", IDS % b"hello", None),
        (f"my key is {KEY}", gzip.compress(IDS % b"hello", mtime=0), "gzip"),
        ("hi", IDS % KEY.encode(), None),
        ("hi", b'{"content":"%s","logprobs":{"content":[{"token":"sk"}]}}' % KEY.encode(), None),
        ("hi", IN_PIECES, None),
        ("hi", ESCAPED, None),
        ("hi", gzip.compress(ECHO, mtime=0), "gzip"),
        ("hi", gzip.compress(ECHO * 9000, mtime=0)[:-9], "gzip"),
        ("hi", zlib.compress(ECHO), "deflate"),
    ],
    ids=["prompt", "packed-prompt", "ids", "tokens", "in-pieces", "escaped", "gzip", "cut-gzip", "deflate"],
)
def test_an_exchange_that_spells_a_key_is_left_out_and_said(
    request_: str, response: bytes, coding: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    guard.reset()
    caplog.set_level(logging.WARNING, "rollout_trace")
    first, last = exchange({"messages": ["a" * 100]}), exchange({"messages": ["a" * 100, "b"]}, name="3")
    headers = () if coding is None else (("content-encoding", coding),)
    spelled = exchange({"messages": [request_]}, response, name="2", headers=headers)
    assert cut(first, spelled, last) == (first, last)
    assert b'"exchanges"' not in encode(cassette(spelled))
    assert "the exchange 2 (POST /v1/chat/completions) is not written to the file: a key of a client" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "identity"])
def test_without_a_key_in_it_an_exchange_with_ids_is_kept(coding: str) -> None:
    body = IDS % b"hello"
    packed = {"gzip": gzip.compress(body), "deflate": zlib.compress(body)}.get(coding, body)
    sent = exchange({"messages": ["hi"]}, packed, headers=(("content-encoding", coding),))
    assert cut(sent) == (sent,)


def test_keys_are_not_in_memory_either() -> None:
    credentials.remember(KEY)
    spelled = exchange({"messages": ["hi"]}, IDS % KEY.encode(), name="2")
    with rt.trajectory() as trajectory:
        trajectory.exchanges = (exchange(response=ECHO), spelled, exchange(name="3"))
    assert trajectory.steps == []
    assert [one.name for one in trajectory.exchanges] == ["1", "3"]
    assert trajectory.exchanges[0].response == ECHO.replace(KEY.encode(), MASK)
    assert KEY.encode() not in pickle.dumps(trajectory)


def test_a_recording_with_rules_keeps_no_exchanges(caplog: pytest.LogCaptureFixture) -> None:
    guard.reset()
    caplog.set_level(logging.WARNING, "rollout_trace")
    given = cassette(exchange({"messages": ["alice"]}), metadata={"by": "alice"})
    written = Redactor("alice").apply(given)
    assert (written.exchanges, written.metadata) == ((), {"by": "[redacted]"})
    assert Redactor("nobody").apply(given).exchanges == ()
    assert Redactor().apply(given) is given
    assert len(given.exchanges) == 1
    assert "keeps no exchanges" in caplog.text


# Files


IMAGE = base64.b64encode(bytes(range(256)) * 8).decode()
URL = f"data:image/png;base64,{IMAGE}"


@pytest.mark.parametrize("beside", ["plain", "half a surrogate pair \ud83d"])
def test_media_of_exchanges_stay_in_them(beside: str, tmp_path: Path) -> None:
    """A replay needs them, and sizes count them; those of messages go to the folder."""
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}
    source = {"media_type": "image/png", "data": IMAGE}
    sent = exchange({"messages": [message]}, json.dumps(source).encode())
    values = {"beside": beside, "url": URL, "source": source, "exchanges": [{"url": URL}]}
    trajectory = cassette(sent, metadata=values)
    path = tmp_path / "cassette.jsonl"
    with JSONLWriter(path, media="folder") as writer:
        writer.write(trajectory)
        writer.write(Trajectory(id="u", environment={}, metadata=values))
    line = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert line["metadata"]["url"].startswith("rollout-trace-media(sha256=")
    assert line["metadata"]["source"]["data"].startswith("rollout-trace-media(")
    assert line["metadata"]["exchanges"][0]["url"].startswith("rollout-trace-media(")
    assert line["exchanges"][0]["request"]["text"].encode() == sent.request
    assert next(iter(read(path))) == trajectory
    assert next(iter(read(path, media="keep"))).exchanges == (sent,)
    found: list[Any] = []
    validate([str(path)], found.append)
    assert found == []


def test_copies_and_pickles_have_them() -> None:
    trajectory = decode(encode(with_exchanges()))
    assert pickle.loads(pickle.dumps(trajectory)) == with_exchanges()
    trajectory = decode(encode(with_exchanges()))
    assert copy.deepcopy(trajectory) == with_exchanges()
    assert copy.copy(trajectory).exchanges == with_exchanges().exchanges
    assert trajectory.to_dict()["exchanges"][6]["request"] == {"base64": "UklGRv8A"}
    assert decode(trajectory.to_json().encode()) == with_exchanges()


def test_a_note_and_a_merge_keep_the_line(tmp_path: Path) -> None:
    path, merged = tmp_path / "cassette.jsonl", tmp_path / "merged.jsonl.gz"
    path.write_bytes(encode(with_exchanges()))
    rt.annotate(path, "t5", reward=1.0, metadata={"label": "good"})
    (noted,) = read(path)
    assert (noted.reward, noted.exchanges) == (1.0, with_exchanges().exchanges)
    merge([path], merged)
    assert b'"label":"good"' in gzip.decompress(merged.read_bytes())
    (found,) = read(merged)
    assert found.exchanges == with_exchanges().exchanges


@pytest.mark.parametrize("journal", [True, False])
def test_a_recording_writes_what_its_trajectory_has(journal: bool, tmp_path: Path) -> None:
    path = tmp_path / "cassette.jsonl"
    with rt.recording(path, journal=journal), rt.trajectory(metadata={"test": "a"}) as trajectory:
        trajectory.exchanges = with_exchanges().exchanges
    (found,) = read(path)
    assert found == trajectory
    assert found.exchanges == with_exchanges().exchanges


@pytest.mark.processes
def test_several_processes_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PAYS_OFF_BYTES", 0)
    path = tmp_path / "cassettes.jsonl"
    with JSONLWriter(path) as writer:
        for _ in range(40):
            writer.write(with_exchanges())
    found = list(read(path, workers=2))
    assert [one.exchanges for one in found] == [with_exchanges().exchanges] * 40
