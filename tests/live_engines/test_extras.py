"""What a live vLLM says of its tokens beside ids and logprobs, against a forward pass of the model."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.request import Request, urlopen

import httpx
import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.integration import wrap_httpx
from tests.data.model.qwen2 import Qwen2
from tests.live_engines.clients import openai_client
from tests.live_engines.servers import MODEL, TINY_MODEL, Server

GENERATE = "/inference/v1/generate"
QUESTION: list[Any] = [{"role": "user", "content": "Say something about naïve 🙂 cafés."}]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_tokens": 24, "seed": 7}
TOLERANCE = 1e-5
EVERYTHING = rt.Engine("vllm", prompt_logprobs=4, top_logprobs=6)


@pytest.fixture(scope="module")
def model() -> Qwen2:
    return Qwen2(TINY_MODEL)


@pytest.fixture(autouse=True)
def only_vllm(server: Server) -> None:
    if server.engine != "vllm":
        pytest.skip("only vLLM serves tests/data/tiny-model itself and gives prompt ids")


def assert_scored(model: Qwen2, step: rt.Step, *, prompt: bool) -> None:
    """Prompt logprobs and alternatives are those of a forward pass, and begin with the token of their position."""
    assert step.status == "ok"
    assert step.token_issue is None
    assert step.extra_issues == ()
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    asked, sampled = step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()
    following = model.logprobs([*asked, *sampled])
    top = step.top_tokens
    assert top is not None
    assert top.ids.shape[0] == len(sampled)
    np.testing.assert_array_equal(top.ids[:, 0], sampled)
    _assert_listed(following[len(asked) - 1 : -1], top)
    if not prompt:
        return
    scores, listed = step.prompt_logprobs, step.prompt_top_tokens
    assert scores is not None
    assert listed is not None
    assert np.isnan(scores[0])
    assert (listed.ids[0] == -1).all()
    np.testing.assert_allclose(scores[1:], following[np.arange(len(asked) - 1), asked[1:]], atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(listed.ids[1:, 0], asked[1:])
    _assert_listed(following[: len(asked) - 1], rt.TopTokens(listed.ids[1:], listed.logprobs[1:]))


def _assert_listed(following: np.ndarray, top: rt.TopTokens) -> None:
    for position, (ids, logprobs) in enumerate(zip(top.ids, top.logprobs, strict=True)):
        there = ids >= 0
        np.testing.assert_allclose(logprobs[there], following[position, ids[there]], atol=TOLERANCE, rtol=0)
        assert np.isnan(logprobs[~there]).all()
        # All but the first, which is the token of the position itself, are the likeliest in order.
        others = [one for one in np.argsort(-following[position], kind="stable").tolist() if one != ids[0]]
        best = following[position, others[: there.sum() - 1]]
        np.testing.assert_allclose(logprobs[there][1:], best, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("streamed", [False, True])
def test_chat(server: Server, model: Qwen2, streamed: bool) -> None:
    with openai_client(server) as (client, _):
        rt.wrap_openai(client, engine=EVERYTHING if not streamed else rt.Engine("vllm", top_logprobs=6))
        with rt.trajectory() as trajectory:
            answer = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=streamed, **SAMPLED)
            for _ in answer if streamed else ():
                pass
    assert_scored(model, trajectory.steps[0], prompt=not streamed)


@pytest.mark.parametrize("streamed", [False, True])
def test_completions(server: Server, model: Qwen2, streamed: bool) -> None:
    with openai_client(server) as (client, _):
        rt.wrap_openai(client, engine=EVERYTHING if not streamed else rt.Engine("vllm", top_logprobs=6))
        with rt.trajectory() as trajectory:
            answer = client.completions.create(model=MODEL, prompt=[300, 301, 302, 303], stream=streamed, **SAMPLED)
            for _ in answer if streamed else ():
                pass
    assert_scored(model, trajectory.steps[0], prompt=not streamed)


@pytest.mark.parametrize("streamed", [False, True])
def test_generate(server: Server, model: Qwen2, streamed: bool) -> None:
    """The only answers with weight versions; the engine's streams of it have no prompt logprobs."""
    set_version(server, "policy:7")
    body = {"model": MODEL, "token_ids": [300, 301, 302, 303], "sampling_params": {**SAMPLED}, "stream": streamed}
    with httpx.Client(base_url=server.url, timeout=120) as client:
        wrap_httpx(client, engine=EVERYTHING if not streamed else rt.Engine("vllm", top_logprobs=6))
        with rt.trajectory() as trajectory:
            client.post(GENERATE, json=body).raise_for_status()
    (step,) = trajectory.steps
    assert step.protocol == "vllm.generate"
    assert_scored(model, step, prompt=not streamed)
    assert step.completion_token_ids is not None
    assert step.policy_version == "policy:7"
    assert step.policy_spans == (rt.PolicySpan(0, len(step.completion_token_ids), "policy:7"),)


def test_an_aborted_answer_goes_on_in_one_row(server: Server, model: Qwen2) -> None:
    """Weights change under a long answer: it is aborted, and continued from its ids with the new ones."""
    set_version(server, "policy:1")
    with httpx.Client(base_url=server.url, timeout=120) as client:
        wrap_httpx(client, engine="vllm")
        with rt.trajectory() as trajectory:
            trajectory.reward = 1.0
            ids = [300, 301, 302, 303]
            first = _aborted(server, client, ids)
            set_version(server, "policy:2")
            parameters = {"temperature": 1.0, "max_tokens": 12, "logprobs": 0, "ignore_eos": True}
            body = {"model": MODEL, "token_ids": [*ids, *first], "sampling_params": parameters}
            client.post(GENERATE, json=body).raise_for_status()
    one, two = trajectory.steps
    assert (one.finish_reason, one.status) == ("abort", "ok")
    (row,) = trajectory.sequences()
    assert row.step_ids == (one.id, two.id)
    assert row.loss_mask.tolist() == [0] * 4 + [1] * (len(first) + 12)
    assert row.logprobs is not None
    following = model.logprobs(row.token_ids.tolist())
    expected = following[np.arange(3, len(row.token_ids) - 1), row.token_ids[4:]]
    np.testing.assert_allclose(row.logprobs[4:], expected, atol=TOLERANCE, rtol=0)
    assert [(span.end - span.begin, span.version) for span in row.policy_spans or ()] == [
        (len(first), "policy:1"),
        (12, "policy:2"),
    ]


def _aborted(server: Server, client: httpx.Client, ids: list[int]) -> list[int]:
    """Streams an answer, and aborts it once some of it has come."""
    parameters = {"temperature": 1.0, "max_tokens": 1500, "logprobs": 0, "ignore_eos": True}
    body = {"model": MODEL, "token_ids": ids, "sampling_params": parameters, "stream": True}
    came: list[int] = []
    aborting: threading.Thread | None = None
    with client.stream("POST", GENERATE, json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:]).get("choices") or ():
                came += choice.get("token_ids") or ()
            if len(came) > 8 and aborting is None:
                aborting = threading.Thread(target=post, args=(server, "/abort_requests", {}))
                aborting.start()
    assert aborting is not None
    aborting.join()
    assert 8 < len(came) < 1500
    return came


def set_version(server: Server, version: str) -> None:
    post(server, "/update_weight_version", {"new_version": version})


def post(server: Server, path: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    with urlopen(Request(server.url + path, json.dumps(body).encode(), headers), timeout=60) as answer:
        answer.read()


def test_probe_lists_what_each_form_gives(server: Server) -> None:
    with openai_client(server) as (client, _):
        report = rt.probe(client, MODEL)
    given = {(one.protocol, one.streamed) for one in report.extras if one.extra == "prompt_logprobs" and one.given}
    assert given == {("openai.chat", False), ("openai.completions", False), ("vllm.generate", False)}
    assert "prompt logprobs" in str(report)
