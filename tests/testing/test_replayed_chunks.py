"""A replayed program without a recorder reads what the recorded one read: no chunks that came for added fields."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

import rollout_trace as rt
from rollout_trace.testing import load_exchanges
from rollout_trace.testing.cassette_server import ReplayingServer
from rollout_trace.testing.matching import Matcher
from tests.wire.engines.added_chunks import ADDED, DATA, events, says_something

(RECORDED,) = (
    replace(one, protocol="openai.chat")
    for one in load_exchanges(DATA / "wire_vllm.jsonl.xz")
    if one.name == "tools_auto_hermes_two_stream"
)
ASKED: dict[str, Any] = json.loads(RECORDED.request)
OWN = {name: value for name, value in ASKED.items() if name not in ADDED}


def read(body: dict[str, Any], *, timing: bool = False) -> bytes:
    """What a program reads that sends this."""
    with ReplayingServer(Matcher([[RECORDED]]), timing=timing) as server:
        answer = httpx.post(f"{server.base_url}/chat/completions", json=body)
        assert server.unanswered == []
    assert answer.status_code == 200
    return answer.content


@pytest.mark.parametrize("timing", [False, True])
def test_without_the_fields(timing: bool) -> None:
    expected = b"".join(one for one in events(RECORDED.response) if says_something(one))
    assert expected != RECORDED.response
    assert read(OWN, timing=timing) == expected


def test_with_the_fields() -> None:
    """As they were: it is a recorder that takes them out, or the program's own wish."""
    assert read(ASKED) == RECORDED.response


def test_by_a_recorded_client() -> None:
    with rt.instrument(engine="vllm"), rt.trajectory() as trajectory:
        shown = read(OWN)
    (step,) = trajectory.steps
    assert step.completion_token_ids is not None
    assert step.usage is not None
    assert len(step.completion_token_ids) == step.usage.output
    assert shown == read(OWN)


def test_with_some_of_the_fields() -> None:
    """A chunk that comes for one that the program asks for itself is sent."""
    assert read({**OWN, "logprobs": True}) == RECORDED.response
