"""Recorded answers with fields deleted, duplicated or of another type: never an exception, never a wrong pair."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from tests.amount import examples
from tests.wire.raw import JSON, SSE, bodies, copied, exchanges, read, sse, steps_of, tokens, unary

UNARY = ["chat_continue_final", "chat_forced_eos", "chat_utf8_regex", "chat_tokens_as_ids", "chat_n2", "tools_followup"]
STREAMED = ["chat_forced_eos_stream", "chat_utf8_regex_stream", "chat_tokens_as_ids_stream", "oai_chat_ids_stream"]
JUNK: list[Any] = [
    *(None, True, False, 0, 1, 7, -1, 2**31, 2**63, 2**64, 10**30, 1.5, -0.5, 3.0, 1e18, math.nan, math.inf, -math.inf),
    *("", "x", "0", "-1", "token_id:5", "[DONE]", "\ud800", [], [None], [[]], [1, "x"], {}, {"a": 1}, {"index": 1}),
    *({"content": []}, {"content": [{}]}, [{}], [{"index": 0, "token_ids": [1]}], {"message": "boom"}),
]
BOUNDED = settings(max_examples=examples(1500))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every field and item of a JSON value. Of long lists the first four items and the last."""
    found: list[tuple[Any, ...]] = []
    _add_places(value, path, found)
    return found


def _add_places(value: Any, path: tuple[Any, ...], found: list[tuple[Any, ...]]) -> None:
    if path:
        found.append(path)
    if isinstance(value, dict):
        for key, item in value.items():
            _add_places(item, (*path, key), found)
    elif isinstance(value, list):
        for at in range(len(value)) if len(value) < 6 else (0, 1, 2, 3, len(value) - 1):
            _add_places(value[at], (*path, at), found)


@st.composite
def damaged(draw: st.DrawFn, names: list[str]) -> tuple[str, list[Any]]:
    """A recording's name, and its bodies with one to three places deleted, doubled or replaced."""
    name = draw(st.sampled_from(names))
    values: list[Any] = bodies(exchanges()[name])
    for _ in range(draw(st.integers(1, 3))):
        # Half of the hits are for what is rare beside the many alternatives of each token.
        every = [path for path in places(values) if len(path) > 1]
        rare = [path for path in every if "top_logprobs" not in path and "prompt_token_ids" not in path]
        path = draw(st.sampled_from(rare or every) if draw(st.booleans()) else st.sampled_from(every))
        holder = values
        for key in path[:-1]:
            holder = holder[key]
        act = draw(st.sampled_from(["delete", "double", "replace", "replace"]))
        if act == "delete":
            del holder[path[-1]]
        elif act == "double" and isinstance(holder, list):
            holder.insert(path[-1], copied(holder[path[-1]]))
        else:
            holder[path[-1]] = copied(draw(st.sampled_from(JUNK)))
    return name, values


def ids_in(value: Any) -> list[int] | None:
    """A list of whole numbers, or None for anything else."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return None
    return value


def entries_in(choice: dict[str, Any]) -> list[Any] | None:
    """The logprob entries of a choice, or None where there is nothing that could be."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) and all(isinstance(entry, dict) for entry in content) else None


def id_in(token: Any) -> int:
    """The id that a token of the logprobs is: as a number, as some engines send it, or behind ``token_id:``."""
    if type(token) in (int, float) and math.isfinite(token) and token == int(token):
        return int(token)
    return int(token[9:]) if isinstance(token, str) and token[9:].isdigit() else -1


def raw_pairs(values: list[Any]) -> dict[int, set[tuple[int, float]]]:
    """Each id with the logprob that stands beside it in the same chunk, by choice."""
    found: dict[int, set[tuple[int, float]]] = {}
    for body in values:
        choices = body.get("choices") if isinstance(body, dict) else None
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            if not isinstance(choice, dict):
                continue
            index = choice.get("index")
            entries = entries_in(choice) or []
            ids = ids_in(choice.get("token_ids"))
            if ids is None:
                ids = [id_in(entry.get("token")) for entry in entries]
            numbers = [entry.get("logprob") for entry in entries]
            pairs = [(i, float(np.float32(n))) for i, n in zip(ids, numbers, strict=False) if type(n) in (int, float)]
            found.setdefault(index if type(index) is int else position, set()).update(pairs)
    return found


def check(step: Step, values: list[Any]) -> None:
    """What holds of every step, whatever the bytes were."""
    ids, logprobs = step.completion_token_ids, step.logprobs
    assert ids is None or ids.dtype == np.int32
    assert logprobs is None or (np.isfinite(logprobs).all() and (logprobs <= 0).all())
    if ids is not None:
        assert (ids >= 0).all()
        assert step.token_source in ("engine", "logprobs")
    if ids is not None and logprobs is not None:
        assert len(ids) == len(logprobs)
        if step.token_issue is None:
            assert set(zip(ids.tolist(), logprobs.tolist(), strict=True)) <= raw_pairs(values)[step.choice]
    if ids is None and step.status == "ok":
        assert step.token_issue is not None
        assert step.token_issue.code
        assert step.token_issue.message.endswith(".")
    if step.status == "error":
        assert step.error is not None
        assert step.error.message
    assert step.top_logprobs is None or logprobs is not None


@BOUNDED
@given(damaged(UNARY))
def test_a_damaged_answer_is_still_a_step_that_keeps_the_rules(case: tuple[str, list[Any]]) -> None:
    """Deletion, type confusion and doubled items in an unstreamed answer."""
    name, values = case
    request = exchanges()[name].request
    steps = decode("openai.chat", request, json.dumps(values[0]).encode(), content_type=JSON)
    assert steps
    for step in steps:
        check(step, values)
    outputs = [len(step.completion_token_ids) for step in steps if step.completion_token_ids is not None]
    usage = steps[0].usage
    if usage is not None and usage.output is not None and len(outputs) == len(steps):
        assert sum(outputs) == usage.output


@BOUNDED
@given(damaged(STREAMED))
def test_a_damaged_stream_is_still_a_step_that_keeps_the_rules(case: tuple[str, list[Any]]) -> None:
    """Deletion, type confusion and doubled items in the chunks of a stream."""
    name, values = case
    steps = decode("openai.chat", exchanges()[name].request, sse(*values), content_type=SSE)
    assert steps
    for step in steps:
        check(step, values)
        if step.status == "ok" and step.usage is not None and step.usage.output is not None and len(steps) == 1:
            assert step.completion_token_ids is None or len(step.completion_token_ids) == step.usage.output


@BOUNDED
@given(st.binary(max_size=60), st.sampled_from([JSON, SSE, None]), st.sampled_from([200, 400]))
def test_any_bytes_at_all_give_a_step(body: bytes, content_type: str | None, status: int) -> None:
    """Bytes that mean nothing, as request and as answer, framed and not."""
    for answer in (body, b"data: " + body + b"\n\n"):
        (step,) = decode("openai.chat", body, answer, content_type=content_type, status=status)
        check(step, [])


@BOUNDED
@given(st.data())
def test_flipped_bytes_give_a_step(data: st.DataObject) -> None:
    """Single bytes of a recorded answer or stream replaced by others."""
    exchange = exchanges()[data.draw(st.sampled_from(["chat_forced_eos", "chat_forced_eos_stream", "chat_plain"]))]
    body = bytearray(exchange.response)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for step in steps_of(replace(exchange, response=bytes(body), chunk_sizes=(len(body),))):
        assert (
            step.completion_token_ids is None
            or step.logprobs is None
            or step.status != "ok"
            or (len(step.completion_token_ids) == len(step.logprobs))
        )
        assert step.status in ("ok", "error", "abandoned")


DEEP = b"[" * 5000 + b"]" * 5000
RAISING: dict[str, tuple[bytes, bytes, int]] = {  # request, answer, status
    "deep answer": (b"{}", b'{"a": ' + DEEP + b"}", 200),
    "deep message": (b"{}", unary({"message": {"content": "@"}}).replace(b'"@"', DEEP), 200),
    "deep chunk": (b"{}", b'data: {"a": ' + DEEP + b"}\n\n", 200),
    "deep error": (b"{}", DEEP, 500),
    "deep request": (b'{"messages": ' + DEEP + b"}", unary(tokens([1], None)), 200),
    "deep sampling": (b'{"a": ' + DEEP + b"}", unary(tokens([1], None)), 200),
    "request, no utf-8 in a field": (b'{"user": "\xff"}', unary(tokens([1], None)), 200),
    "request, no utf-8 in a message": (b'{"messages": ["\xff"]}', unary(tokens([1], None)), 200),
    "request, no utf-8 in the model": (b'{"model": "\xff"}', unary(tokens([1], None)), 200),
    "request, number beyond a double": (b'{"seed": 1e400}', unary(tokens([1], None)), 200),
    "request, number of 5000 digits": (b'{"seed": ' + b"9" * 5000 + b"}", unary(tokens([1], None)), 200),
    "id of 5000 digits": (
        b"{}", unary({"logprobs": {"content": [{"token": "token_id:" + "9" * 5000, "logprob": -1}]}}), 200,
    ),
    "lone surrogate in arguments given as an object": (
        b"{}", unary({"message": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": "\ud800"}}}]}}), 200,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RAISING)
def test_extreme_bytes_do_not_raise(case: str) -> None:
    """Nesting beyond the parser's depth, numbers beyond its types, text that is not UTF-8."""
    request, answer, status = RAISING[case]
    content_type = SSE if answer.startswith(b"data:") else JSON
    assert read(answer, request=request, content_type=content_type, status=status).status in ("ok", "error")


def test_many_fields_of_a_wrong_type_are_told_in_time() -> None:
    """Four thousand of them are left out together, not one by one; the ids beside them stay."""
    entry = {"token": "a", "logprob": -1.0, "top_logprobs": []}
    wrong = {**entry, "logprob": "-1.0"}
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop", "token_ids": [1] * 4000}
    body = {
        "choices": [{**choice, "logprobs": {"content": [entry] + [wrong] * 3999}}],
        "usage": {"completion_tokens": 4000},
    }
    (step,) = decode("openai.chat", b"{}", json.dumps(body).encode(), content_type="application/json")
    assert step.token_issue is not None
    assert step.token_issue.code == "response_malformed"
    assert step.completion_token_ids is not None
    assert len(step.completion_token_ids) == 4000
    assert step.logprobs is None
