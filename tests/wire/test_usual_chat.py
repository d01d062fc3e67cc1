"""Usual answers of /chat/completions take a short way through the decoder. It must give what the long one gives, field
by field and byte for byte in the file: of every recording, and of damage to them. How many take it is tested too."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import Step, amend
from rollout_trace.data.trajectory import new_trajectory
from rollout_trace.file.encode import encode
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import chat
from rollout_trace.wire.chat import usual_answer
from rollout_trace.wire.facts import RequestFacts, ResponseFacts
from rollout_trace.wire.request import read
from rollout_trace.wire.steps import Stores, steps_from
from tests.amount import examples
from tests.wire.raw import bodies, copied, sse
from tests.wire.recorded import DATA, ENGINES
from tests.wire.test_damage import JUNK, places


@cache
def recorded() -> list[Exchange]:
    """The answers of all engines to requests for a chat."""
    files = [DATA / f"wire_{name}.jsonl.xz" for name in (*ENGINES, "vllm_extras", "vllm_033")]
    found = [exchange for path in files for exchange in load_exchanges(path)]
    return [one for one in found if one.path.startswith("/v1/chat/completions") and one.response]


def is_streamed(exchange: Exchange) -> bool:
    """Whether the answer is a stream."""
    return "event-stream" in exchange.content_type


def written(request: RequestFacts, facts: ResponseFacts, stores: Stores) -> tuple[list[Step], bytes]:
    """The steps of an exchange, and a trajectory of them as it is written to a file."""
    found = steps_from("c", "openai.chat", request, facts, stores)
    for index, step in enumerate(found):
        amend(step, index=index)
    stores.finish()
    return found, encode(new_trajectory({"id": "t", "name": "agent", "steps": found, "status": "completed"}))


def check(request: bytes, body: bytes, *, streamed: bool) -> bool:
    """Both ways give the same steps and the same line. Returns whether the short one can read the answer."""
    found = []
    for decode in (chat.decode, chat.decode_any):
        stores = Stores()
        asked = read("openai.chat", request, stores.messages, stores.tools)
        found.append(written(asked, decode(body, streamed=streamed, status=200, request=asked), stores))
    assert found[0] == found[1]
    return usual_answer(body, streamed=streamed, request=asked) is not None


def test_both_ways_give_the_same_of_every_recording() -> None:
    """As recorded: most of these ask for alternatives, which are not usual."""
    assert len(recorded()) > 300
    for exchange in recorded():
        check(exchange.request, exchange.response, streamed=is_streamed(exchange))


@cache
def usual() -> list[tuple[bytes, list[Any], bool]]:
    """Recorded answers as they are where no alternatives are asked for: request, bodies, and whether streamed."""
    found = []
    for exchange in recorded():
        if exchange.status != 200:
            continue
        request = {name: value for name, value in json.loads(exchange.request).items() if name != "top_logprobs"}
        values = bodies(exchange)
        for choice in [choice for value in values for choice in value.get("choices") or ()]:
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                entry["top_logprobs"] = []
        found.append((json.dumps(request).encode(), values, is_streamed(exchange)))
    return found


def as_sent(values: list[Any], *, streamed: bool) -> bytes:
    """Bodies as vLLM sends them, without white space."""
    if not streamed:
        return json.dumps(values[0], separators=(",", ":")).encode()
    events = [json.dumps(value, separators=(",", ":")) for value in values]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def test_usual_answers_take_the_short_way_and_give_the_same() -> None:
    """Both kinds, with ids and logprobs and without, and calls of tools."""
    short = {True: 0, False: 0}
    with_ids = with_tools = 0
    for request, values, streamed in usual():
        body = as_sent(values, streamed=streamed)
        if check(request, body, streamed=streamed):
            short[streamed] += 1
            with_ids += b'"token_ids":[' in body and b'"logprob":' in body
            with_tools += b'"tool_calls":[' in body
    assert len(usual()) > 300
    assert short[False] > 100
    assert short[True] > 90
    assert with_ids > 50
    assert with_tools > 10


@pytest.mark.parametrize("tool_calls", [None, [{"id": "call_1", "type": "function", "function": {"name": "f"}}]])
def test_an_answer_of_openai_takes_the_short_way(tool_calls: Any) -> None:
    """With its empty list of annotations, and counts of counts."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if tool_calls else "hi",
        "refusal": None,
        "annotations": [],
    }
    details = {"cached_tokens": 0, "audio_tokens": 0}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_795_221_090,
        "model": "gpt-5",
        "choices": [
            {
                "index": 0,
                "message": {**message, **({"tool_calls": tool_calls} if tool_calls else {})},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10, "prompt_tokens_details": details},
        "service_tier": "default",
        "system_fingerprint": None,
    }
    request = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "hello"}]}).encode()
    assert check(request, json.dumps(body, indent=2).encode(), streamed=False)


MORE = [
    -1,
    2**31,
    2**31 - 1,
    -0.0,
    0.25,
    -1e39,
    -3.4028234663852886e38,
    "assistant",
    "token_id:7",
    "\x7f",
    "é",
    "\ud800",
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, list[Any], bool]:
    """A usual answer, with up to two places deleted, doubled, replaced or exchanged."""
    request, values, streamed = draw(st.sampled_from(usual()))
    values = copied(values)
    for _ in range(draw(st.integers(0, 2))):
        paths = [path for path in places(values) if len(path) > 1]
        path = draw(st.sampled_from(paths or [(0,)]))
        holder: Any = values
        for key in path[:-1]:
            holder = holder[key]
        act = draw(st.sampled_from(["delete", "double", "replace", "like"]))
        if act == "delete":
            del holder[path[-1]]
        elif act == "double" and isinstance(holder, list):
            holder.insert(path[-1], copied(holder[path[-1]]))
        elif act == "like":
            holder[path[-1]] = like(draw, holder[path[-1]])
        else:
            holder[path[-1]] = copied(draw(st.sampled_from([*JUNK, *MORE])))
    return request, values, streamed


def like(draw: st.DrawFn, value: Any) -> Any:
    """Another value of the same type: most of these stay usual."""
    if isinstance(value, str):
        return draw(st.text(max_size=8))
    if type(value) is int:
        return draw(st.integers(0, 2**31 - 1))
    if isinstance(value, float):
        return draw(st.floats(max_value=0))
    return None if draw(st.booleans()) else value


def test_both_ways_give_the_same_of_damaged_answers() -> None:
    """Fields gone, doubled, null, of a wrong type or with another value; and other spellings of the same stream."""
    read_short = []

    @settings(max_examples=examples(2000), deadline=None)
    @given(damaged(), st.sampled_from(["sent", "sent", "sent", "spaced", "crlf", "bom", "comment"]))
    def compare(case: tuple[bytes, list[Any], bool], spelled: str) -> None:
        request, values, streamed = case
        body = as_sent(values, streamed=streamed)
        if spelled == "spaced":
            body = sse(*values) if streamed else json.dumps(values[0], indent=1).encode()
        elif spelled == "crlf":
            body = body.replace(b"\n", b"\r\n")
        elif spelled == "bom":
            body = b"\xef\xbb\xbf" + body
        elif spelled == "comment":
            body = body.replace(b"\n\n", b"\n\n: ping\n\n", 2)
        read_short.append(check(request, body, streamed=streamed))

    compare()
    assert sum(read_short) > len(read_short) / 10


PIECES = [b"", b"\n", b"\r", b" ", b"\n\n", b"\n\ndata: ", b"0", b",", b"-", b'"', b"\\ud800", b"\xff", b"\x7f"]


def test_both_ways_give_the_same_of_damaged_bytes() -> None:
    """Bytes replaced, cut out and put between others, wherever they are; and the end cut off."""
    read_short = []

    @settings(max_examples=examples(2000), deadline=None)
    @given(st.sampled_from(usual()), st.randoms(use_true_random=False))
    def compare(case: tuple[bytes, list[Any], bool], chance: Random) -> None:
        request, values, streamed = case
        body = bytearray(as_sent(values, streamed=streamed))
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(body) + 1)
            body[at : at + chance.randrange(4)] = chance.choice(PIECES)
        if chance.random() < 0.1:
            del body[chance.randrange(len(body) + 1) :]
        read_short.append(check(request, bytes(body), streamed=streamed))

    compare()
    assert sum(read_short) > len(read_short) / 100


@pytest.mark.parametrize(
    "ids", ["1,2", "01,2", "1,,2", "1,2,", "1, 2", "1.0", "2147483648", "-1", "1e3", "null", "true", '"1"']
)
def test_long_prompts_are_read_alike_whatever_is_among_their_ids(ids: str) -> None:
    """A number that is no id, or spelled otherwise than in JSON, makes an answer an unusual one."""
    request = b'{"messages":[],"return_token_ids":true}'
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop", "token_ids": [7]}
    body: dict[str, Any] = {
        "id": "i",
        "model": "m",
        "choices": [choice],
        "prompt_token_ids": [151_000 + at for at in range(300)],
    }
    is_usual = ids in ("1,2", "1, 2")
    for place in ("151000", "151150", "151299"):
        sent = json.dumps(body, separators=(",", ":")).replace(place, ids).encode()
        assert check(request, sent, streamed=False) is is_usual
        assert (
            check(request, b"data: " + sent.replace(b"message", b"delta") + b"\n\ndata: [DONE]\n\n", streamed=True)
            is is_usual
        )
    metrics = {"metrics": {"prompt_token_ids": body.pop("prompt_token_ids")}}
    for other, is_usual in (({}, True), ({"prompt_token_ids": 0}, False), ({"prompt_token_ids": None}, True)):
        nested = json.dumps({**body, **other, **metrics}, separators=(",", ":"))
        assert check(request, nested.encode(), streamed=False) is is_usual
