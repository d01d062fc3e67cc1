"""Exact turns with SGLang: ids in `input_ids`, served ids in the choices or in `sglext`, its own `/tokenize`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response
from rollout_trace.testing import Reply
from rollout_trace.testing.real_tokenizer import RealTokenizer
from tests.clients.either import Kind, drive

from .agents import SGLANG, TOKENIZER, TOOLS, SGLangServer, check_steps, exact, numbered, says, talked, texts
from .test_exact_turns import USER, _closed, asked, said, user, wrapped  # noqa: F401
from .test_templates import TINY


class Older(SGLangServer):
    """0.5.15 to 0.5.22: `TokenizeRequest` has no `add_generation_prompt`, and lets unknown fields pass."""

    def answer(self, record: RequestRecord) -> Response:
        if record.path.endswith("/tokenize"):
            body = {name: value for name, value in record.json.items() if name != "add_generation_prompt"}
            record = replace(record, body=json.dumps(body).encode())
        return super().answer(record)


class ByConversation(SGLangServer):
    """Started with a built-in conversation in place of a chat template: line 88 of `serving_tokenize.py`."""

    def answer(self, record: RequestRecord) -> Response:
        if record.path.endswith("/tokenize"):
            message = "add_generation_prompt is supported only with a Jinja chat template."
            return json_response(400, {"object": "error", "message": message, "type": "BadRequest", "code": 400})
        return super().answer(record)


@pytest.mark.parametrize("server_of", [SGLangServer, Older])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_turns_are_one_row(kind: Kind, stream: bool, server_of: type[SGLangServer]) -> None:
    with server_of(numbered, tokenizer=TOKENIZER) as server:
        trajectory = drive(kind, talked(kind, server, SGLANG, 5, stream=stream))
    assert exact(trajectory.steps) == [False, *[True] * 4], texts(trajectory.steps)
    assert {step.token_issue for step in trajectory.steps} == {None}
    check_steps(trajectory.steps)
    assert len(trajectory.sequences()) == 1


def test_tool_calls_and_choices() -> None:
    def script(request: Any, choice: int, messages: Any) -> Reply:
        return Reply("aloud", [("tool", json.dumps({"a": len(messages) + choice}, indent=1))])

    with SGLangServer(script, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server, SGLANG), [dict(USER)]
        for _ in range(4):
            asked(client, messages, tools=TOOLS, n=2)
            for call in messages[-1]["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                call["function"]["arguments"] = json.dumps(arguments)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "result"})
    assert exact(trajectory.steps) == [False] * 2 + [True] * 6, texts(trajectory.steps)
    assert {step.token_issue for step in trajectory.steps} == {None}


def test_a_request_that_ends_with_an_answer_goes_out_as_text() -> None:
    """SGLang's chat makes a message of the user of it, its `/tokenize` does not: ids would say something else."""
    with SGLangServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client, messages = wrapped(server, SGLANG), [dict(USER)]
        asked(client, messages)
        said(client, [*messages, user("two"), {"role": "assistant", "content": "It is"}])
        said(client, [*messages, user("two")])
    assert texts(trajectory.steps) == [None, "history_changed", None]
    assert exact(trajectory.steps) == [False, False, True]


class WithoutTokenizer(SGLangServer):
    """Behind a router that passes generation alone on."""

    def answer(self, record: RequestRecord) -> Response:
        if record.path.endswith("/tokenize"):
            return json_response(404, {"detail": "Not Found"})
        return super().answer(record)


def conversation(server: SGLangServer, engine: rt.Engine) -> list[rt.Step]:
    with rt.trajectory() as trajectory:
        client, messages = wrapped(server, engine), [dict(USER)]
        for turn in range(3):
            asked(client, messages, *([user("go on")] if turn else []))
    return trajectory.steps


def test_a_server_with_a_conversation_for_a_template() -> None:
    with ByConversation(says("hello world"), tokenizer=TOKENIZER) as server:
        steps = conversation(server, SGLANG)
    assert texts(steps) == [None, "tokenizer", "tokenizer"]
    turn = steps[1].exact_turn
    assert turn is not None
    assert "only with a Jinja chat template" in str(turn.detail)


def test_a_server_that_does_not_tokenise() -> None:
    with WithoutTokenizer("hello world", tokenizer=RealTokenizer(TINY)) as server:
        by_text = conversation(server, SGLANG)
        n_requests = len(server.requests)
        by_ids = conversation(server, rt.Engine("sglang", exact_turns=True, tokenizer=TINY))
        paths = [record.path for record in server.requests]
    assert texts(by_text) == [None, "tokenizer", "tokenizer"]
    assert exact(by_ids) == [False, True, True], texts(by_ids)
    assert (paths.count("/tokenize"), {*paths[n_requests:]}) == (1, {"/v1/chat/completions"})
