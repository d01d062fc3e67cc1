"""Where ids and logprobs are found besides vLLM's own fields, and that decoding is a function of the bytes alone."""

from __future__ import annotations

import builtins
import random
import socket
import time
from typing import Any

import numpy as np
import pytest

from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from tests.wire.raw import JSON, SSE, decoded, delta, entries, exchanges, read, sse, tokens, unary


def named(*texts: Any) -> dict[str, Any]:
    """Logprobs whose tokens are spelled so, at -1, -2, ..."""
    return {"content": [{"token": text, "logprob": -float(at), "top_logprobs": []} for at, text in enumerate(texts, 1)]}


def ids_of(step: Step) -> list[int] | None:
    """The completion ids as a list."""
    return None if step.completion_token_ids is None else step.completion_token_ids.tolist()


def test_tokens_spelled_as_ids_are_ids() -> None:
    """`token_id:N` in place of each token's text: the ids are the engine's, and say where they are from."""
    step = read(unary(tokens(None, named("token_id:0", "token_id:1953"))))
    assert (ids_of(step), step.token_source, step.token_issue) == ([0, 1953], "logprobs", None)
    assert step.logprobs is not None
    assert step.logprobs.tolist() == [-1.0, -2.0]


def test_tokens_spelled_as_ids_are_ids_in_a_stream() -> None:
    """The same over chunks of any size, for each choice by itself."""
    body = sse(
        delta({"content": "a"}, index=0, logprobs=named("token_id:1")),
        delta({"content": "b"}, index=1, logprobs=named("token_id:7", "token_id:8")),
        delta({"content": "c"}, index=0, logprobs=named("token_id:2", "token_id:3"), finish_reason="stop"),
        delta({}, index=1, finish_reason="stop"),
    )
    steps = decode("openai.chat", b"{}", body, content_type=SSE)
    assert [ids_of(step) for step in steps] == [[1, 2, 3], [7, 8]]
    assert {step.token_source for step in steps} == {"logprobs"}


@pytest.mark.parametrize(
    "texts",
    [
        ("token_id:1", "hello"), ("token_id:",), ("token_id:-1",), ("token_id:1.5",), ("token_id: 1",),
        ("token_id:1 ",), ("token_id:\u0661",), ("TOKEN_ID:1",), (" token_id:1",), ("token_id:0x10",),
        ("token_id:1_0",), ("1",), (None,), ("",),
    ],
)  # fmt: skip
def test_a_token_that_only_looks_like_an_id_is_none(texts: tuple[Any, ...]) -> None:
    """One token that is not spelled so, and none of them are ids: a model may say `token_id:1` in words."""
    step = read(unary(tokens(None, named(*texts))))
    assert (ids_of(step), step.token_source) == (None, None)
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"
    assert step.logprobs is not None


def test_an_id_in_words_that_is_out_of_range_is_withheld() -> None:
    """The rules for ids hold wherever they come from."""
    step = read(unary(tokens(None, named("token_id:2147483648"))))
    assert ids_of(step) is None
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_out_of_range"


def test_the_engines_own_ids_go_before_spelled_ones() -> None:
    """Where both are there, `token_ids` is read."""
    step = read(unary(tokens([5], named("token_id:6"))))
    assert (ids_of(step), step.token_source) == ([5], "engine")


def test_counts_of_two_choices_are_summed() -> None:
    """n = 2: usage counts both, however long each is; one token too few in either is found."""
    one, other = tokens([1, 2, 3], entries(-1, -2, -3)), tokens([4], entries(-4))
    good = unary(one, other, usage={"prompt_tokens": 3, "completion_tokens": 4})
    assert [(ids_of(s), s.token_issue) for s in decode("openai.chat", b"{}", good)] == [([1, 2, 3], None), ([4], None)]
    bad = unary(one, other, usage={"prompt_tokens": 3, "completion_tokens": 3})
    assert [ids_of(s) for s in decode("openai.chat", b"{}", bad)] == [None, None]


def test_choices_come_in_the_order_of_their_index() -> None:
    """However they were sent; a missing index is the position."""
    body = unary({"index": 1, "message": {"content": "b"}}, {"index": 0, "message": {"content": "a"}})
    steps = decode("openai.chat", b"{}", body, content_type=JSON)
    assert [(s.choice, s.completion and s.completion.content) for s in steps] == [(0, "a"), (1, "b")]
    body = unary(*({"index": None, "message": {"content": text}} for text in "ab"))
    steps = decode("openai.chat", b"{}", body, content_type=JSON)
    assert [(s.choice, s.completion and s.completion.content) for s in steps] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize("later", [None, []])
def test_prompt_ids_of_the_first_chunk_stay(later: list[int] | None) -> None:
    """They come once; null or nothing in later chunks takes nothing back."""
    chunks = [delta({"content": "a"}, token_ids=[1]), delta({"content": "b"}, token_ids=[2], finish_reason="stop")]
    step = read(sse({**chunks[0], "prompt_token_ids": [5, 6]}, {**chunks[1], "prompt_token_ids": later}))
    assert step.prompt_token_ids is not None
    assert step.prompt_token_ids.tolist() == [5, 6]


def test_alternatives_are_kept_as_the_engine_gave_them() -> None:
    """`top_logprobs` entry by entry, with unknown fields; empty lists everywhere mean that none were asked for."""
    tops = [[{"token": "a", "logprob": -1.0, "bytes": [97], "rank": 1}, {"token": "b", "logprob": -9999.0}], []]
    logprobs = entries(-1, -2)
    for entry, top in zip(logprobs["content"], tops, strict=True):
        entry["top_logprobs"] = top
    assert read(unary(tokens([1, 2], logprobs))).top_logprobs == tops
    assert read(unary(tokens([1, 2], entries(-1, -2)))).top_logprobs is None
    halves = [
        delta({"content": "x"}, token_ids=[i], logprobs={"content": [e]}) for i, e in enumerate(logprobs["content"])
    ]
    assert read(sse(*halves, delta(finish_reason="stop"))).top_logprobs == tops


def test_logprobs_of_a_refusal_are_the_tokens_logprobs() -> None:
    """A refusal's tokens stand in a list of their own; they were sampled like any others."""
    logprobs = {"content": None, "refusal": entries(-1, -2)["content"]}
    step = read(unary({"message": {"refusal": "no"}, "token_ids": [1, 2], "logprobs": logprobs}))
    assert step.logprobs is not None
    assert step.logprobs.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": None}}, {"cache_read": 2}),
        ({"completion_tokens_details": {"reasoning_tokens": 1}}, {"reasoning": 1}),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, {}),
        (
            {"queue_time": 0.5, "prompt_tokens_details": {"audio_tokens": 3}},
            {"extra": {"queue_time": 0.5, "audio_tokens": 3}},
        ),
    ],
)
def test_usage_is_read_in_full(usage: dict[str, Any], expected: dict[str, Any]) -> None:
    """Counts in their places, the provider's own under `extra`, nulls nowhere."""
    step = read(
        unary(tokens([1], None), usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4, **usage})
    )
    found = step.usage
    assert found is not None
    names = ("input", "output", "cache_read", "cache_write", "reasoning", "extra")
    assert {name: getattr(found, name) for name in names} == {
        **dict.fromkeys(names),
        "input": 3,
        "output": 1,
        **expected,
    }


def test_arrays_cannot_be_changed_by_whoever_reads_them() -> None:
    """What was recorded is read-only: the numbers and the fields."""
    (step,) = decoded(exchanges()["chat_ids"])
    for array in (step.prompt_token_ids, step.completion_token_ids, step.logprobs):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError, match="recorded fact"):
        step.logprobs = None


@pytest.mark.parametrize("name", ["chat_ids", "chat_n2_stream", "tools_auto_hermes_two_stream", "err_unknown_model"])
def test_the_same_bytes_give_the_same_steps(name: str) -> None:
    """Equal in every field, ids included; other bytes have other ids."""
    exchange = exchanges()[name]
    once, again = decoded(exchange), decoded(exchange)
    assert once == again
    assert [step.id for step in once] == [step.id for step in again]
    other = decode("openai.chat", exchange.request + b" ", exchange.response, content_type=exchange.content_type)
    assert {step.call_id for step in other}.isdisjoint({step.call_id for step in once})


def test_steps_of_two_decodes_share_nothing() -> None:
    """No state is kept: changing a message of one result leaves the next alone."""
    exchange = exchanges()["chat_ids"]
    (one,) = decoded(exchange)
    assert one.messages is not None
    one.messages[0]["content"] = "changed"
    (other,) = decoded(exchange)
    assert other.messages is not None
    assert other.messages[0]["content"] == "You are terse."


def test_decoding_asks_no_clock_no_chance_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pure: whatever could tell one moment or machine from another is out of reach while it decodes."""
    expected = {name: decoded(exchange) for name, exchange in exchanges().items()}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decode reached outside its arguments")

    with monkeypatch.context() as patch:
        for module, names in (
            (time, ("time", "time_ns", "monotonic", "perf_counter", "sleep")),
            (random, ("random", "getrandbits", "randbytes")),
            (socket, ("socket", "create_connection")),
            (np.random, ("default_rng",)),
            (builtins, ("open", "print", "input")),
        ):
            for name in names:
                patch.setattr(module, name, refuse)
        found = {name: decoded(exchange) for name, exchange in exchanges().items()}
    assert found == expected
    for step in found["chat_ids"]:
        assert (step.started_at, step.latency, step.time_to_first_token, step.attempts) == (None, None, None, ())
        assert (step.request_bytes, step.response_bytes, step.engine, step.cost) == (None, None, None, None)
