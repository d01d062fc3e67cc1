"""Providers: what is recorded from the bytes of which, streamed or not, and what of the others."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest
from inspect_ai.agent import react
from inspect_ai.event import ModelEvent
from inspect_ai.model import (
    CachePolicy,
    ContentText,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    ResponseSchema,
    get_model,
)
from inspect_ai.solver import generate
from inspect_ai.util import json_schema
from oracle import Served, assert_served, events_of, said
from pydantic import BaseModel

from rollout_trace import Trajectory, Usage
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_inspect import record

from .harness import Evals, add, adding, adding_task, plain_model, recorded_model, results


def evaluated(evals: Evals, script: Any = None, **options: Any) -> tuple[Trajectory, ScriptedServer]:
    with ScriptedServer(adding() if script is None else script, chunk_tokens=4) as server:
        (found,) = evals.trajectories(evals.run(adding_task(), recorded_model(server, **options)))
        server.wait_idle()
    return found, server


@pytest.mark.sees("streaming")
@pytest.mark.parametrize("api", ["openai", "openai-api/local"])
def test_a_streamed_step_equals_the_same_one_unstreamed(
    evals: Evals, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_API_KEY", "none")
    option = "streaming" if api == "openai" else "stream"
    provider = type(get_model("openai/any", api_key="none").api)
    if api == "openai" and option not in inspect.signature(provider).parameters:
        pytest.skip("this release streams with other providers alone")
    plain, server = evaluated(evals, api=api, **{option: False})
    assert_served(server, plain.steps)
    streamed, server = evaluated(evals, api=api, **{option: True})
    assert_served(server, streamed.steps)
    assert [record.json.get("stream") for record in server.requests] == [True] * 3
    # Inspect's ids, and those of the tool calls in what was said before, differ from run to run.
    of_one_run = {"metadata", "messages", "completion", "prompt_token_ids", "extra"}
    for one, other in zip(said(plain.steps), said(streamed.steps), strict=True):
        differing = {name for name in one if one[name] != other[name]} - of_one_run
        # Older releases do not ask for the usage of a stream.
        assert differing <= ({"usage"} if other["usage"] is None else set())
    for step, other_step in zip(plain.steps, streamed.steps, strict=True):
        assert step.completion is not None
        assert other_step.completion is not None
        assert step.completion.content == other_step.completion.content
    assert len(plain.sequences()) == len(streamed.sequences()) == 1


@pytest.mark.parametrize("api", ["vllm", "sglang"])
def test_a_server_of_ones_own(evals: Evals, api: str) -> None:
    """The provider of vLLM makes its client in the first call."""
    found, server = evaluated(evals, api=api)
    # The provider of vLLM also asks for the length of the context.
    asked = [one for one in server.requests if one.method == "POST"]
    for one, step in zip(asked, found.steps, strict=True):
        Served(one).assert_is(step)
    assert (len(found.steps), len(found.sequences())) == (3, 1)


def test_the_responses_api(evals: Evals) -> None:
    def script(request: dict[str, Any], messages: list[Any]) -> Reply:
        done = sum(message["role"] == "tool" for message in messages)
        return Reply("known") if done else Reply(None, tool_calls=[("add", '{"a": 1, "b": 2}')])

    found, server = evaluated(evals, script, responses_api=True, config=GenerateConfig(reasoning_summary="none"))
    assert [step.protocol for step in found.steps] == ["openai.responses"] * 2
    assert len(server.requests) == 2
    assert [step.response_id for step in found.steps] == [events_of(record)[0]["id"] for record in server.requests]
    assert [run.result for run in found.tool_runs] == ["The sum is 3."]
    assert found.tool_runs[0].step_id == found.steps[0].id


@pytest.mark.parametrize("streaming", [True, False])
def test_anthropic(evals: Evals, streaming: bool) -> None:
    def script(request: dict[str, Any], messages: list[Any]) -> Reply:
        done = sum(message["role"] == "tool" for message in messages)
        return Reply("known") if done else Reply("Adding.", tool_calls=[("add", '{"a": 1, "b": 2}')])

    with ScriptedServer(script) as server:
        model = record(
            get_model(
                "anthropic/claude-of-a-test",
                base_url=server.url,
                api_key="none",
                config=GenerateConfig(max_retries=0, max_tokens=1000),
                streaming=streaming,
            )
        )
        (found,) = evals.trajectories(evals.run(adding_task(), model))
        server.wait_idle()
        assert len(server.requests) == len(found.steps) == 2
    assert [step.protocol for step in found.steps] == ["anthropic.messages"] * 2
    assert [step.status for step in found.steps] == ["ok"] * 2
    # Of a step, the system prompt is the first message.
    assert [list(step.messages or ())[1:] for step in found.steps] == [one.json["messages"] for one in server.requests]
    assert [(run.result, run.step_id) for run in found.tool_runs] == [("The sum is 3.", found.steps[0].id)]


class Sum(BaseModel):
    total: int


@pytest.mark.sees("structured output")
def test_structured_output(evals: Evals) -> None:
    config = GenerateConfig(response_schema=ResponseSchema(name="sum", json_schema=json_schema(Sum)))
    with ScriptedServer('{"total": 5}') as server:
        log = evals.run(adding_task(solver=generate()), recorded_model(server, config=config))
        (found,) = evals.trajectories(log)
        assert_served(server, found.steps)
    assert server.requests[0].json["response_format"]["type"] == "json_schema"
    assert found.steps[0].completion is not None
    assert found.steps[0].completion.content == '{"total": 5}'


@pytest.mark.sees("cached", "Inspect's cache of answers")
def test_cached_answers(evals: Evals) -> None:
    solver = generate(cache=CachePolicy(per_epoch=False))
    with ScriptedServer("known") as server:
        model = recorded_model(server)
        first, second = (evals.run(adding_task(solver=solver), model) for _ in range(2))
        (fetched,), (cached,) = evals.trajectories(first), evals.trajectories(second)
        assert_served(server, fetched.steps)
    (step,) = cached.steps
    assert (step.status, step.token_issue and step.token_issue.code) == ("cached", "cached")
    assert step.completion is not None
    assert step.completion.content == "known"
    assert step.messages is not None
    assert list(step.messages) == list(fetched.steps[0].messages or ())
    assert (step.response_id, len(cached.sequences()), cached.reward) == (None, 0, 1.0)
    assert second.samples is not None
    (sample,) = second.samples
    (event,) = [event for event in sample.events if isinstance(event, ModelEvent)]
    assert (step.metadata or {})["inspect_event"] == event.uuid


@pytest.mark.sees("other models", "`mockllm/` and providers of other SDKs: from Inspect's own data")
def test_a_model_without_a_client(evals: Evals) -> None:
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "add", {"a": 1, "b": 2}),
        ModelOutput.from_content("mockllm/model", [ContentText(text="known")]),
    ]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=5, output_tokens=2, input_tokens_cache_read=3)
    model = record(get_model("mockllm/model", custom_outputs=outputs, config=GenerateConfig(temperature=0.5)))
    task = adding_task(solver=react(tools=[add()], submit=False))
    (found,) = evals.trajectories(evals.run(task, model))
    first, second = found.steps
    assert [step.status for step in found.steps] == ["ok", "ok"]
    assert [step.token_issue and step.token_issue.code for step in found.steps] == ["not_on_wire"] * 2
    assert first.completion is not None
    assert [(call.name, json.loads(call.arguments or "")) for call in first.completion.tool_calls] == [
        ("add", {"a": 1, "b": 2})
    ]
    assert second.completion is not None
    assert second.completion.content == "known"
    assert first.usage == Usage(input=8, output=2, cache_read=3)
    assert (first.model, first.sampling) == ("mockllm/model", {"temperature": 0.5})
    assert [tool["function"]["name"] for tool in first.tools or ()] == ["add"]
    assert [message["role"] for message in second.messages or ()] == ["system", "user", "assistant", "tool"]
    assert [(run.name, run.result, run.step_id) for run in found.tool_runs] == [("add", "The sum is 3.", first.id)]
    assert (len(found.sequences()), found.reward) == (0, 1.0)


def test_an_error_of_a_model_without_a_client(evals: Evals) -> None:
    def raising(*_: Any) -> ModelOutput:
        raise RuntimeError("no model")

    model = record(get_model("mockllm/model", custom_outputs=raising, config=GenerateConfig(max_retries=0)))
    log = evals.run(adding_task(solver=generate()), model, fail_on_error=False)
    (found,) = evals.trajectories(log)
    (step,) = found.steps
    assert step.error is not None
    assert (step.status, step.error.type, step.error.message) == ("error", "RuntimeError", "no model")
    assert [message["content"] for message in step.messages or ()] == ["Question 0?"]


def test_a_client_that_is_made_anew(evals: Evals) -> None:
    """As a provider does when its key was refused."""
    with ScriptedServer("known") as server:
        model = recorded_model(server)
        before = model.api.client  # type: ignore[attr-defined]
        model.api.initialize()
        assert model.api.client is not before  # type: ignore[attr-defined]
        (found,) = evals.trajectories(evals.run(adding_task(solver=generate()), model))
        assert_served(server, found.steps)


def test_several_choices(evals: Evals) -> None:
    with ScriptedServer("known") as server:
        model = recorded_model(server, config=GenerateConfig(num_choices=2))
        (found,) = evals.trajectories(evals.run(adding_task(solver=generate()), model))
    assert [(step.choice, step.call_id) for step in found.steps] == [(n, found.steps[0].call_id) for n in range(2)]
    assert all(step.completion_token_ids is not None for step in found.steps)


def test_another_model_in_a_sample_is_asked_for_nothing(evals: Evals) -> None:
    """The engine is that of the evaluated model's server; a grader's may be another, which refuses the fields."""
    from inspect_ai.scorer import model_graded_qa

    with ScriptedServer("known") as server, ScriptedServer("GRADE: C") as graders:
        scorer = model_graded_qa(model=plain_model(graders))
        (root, judge) = evals.trajectories(
            evals.run(adding_task(solver=generate(), scorer=scorer), recorded_model(server))
        )
        assert "return_token_ids" in server.requests[0].json
        assert not {"return_token_ids", "logprobs"} & graders.requests[0].json.keys()
    assert judge.parent_id == root.id
    assert np.array_equal(judge.steps[0].completion_token_ids or [], [])
    assert results(graders.requests[0].json) == []
    assert root.reward == 1.0
