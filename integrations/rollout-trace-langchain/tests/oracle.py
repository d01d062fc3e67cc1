"""What the scripted server was asked and what it answered, read from its own log without the recorder's code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace.data.model import STEP_FIELDS
from rollout_trace.testing import ScriptedServer
from rollout_trace.testing.tokenizer import ByteTokenizer


@dataclass
class Served:
    """One request of the log and its answer."""

    request: dict[str, Any]
    status: int | None
    response_id: str | None
    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]


def served(server: ScriptedServer) -> list[Served]:
    """The answered requests, in the order they began."""
    server.wait_idle()
    return [_served(record) for record in server.requests]


def _served(record: Any) -> Served:
    body = record.response_body
    if record.status != 200:
        return Served(record.json, record.status, None, [], [], [])
    if record.json.get("stream"):
        lines = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
        parts = [json.loads(line) for line in lines if line != "[DONE]"]
    else:
        parts = [json.loads(body)]
    choices = [choice for part in parts for choice in part.get("choices", ())]
    return Served(
        request=record.json,
        status=record.status,
        response_id=next((part["id"] for part in parts if "id" in part), None),
        prompt_ids=next((part["prompt_token_ids"] for part in parts if part.get("prompt_token_ids")), []),
        ids=[i for choice in choices for i in choice.get("token_ids") or ()],
        logprobs=[
            token["logprob"] for choice in choices for token in (choice.get("logprobs") or {}).get("content") or ()
        ],
    )


def assert_as_served(steps: Sequence[rt.Step], server: ScriptedServer) -> None:
    """Every request is one step, in order, with the ids and logprobs of its answer and the prompt that was sent."""
    log = served(server)
    assert len(steps) == len(log)
    for step, call in zip(steps, log, strict=True):
        assert step.messages == call.request["messages"]
        assert step.tools == call.request.get("tools")
        assert (step.model, step.response_id) == (call.request["model"], call.response_id)
        if call.status != 200:
            assert step.status == "error"
            continue
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert step.prompt_token_ids.tolist() == call.prompt_ids
        assert step.prompt_token_ids.tolist() == _rendered(call.request)
        assert step.completion_token_ids.tolist() == call.ids
        assert len(call.ids) > 0
        assert step.logprobs.tolist() == _as_float32(call.logprobs)


def _rendered(request: dict[str, Any]) -> list[int]:
    return ByteTokenizer().apply_chat_template(request["messages"], request.get("tools"))


def _as_float32(values: Iterable[float]) -> list[float]:
    return [float(value) for value in np.asarray(list(values), dtype=np.float32)]


_TIMES = ("started_at", "latency", "time_to_first_token", "attempts")
_IDS = ("id", "call_id", "response_id", "metadata")


def content_of(step: rt.Step) -> dict[str, Any]:
    """A step without its ids and times, and without what names another call by its id."""
    facts: dict[str, Any] = {}
    for name in STEP_FIELDS:
        if name in (*_TIMES, *_IDS):
            continue
        value = getattr(step, name)
        facts[name] = value.tolist() if hasattr(value, "tolist") else value
    return facts
