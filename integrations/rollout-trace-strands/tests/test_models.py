"""Models: those whose clients can be reached, and those that are recorded as Strands tells of them."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import openai
import pytest
from strands.models import Model
from strands.models.anthropic import AnthropicModel
from strands.models.litellm import LiteLLMModel
from strands.models.llamacpp import LlamaCppModel

import rollout_trace as rt
from rollout_trace import Trajectory, Usage
from rollout_trace.clients.loopback.messages import Response
from rollout_trace.testing import Fault, LoopbackServer, Reply, RequestRecord, ScriptedServer
from rollout_trace_strands import RolloutHookProvider

from .harness import Recorded, Served, add, adding, agent_of, assert_served, openai_model


def test_the_engine_is_asked_only_where_it_is_named(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server), engine=None)("Add.")
    assert not any({"logprobs", "return_token_ids"} & set(record.json) for record in server.requests)
    assert [step.completion_token_ids for step in trajectory.steps] == [None, None]
    assert [list(step.messages or ()) for step in trajectory.steps] == [r.json["messages"] for r in server.requests]
    recorded.keep(trajectory)


def test_an_unknown_engine_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="vlm"):
        RolloutHookProvider(engine="vlm")


@pytest.mark.parametrize("named", [True, False])
def test_a_client_of_the_users(recorded: Recorded, named: bool) -> None:
    """What the user wrapped stays as it is, unless the provider was given an engine."""
    from strands.models.openai import OpenAIModel

    async def run(server: ScriptedServer) -> Trajectory:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            if not named:
                rt.wrap_openai(client, engine="vllm")
            model = OpenAIModel(client=client, model_id="scripted")
            with rt.trajectory() as trajectory:
                await agent_of(model, engine="vllm" if named else None).invoke_async("Add.")
            return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(run(server))
    assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


def test_a_copy_of_a_recorded_model_is_its_own(recorded: Recorded) -> None:
    with ScriptedServer("first") as first, ScriptedServer("second") as second:
        model = openai_model(first)
        agent_of(model)("Go.")
        copied = copy.deepcopy(model)
        copied.client_args["base_url"] = second.base_url
        assert str(agent_of(copied)("Go.")) == "second\n"
        assert (len(first.requests), len(second.requests)) == (1, 1)
    assert all(len(trajectory.steps) == 1 for trajectory in recorded.all())


def anthropic_adding(request: dict[str, Any]) -> Reply:
    blocks = [block for message in request["messages"] for block in message["content"] if isinstance(block, dict)]
    done = sum(block["type"] == "tool_result" for block in blocks)
    if done < 2:
        return Reply(f"adding {done}", tool_calls=[("add", json.dumps({"a": done, "b": 2}))])
    return Reply("The sum is known.")


def test_anthropic(recorded: Recorded) -> None:
    async def run(server: ScriptedServer) -> tuple[Trajectory, Any]:
        client_args = {"base_url": server.url, "api_key": "none", "max_retries": 0}
        model = AnthropicModel(client_args=client_args, model_id="scripted", max_tokens=100)
        async with model.client:
            with rt.trajectory() as trajectory:
                return trajectory, await agent_of(model, engine="vllm", name="adder").invoke_async("Add.")

    with ScriptedServer(anthropic_adding) as server:
        trajectory, result = asyncio.run(run(server))
    assert str(result) == "The sum is known.\n"
    server.wait_idle()
    assert (
        [step.protocol for step in trajectory.steps]
        == ["anthropic.messages"] * 3
        == ["anthropic.messages"] * len(server.requests)
    )
    for record, step in zip(server.requests, trajectory.steps, strict=True):
        assert list(step.messages or ())[-len(record.json["messages"]) :] == record.json["messages"]
        assert (step.status, step.agent, step.metadata) == ("ok", "adder", {"framework": "strands"})
        assert step.usage is not None
        assert step.usage.output is not None
    assert [run.result for run in trajectory.tool_runs] == ["2", "3"]
    assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    recorded.keep(trajectory)


def litellm_model(**client_args: Any) -> LiteLLMModel:
    return LiteLLMModel(client_args={"api_key": "none", **client_args}, model_id="openai/scripted")


@pytest.mark.parametrize("stream", [True, False])
def test_litellm_at_an_address(recorded: Recorded, stream: bool) -> None:
    with ScriptedServer(adding(2)) as server, rt.trajectory() as trajectory:
        model = litellm_model(api_base=server.base_url)
        model.update_config(stream=stream)
        assert str(agent_of(model)("Add.")) == "The sum is known.\n"
        assert "client" not in model.client_args
    assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


def test_litellm_with_a_client_of_the_users(recorded: Recorded) -> None:
    async def run(server: ScriptedServer) -> Trajectory:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            with rt.trajectory() as trajectory:
                await agent_of(litellm_model(client=client)).invoke_async("Add.")
            return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(run(server))
    assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


class Parrot(Model):
    """A model that runs here: says what it is told to, once each."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def update_config(self, **model_config: Any) -> None:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {"model_id": "parrot", "params": {"temperature": 0.5}}

    def structured_output(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield {"messageStart": {"role": "assistant"}}
        for block in answer:
            yield {"contentBlockStart": {"start": {"toolUse": block["toolUse"]} if "toolUse" in block else {}}}
            yield {"contentBlockDelta": {"delta": block["delta"]}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if "toolUse" in answer[-1] else "end_turn"}}
        yield {
            "metadata": {"usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}, "metrics": {"latencyMs": 1}}
        }


THINKING: list[Any] = [
    {"delta": {"reasoningContent": {"text": "hm"}}},
    {"delta": {"text": "let me see"}},
    {"toolUse": {"toolUseId": "t1", "name": "add"}, "delta": {"toolUse": {"input": '{"a": 1, "b": 2}'}}},
]


@pytest.mark.sees("other models")
def test_a_model_that_cannot_be_reached_is_recorded_as_strands_tells(recorded: Recorded) -> None:
    with rt.trajectory() as trajectory:
        agent = agent_of(Parrot(THINKING, [{"delta": {"text": "three"}}]), name="parrot", tools=[add])
        prompt: Any = [{"text": "Look:"}, {"image": {"format": "png", "source": {"bytes": b"\x01"}}}]
        agent(prompt)
    first, second = trajectory.steps
    for step in (first, second):
        assert step.token_issue is not None
        assert (step.token_issue.code, step.status, step.model) == ("not_on_wire", "ok", "parrot")
        assert (step.agent, step.metadata, step.sampling) == ("parrot", {"framework": "strands"}, {"temperature": 0.5})
        assert step.usage == Usage(input=7, output=3)
        assert (step.completion_token_ids, step.logprobs, step.protocol) == (None, None, None)
        assert [spec["function"]["name"] for spec in step.tools or ()] == ["add"]
    assert first.completion is not None
    assert (first.completion.reasoning, first.completion.content) == ("hm", "let me see")
    call = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    assert list(second.messages or ()) == [
        {"role": "system", "content": "You add numbers."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AQ=="}},
            ],
        },
        {"role": "assistant", "content": "let me see", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "3"},
    ]
    (run,) = trajectory.tool_runs
    assert (run.result, run.step_id) == ("3", first.id)
    assert trajectory.sequences().report.left_out == {"not_on_wire": (first.id, second.id)}
    recorded.keep(trajectory)


def test_a_model_that_cannot_be_reached_is_cancelled(recorded: Recorded) -> None:
    agent = agent_of(Parrot(THINKING))

    async def run() -> None:
        async for event in agent.stream_async("Speak."):
            if "data" in event:
                agent.cancel()

    with rt.trajectory() as trajectory:
        asyncio.run(run())
    (step,) = trajectory.steps
    assert (step.status, step.completion) == ("cancelled", None)
    assert step.messages is not None
    recorded.keep(trajectory)


def test_a_model_that_fails_before_the_wire(recorded: Recorded) -> None:
    agent = agent_of(Parrot(RuntimeError("no voice")))
    with pytest.raises(RuntimeError, match="no voice"), rt.trajectory() as trajectory:
        agent("Speak.")
    (step,) = trajectory.steps
    assert step.error is not None
    assert (step.status, step.error.type, step.error.message) == ("error", "RuntimeError", "no voice")
    assert [message["role"] for message in step.messages or ()] == ["system", "user"]
    recorded.keep(trajectory)


def test_an_error_inside_a_stream(recorded: Recorded) -> None:
    with ScriptedServer(Fault("A long answer.", error_event_after=3)) as server:
        agent = agent_of(openai_model(server))
        with pytest.raises(openai.APIError), rt.trajectory() as trajectory:
            agent("Go.")
    (step,) = trajectory.steps
    assert step.status == "error"
    assert list(step.messages or ()) == Served(server.requests[0]).asked["messages"]
    recorded.keep(trajectory)


@pytest.mark.parametrize("stream", [True, False])
def test_litellm_at_a_hosted_vllm(recorded: Recorded, stream: bool) -> None:
    with ScriptedServer(adding(2)) as server, rt.trajectory() as trajectory:
        client_args = {"api_key": "none", "api_base": server.base_url}
        model = LiteLLMModel(client_args=client_args, model_id="hosted_vllm/scripted", stream=stream)
        assert str(agent_of(model)("Add.")) == "The sum is known.\n"
        assert "client" not in model.client_args
    assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


def llamacpp_model(server: LoopbackServer, **params: Any) -> LlamaCppModel:
    return LlamaCppModel(base_url=server.url, model_id="scripted", params=params or None)


def run_llamacpp(agent: Any, prompt: str) -> Any:
    """Runs it, and closes the model's client, which Strands leaves open, in the loop that it was used in."""

    async def run() -> Any:
        async with agent.model.client:
            return await agent.invoke_async(prompt)

    return asyncio.run(run())


def test_llamacpp_from_its_bytes(recorded: Recorded) -> None:
    """A stream with tools is asked for nothing: llama-server would refuse it."""
    with ScriptedServer(adding(2)) as server, rt.trajectory() as trajectory:
        agent = agent_of(llamacpp_model(server, temperature=0.5), name="adder")
        result = run_llamacpp(agent, "Add.")
        assert str(result) == "The sum is known.\n"
        server.wait_idle()
    assert len(trajectory.steps) == len(server.requests) == 3
    for record, step in zip(server.requests, trajectory.steps, strict=True):
        assert "logprobs" not in record.json
        assert list(step.messages or ()) == record.json["messages"]
        assert (step.protocol, step.agent, step.status) == ("openai.chat", "adder", "ok")
        assert (step.metadata, step.sampling) == ({"framework": "strands"}, {"temperature": 0.5})
        assert step.usage is not None
        assert step.usage.output is not None
        assert step.response_id is not None
    assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    recorded.keep(trajectory)


class LlamaServer(LoopbackServer):
    """llama-server's stream: two tokens, whose ids stand beside their logprobs. It may refuse these."""

    def __init__(self, refuses: bool) -> None:
        super().__init__()
        self._refuses = refuses

    def answer(self, record: RequestRecord) -> Response:
        asked = "logprobs" in record.json
        if asked and self._refuses:
            error = {"code": 400, "message": "logprobs is not supported", "type": "invalid_request_error"}
            return Response(400, [("content-type", "application/json")], [json.dumps({"error": error}).encode()])
        entries = [{"id": 5, "token": "a", "logprob": -1.0}, {"id": 6, "token": "b", "logprob": -2.0}]
        choice = {"index": 0, "delta": {"content": "ab"}, "logprobs": {"content": entries} if asked else None}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        parts: list[dict[str, Any]] = [
            {"choices": [{**choice, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        body = [b"data: " + json.dumps({**head, **part}).encode() + b"\n\n" for part in parts]
        return Response(200, [("content-type", "text/event-stream")], [*body, b"data: [DONE]\n\n"], chunked=True)


def test_llamacpp_gives_ids_where_its_server_does(recorded: Recorded) -> None:
    """Without tools: a stream with tools takes no logprobs."""
    with LlamaServer(refuses=False) as server, rt.trajectory() as trajectory:
        assert str(run_llamacpp(agent_of(llamacpp_model(server), tools=[]), "Greet.")) == "ab\n"
    (record,), (step,) = server.requests, trajectory.steps
    assert record.json["logprobs"] is True
    assert list(step.messages or ()) == record.json["messages"]
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert (step.completion_token_ids.tolist(), step.logprobs.tolist()) == ([5, 6], [-1.0, -2.0])
    assert (step.engine, step.status) == ("llama-server", "ok")
    recorded.keep(trajectory)


def test_llamacpp_is_called_once_more_where_its_server_refuses(recorded: Recorded) -> None:
    with LlamaServer(refuses=True) as server, rt.trajectory() as trajectory:
        assert str(run_llamacpp(agent_of(llamacpp_model(server), tools=[]), "Greet.")) == "ab\n"
    assert ["logprobs" in record.json for record in server.requests] == [True, False]
    (step,) = trajectory.steps
    assert (step.status, len(step.attempts or ()), step.completion_token_ids) == ("ok", 2, None)
    recorded.keep(trajectory)


def test_an_engine_with_options_is_asked_for_them(recorded: Recorded) -> None:
    """The options are the provider's, the name is that of the server that this kind of model has."""
    wished = rt.Engine("vllm", prompt_logprobs=0, top_logprobs=2)
    with ScriptedServer(adding(1)) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server), engine=wished)("Add.")
    # The answers are streams, which have no prompt logprobs.
    assert [record.json.get("top_logprobs") for record in server.requests] == [2, 2]
    assert not any("prompt_logprobs" in record.json for record in server.requests)
    recorded.keep(trajectory)
    with LlamaServer(refuses=False) as llama, rt.trajectory() as trajectory:
        run_llamacpp(agent_of(llamacpp_model(llama), tools=[], engine=wished), "Greet.")
    (step,) = trajectory.steps
    assert (step.engine, llama.requests[0].json.get("top_logprobs")) == ("llama-server", 2)
    recorded.keep(trajectory)


def test_llamacpp_is_asked_for_nothing_without_an_engine(recorded: Recorded) -> None:
    with LlamaServer(refuses=False) as server, rt.trajectory() as trajectory:
        run_llamacpp(agent_of(llamacpp_model(server), tools=[], engine=None), "Greet.")
    (record,), (step,) = server.requests, trajectory.steps
    assert "logprobs" not in record.json
    assert (step.status, step.completion_token_ids) == ("ok", None)
    recorded.keep(trajectory)


@pytest.mark.parametrize("answer", [Fault(status=500), Fault("cut off", cut_after=1)])
def test_llamacpp_that_fails(recorded: Recorded, answer: Fault) -> None:
    with ScriptedServer(answer) as server:
        with pytest.raises(Exception, match=r"500|peer|incomplete"), rt.trajectory() as trajectory:
            run_llamacpp(agent_of(llamacpp_model(server)), "Go.")
        server.wait_idle()
    (step,) = trajectory.steps
    assert step.status == "error"
    assert list(step.messages or ()) == server.requests[0].json["messages"]
    recorded.keep(trajectory)


def test_litellm_with_a_fallback_at_another_server(recorded: Recorded) -> None:
    """LiteLLM passes a client on to the fallbacks of a call, which may be on another server."""
    fault = Fault(status=400, body={"error": {"message": "down"}})
    with ScriptedServer(fault) as down, ScriptedServer("hello") as server:
        there = {"model": "openai/other", "api_base": server.base_url, "api_key": "none"}
        client_args = {"api_base": down.base_url, "api_key": "none"}
        model = LiteLLMModel(client_args=client_args, model_id="openai/scripted", params={"fallbacks": [there]})
        result = agent_of(model)("Add.")
        assert len(server.requests) == 1
    assert "hello" in str(result)
    (trajectory,) = recorded.all()
    assert [step.token_issue and step.token_issue.code for step in trajectory.steps] == ["not_on_wire"]
