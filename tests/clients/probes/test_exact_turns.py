"""`rt.probe`: whether an endpoint takes a prompt's ids beside its messages, and whether it tokenises."""

from __future__ import annotations

import asyncio
import re

import openai
import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response
from rollout_trace.clients.probe import probe
from rollout_trace.clients.probe_report import ProbeReport
from rollout_trace.testing import ScriptedServer
from tests.clients.either import Kind
from tests.clients.exact_turns.agents import (
    ENGINE,
    TOKENIZER,
    IgnoringServer,
    RefusingServer,
    SGLangServer,
    exact,
    says,
    texts,
)

PROTOCOLS = ["openai.chat", "openai.completions", "openai.responses"]


class WithoutTokenizer(ScriptedServer):
    def answer(self, record: RequestRecord) -> Response:
        if record.path.endswith("/tokenize"):
            return json_response(404, {"detail": "Not Found"})
        return super().answer(record)


class IgnoringWithoutTokenizer(IgnoringServer, WithoutTokenizer):
    pass


def probed(server: ScriptedServer, kind: Kind = "sync", **options: object) -> ProbeReport:
    usual = {"base_url": server.base_url, "api_key": "-", "max_retries": 0}
    if kind == "sync":
        with openai.OpenAI(**usual) as client:  # type: ignore[arg-type]
            return probe(client, "m", **options)  # type: ignore[call-overload,no-any-return]

    async def run() -> ProbeReport:
        async with openai.AsyncOpenAI(**usual) as client:  # type: ignore[arg-type]
            return await probe(client, "m", **options)  # type: ignore[call-overload,no-any-return]

    return asyncio.run(run())


def found(report: ProbeReport) -> list[tuple[object, ...]]:
    return [(one.form, one.takes_ids, one.tokenizes, one.works) for one in report.exact_turns]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_ids_that_are_taken(kind: Kind) -> None:
    with ScriptedServer("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server, kind, protocols=PROTOCOLS)
    assert found(report) == [("chat", True, True, True), ("responses", True, True, True)]
    assert {one.problem for one in report.exact_turns} == {None}
    assert (report.failures, report.trainable) == ({}, True)
    lines = str(report).splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("exact turns"))
    assert [re.split("  +", line) for line in lines[begin : begin + 4]] == [
        ["exact turns", "takes ids", "/tokenize", "second turn"],
        ["chat", "yes", "yes", "yes"],
        ["responses", "yes", "yes", "yes"],
        [""],
    ]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_ids_that_are_ignored(kind: Kind) -> None:
    """By a server whose tokenizer gives back what was sampled: a second turn alone would look exact."""
    with IgnoringServer("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server, kind)
    assert found(report) == [("chat", False, True, False)]
    (one,) = report.exact_turns
    assert re.fullmatch(r"\d+ ids were sent, \d+ served\.", str(one.problem))
    assert f"  - chat: {one.problem}" in str(report).splitlines()
    assert report.trainable


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_ids_that_are_refused(kind: Kind) -> None:
    """Not one of its calls fails: what is refused is no failure of the endpoint."""
    with RefusingServer("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server, kind, protocols=PROTOCOLS)
    assert found(report) == [("chat", False, True, False), ("responses", False, True, False)]
    assert {one.problem for one in report.exact_turns} == {"HTTP 400: Extra inputs are not permitted"}
    assert (report.failures, report.trainable) == ({}, True)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_does_not_tokenise(kind: Kind) -> None:
    with WithoutTokenizer("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server, kind, protocols=PROTOCOLS)
    assert found(report) == [("chat", True, False, False), ("responses", True, False, False)]
    problem = "the server's /tokenize answered with status 404: Not Found"
    assert {one.problem for one in report.exact_turns} == {problem}


def test_a_server_that_does_neither() -> None:
    with IgnoringWithoutTokenizer("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server)
    assert found(report) == [("chat", False, False, False)]
    (one,) = report.exact_turns
    assert re.fullmatch(r"\d+ ids were sent, \d+ served\.; the server's /tokenize answered .*", str(one.problem))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_sglang(kind: Kind) -> None:
    with SGLangServer("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server, kind, engine="sglang")
    assert found(report) == [("chat", True, True, True)]


def test_a_template_that_looks_back() -> None:
    """Ids are taken, and the template gives no seam: said with its reason."""

    class LooksBack(ScriptedServer):
        def answer(self, record: RequestRecord) -> Response:
            if not record.path.endswith("/tokenize"):
                return super().answer(record)
            return json_response(200, {"tokens": [len(record.json["messages"]), 7, 8]})

    with LooksBack("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server)
    assert found(report) == [("chat", True, True, False)]
    assert "renders" in str(report.exact_turns[0].problem)


@pytest.mark.parametrize("engine", ["openai", "llama-server"])
def test_engines_that_take_no_ids(engine: str) -> None:
    with ScriptedServer("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server, engine=engine)
        assert not any(b"prompt_token_ids" in record.body for record in server.requests)
    assert report.exact_turns == ()
    assert "exact turns" not in str(report)


def test_an_endpoint_without_ids() -> None:
    """There is nothing to begin a prompt with, and no more calls are made."""

    class WithoutIds(ScriptedServer):
        def answer(self, record: RequestRecord) -> Response:
            record.body = record.body.replace(b"return_token_ids", b"unknown")
            return super().answer(record)

    with WithoutIds("blue is nice", tokenizer=TOKENIZER) as server:
        report = probed(server, engine="vllm")
        assert not any(record.path.endswith("/tokenize") for record in server.requests)
    assert found(report) == [("chat", None, None, None)]
    assert report.exact_turns[0].problem == "the answers have no ids of prompt and completion."


def test_what_is_reported_holds_for_the_calls_that_follow() -> None:
    """What the probe was refused is remembered, as with any call; a server that takes ids takes them afterwards."""
    with ScriptedServer(says("hello world"), tokenizer=TOKENIZER) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="-", max_retries=0) as client:
            assert probe(client, "m", engine="vllm").exact_turns[0].works
            rt.wrap_openai(client, engine=ENGINE)
            messages: list[object] = [{"role": "user", "content": "hi"}]
            with rt.trajectory() as trajectory:
                for _ in range(3):
                    answer = client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
                    messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                    messages.append({"role": "user", "content": "go on"})
    assert exact(trajectory.steps) == [False, True, True], texts(trajectory.steps)
