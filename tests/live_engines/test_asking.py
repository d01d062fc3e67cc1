"""What live engines are asked for: what they refuse, while they start, and what their streams leave out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import rollout_trace as rt
from tests.data.model.qwen2 import Qwen2
from tests.live_engines.calls import ARGUMENTS, Case, make
from tests.live_engines.clients import openai_client, recorded
from tests.live_engines.compare import assert_close, assert_recorded
from tests.live_engines.servers import MODEL, TINY_MODEL, NotInstalled, Server, free_port, started

PLAIN = Case("openai.chat", "plain", False)


def test_a_refused_shape_leaves_others_alone(server: Server) -> None:
    """llama-server refuses logprobs with tools in a stream, vLLM is asked for none with echo: other calls have them."""
    beams: dict[str, Any] = {"max_tokens": 8, "n": 2, "extra_body": {"echo": True, "use_beam_search": True}}
    with openai_client(server) as (client, _):
        # vLLM's profile asks llama-server for what its own knows it to refuse.
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory() as trajectory:
            if server.engine == "vllm":
                client.completions.create(model=MODEL, prompt="hi", **beams)
                make(client, Case("openai.completions", "plain", False))
            else:
                make(client, Case("openai.chat", "tools", True))
            make(client, PLAIN)
            make(client, PLAIN._replace(streamed=True))
    refused, *others = [steps[0] for steps in _by_call(trajectory.steps)]
    assert [attempt.status for attempt in refused.attempts] == ([200] if server.engine == "vllm" else [400, 200])
    assert refused.logprobs is None
    assert [len(step.attempts) for step in others] == [1] * len(others)
    assert all("logprobs" in (step.sampling or {}) for step in others)
    if server.engine == "vllm":
        assert all(step.logprobs is not None and step.completion_token_ids is not None for step in others)


def _by_call(steps: Any) -> list[list[rt.Step]]:
    return [[step for step in steps if step.call_id == name] for name in dict.fromkeys(s.call_id for s in steps)]


def test_alternatives_without_logprobs_stay_refused(server: Server) -> None:
    with openai_client(server) as (client, _):
        rt.wrap_openai(client, engine=server.engine)
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            client.chat.completions.create(**{**ARGUMENTS["openai.chat", "plain"], "top_logprobs": 2})


def test_nulls_set_nothing(server: Server) -> None:
    with openai_client(server) as (client, capture):
        rt.wrap_openai(client, engine=server.engine)
        with rt.trajectory() as trajectory:
            client.chat.completions.create(**{**ARGUMENTS["openai.chat", "plain"], "logprobs": None, "tools": None})
    (step,) = trajectory.steps
    assert_recorded([step], capture.exchanges)
    assert step.completion_token_ids is not None


def test_auto_while_the_server_starts(tmp_path: Path) -> None:
    """The first call that is answered has ids. llama-server, which starts in a second."""
    port = free_port()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        rt.wrap_openai(client, engine="auto")
        with rt.trajectory() as trajectory:
            for _ in range(3):
                with pytest.raises(openai.APIConnectionError):
                    make(client, PLAIN)
            try:
                with started("llama-server", tmp_path, port):
                    make(client, PLAIN)
            except NotInstalled as error:
                pytest.skip(str(error))
    *failed, answered = trajectory.steps
    assert {step.status for step in failed} == {"error"}
    assert (answered.status, answered.engine) == ("ok", "llama-server")
    assert answered.completion_token_ids is not None


def test_streamed_responses_lack_some_logprobs(server: Server) -> None:
    """Ids are all there. Logprobs are those of the model where they are, or it is said that it cannot be told."""
    if server.engine != "vllm":
        pytest.skip("only vLLM gives ids with responses")
    model, told = Qwen2(TINY_MODEL), 0
    for _ in range(12):
        (step,), _ = recorded(server, Case("openai.responses", "plain", True), server.engine)
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.usage is not None
        assert len(step.completion_token_ids) == step.usage.output
        if step.logprobs is None:
            assert step.token_issue is not None
            assert step.token_issue.code == "logprobs_incomplete"
            continue
        prompt, completion = step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()
        following = model.logprobs([*prompt, *completion])[len(prompt) - 1 : -1][range(len(completion)), completion]
        came = np.isfinite(step.logprobs)
        assert_close(step.logprobs[came], following[came])
        assert bool(came.all()) == (step.token_issue is None)
        told += not came.all()
    assert told


def test_probe_of_every_protocol(server: Server) -> None:
    with openai_client(server) as (client, _):
        report = rt.probe(client, MODEL, protocols=["openai.chat", "openai.completions", "openai.responses"])
    assert report.engine == server.engine
    assert list(report.protocols) == ["openai.chat", "openai.completions", "openai.responses"]
    assert (report.protocols["openai.chat"], report.protocols["openai.completions"]) == (
        (True, True) if server.engine == "vllm" else (False, False)
    ), str(report)
    assert report.advice == (), str(report)


def test_tools_are_rendered_alike_whatever_the_order_of_their_keys(server: Server) -> None:
    """vLLM brings them into an order of its own; `retokenize` makes the same ids, where transformers is installed."""
    if server.engine != "vllm":
        pytest.skip("only vLLM gives prompt ids")
    arguments = ARGUMENTS["openai.chat", "tools"]
    turned = [_turned(tool) for tool in arguments["tools"]]
    assert str(turned) != str(arguments["tools"])
    with openai_client(server) as (client, _):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory() as trajectory:
            client.chat.completions.create(**arguments)
            client.chat.completions.create(**{**arguments, "tools": turned})
    first, second = trajectory.steps
    assert first.prompt_token_ids is not None
    assert second.prompt_token_ids is not None
    assert first.prompt_token_ids.tolist() == second.prompt_token_ids.tolist()
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return
    issue = rt.TokenIssue(code="ids_missing", message="taken away")
    bare: dict[str, Any] = {
        "prompt_token_ids": None,
        "completion_token_ids": None,
        "logprobs": None,
        "token_source": None,
    }
    made = rt.Trajectory(steps=[replace(step, **bare, token_issue=issue) for step in trajectory.steps])
    made.retokenize(AutoTokenizer.from_pretrained(TINY_MODEL))
    assert [step.prompt_token_ids.tolist() for step in made.steps] == [first.prompt_token_ids.tolist()] * 2  # type: ignore[union-attr]


def _turned(tool: dict[str, Any]) -> dict[str, Any]:
    """Its keys and those of its function in turned order; a schema of parameters is rendered as it was sent."""
    function = tool["function"]
    return {"function": {name: function[name] for name in reversed(function)}, "type": tool["type"]}
