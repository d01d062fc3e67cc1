"""Every protocol of a live engine, called with real wrapped clients: what is recorded is what was served."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from tests.data.model.qwen2 import Qwen2
from tests.live_engines.calls import CASES, MESSAGES, Case, make
from tests.live_engines.clients import openai_client, recorded, recorded_messages
from tests.live_engines.compare import assert_close, assert_recorded, value_of
from tests.live_engines.servers import MODEL, TINY_MODEL, Server

CHAT = Case("openai.chat", "plain", False)
REPEATABLE = [CHAT, Case("openai.chat", "forced_tool", False), Case("openai.completions", "plain", False)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_is_served(server: Server, case: Case) -> None:
    steps, capture = recorded(server, case, server.engine)
    (exchange,) = capture.exchanges
    assert_recorded(steps, [exchange])
    assert {step.protocol for step in steps} == {case.protocol}
    assert {step.engine for step in steps} == {server.engine}
    assert {(step.request_bytes, step.response_bytes) for step in steps} == {(exchange.request, exchange.response)}
    if server.engine == "vllm" and case.protocol in ("openai.chat", "openai.completions"):
        assert all(step.prompt_token_ids is not None and step.logprobs is not None for step in steps)


@pytest.mark.parametrize("protocol", ["openai.chat", "openai.completions"])
def test_several_choices_often(server: Server, protocol: str) -> None:
    """llama-server counts one of them: lossy ids (3 + 21 of 4 + 24 tokens) now and then add up to its count."""
    for seed in range(24):
        steps, capture = recorded(server, Case(protocol, "two", True, seed), server.engine)
        assert_recorded(steps, capture.exchanges)


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: case.name)
def test_recorded_message_is_served(server: Server, case: Case) -> None:
    """No engine sends ids with messages; the step says that they are missing."""
    (step,), capture = recorded_messages(server, case)
    (exchange,) = capture.exchanges
    assert_recorded([step], [exchange])
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"
    assert (step.request_bytes, step.response_bytes) == (exchange.request, exchange.response)


@pytest.mark.parametrize("case", REPEATABLE, ids=lambda case: f"{case.protocol}-{case.feature}")
def test_streamed_is_unstreamed(server: Server, case: Case) -> None:
    """With one seed both say the same, save how vLLM spells arguments and what llama-server makes of half a character.

    llama-server streams fewer ids: what is not withheld is the same.
    """
    (whole,), _ = recorded(server, case, server.engine)
    (streamed,), _ = recorded(server, case._replace(streamed=True), server.engine)
    assert streamed.finish_reason == whole.finish_reason
    assert _said(streamed) == _said(whole)
    if server.engine == "vllm" or (streamed.logprobs is not None and whole.logprobs is not None):
        np.testing.assert_array_equal(streamed.completion_token_ids, whole.completion_token_ids)
        assert_close(streamed.logprobs, whole.logprobs)


def _said(step: rt.Step) -> tuple[str, list[tuple[str | None, Any]]]:
    assert step.completion is not None
    calls = [(call.name, value_of(call.arguments)) for call in step.completion.tool_calls]
    return str(step.completion.content or "").replace("\ufffd", ""), calls


def test_logprobs_are_those_of_the_model(server: Server) -> None:
    if server.engine != "vllm":
        pytest.skip("only vLLM gives prompt ids of chat, and every logprob")
    model = Qwen2(TINY_MODEL)
    for feature in ("plain", "long", "tools"):
        (step,), _ = recorded(server, Case("openai.chat", feature, False), server.engine)
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        prompt, completion = step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()
        following = model.logprobs([*prompt, *completion])[len(prompt) - 1 : -1]
        assert_close(step.logprobs, following[np.arange(len(completion)), completion])


def test_a_stream_of_llama_server_that_ends_by_itself(server: Server) -> None:
    """It has no entry for the stop token, which the usage counts: such a turn is withheld, streamed alone."""
    if server.engine != "llama-server":
        pytest.skip("vLLM lists the stop token")
    bias: dict[str, Any] = {
        "extra_body": {"logit_bias": [[Qwen2(TINY_MODEL).config["eos_token_id"], 6.5]]},
        "max_tokens": 40,
    }
    with openai_client(server) as (client, _):
        rt.wrap_openai(client, engine="llama-server")
        with rt.trajectory() as trajectory:
            for seed in range(12):
                for stream in (False, True):
                    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "seed": seed, **bias}
                    answer: Any = client.chat.completions.create(**body, stream=stream)
                    list(answer) if stream else None
    ended = [pair for pair in _pairs(trajectory.steps) if pair[0].finish_reason == "stop"]
    said = [(whole, streamed) for whole, streamed in ended if whole.completion and whole.completion.content]
    assert said
    for whole, streamed in said:
        assert whole.completion_token_ids is not None
        assert streamed.completion_token_ids is None
        assert streamed.token_issue is not None
        assert streamed.token_issue.code == "usage_differs"


def _pairs(steps: list[rt.Step]) -> list[tuple[rt.Step, rt.Step]]:
    return list(zip(steps[::2], steps[1::2], strict=True))


def test_auto_finds_the_engine(server: Server) -> None:
    steps, capture = recorded(server, CHAT, "auto")
    assert_recorded(steps, capture.exchanges)
    assert [step.engine for step in steps] == [server.engine]
    assert steps[0].completion_token_ids is not None


def test_without_engine_nothing_is_asked_for(server: Server) -> None:
    steps, capture = recorded(server, CHAT, None)
    with openai_client(server) as (client, bare):
        make(client, CHAT)
    assert [exchange.request for exchange in capture.exchanges] == [exchange.request for exchange in bare.exchanges]
    assert_recorded(steps, capture.exchanges)


def test_a_refused_call_is_an_error(server: Server) -> None:
    """A prompt that is too long: the SDK raises, and the step says what the server said."""
    with openai_client(server) as (client, capture):
        rt.wrap_openai(client, engine=server.engine)
        with rt.trajectory() as trajectory:
            with pytest.raises(Exception, match="400"):
                client.completions.create(model=MODEL, prompt=[300] * 9000, max_tokens=1)
    (step,) = trajectory.steps
    (exchange,) = capture.exchanges
    assert (step.status, exchange.status) == ("error", 400)
    assert step.error is not None
    assert step.error.message == json.loads(exchange.response)["error"]["message"]


def test_probe(server: Server) -> None:
    with openai_client(server) as (client, _):
        report = rt.probe(client, MODEL)
    assert report.engine == server.engine
    assert report.trainable == (server.engine == "vllm"), str(report)
    assert report.prompt_ids == (server.engine == "vllm")
    assert report.tools
    assert not report.failures
    assert report.n_choices == 2
    if server.engine == "vllm":
        assert (report.aligned, report.stream_equals_unary, report.logprobs_mode) == (True, True, "raw")
