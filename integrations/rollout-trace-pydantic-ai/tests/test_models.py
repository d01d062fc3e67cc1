"""Models: of every SDK whose bytes are seen, those that nothing is seen of, and all ways to give one to an agent."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google.genai import Client
from google.genai.types import HttpOptions
from oracle import Recorded, assert_served, events_of
from pydantic_ai import Agent, BinaryContent, ImageUrl, RunContext
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_pydantic_ai import record

from .harness import WAYS, adding, agent_of, call, run, run_stream, with_model


def anthropic_model(server: ScriptedServer) -> Any:
    client = AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
    return AnthropicModel("scripted", provider=AnthropicProvider(anthropic_client=client)), client.close


def google_model(server: ScriptedServer) -> Any:
    client = Client(api_key="none", http_options=HttpOptions(base_url=server.url))
    return GoogleModel("scripted", provider=GoogleProvider(client=client)), client.aio.aclose


def add_then_answer(request: dict[str, Any], messages: list[Any]) -> Reply:
    """For any API: ``messages`` have the shape of OpenAI's chat."""
    if any(message["role"] == "tool" for message in messages):
        return Reply("The sum is known.")
    return Reply(None, tool_calls=[call("add", a=1, b=2)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("make", "protocol"),
    [(anthropic_model, "anthropic.messages"), (google_model, "google.generate_content")],
)
def test_other_sdks(way: Any, make: Any, protocol: str, recorded: Recorded) -> None:
    """From their bytes; these APIs have no ids."""

    async def scenario() -> Trajectory:
        model, close = make(server)
        with rt.trajectory() as trajectory:
            assert await way(agent_of(model), "Add.") == "The sum is known."
        await close()
        return trajectory

    with ScriptedServer(add_then_answer) as server:
        trajectory = asyncio.run(scenario())
        server.wait_idle()
    assert len(server.requests) == len(trajectory.steps) == 2
    assert [(step.protocol, step.status) for step in trajectory.steps] == [(protocol, "ok")] * 2
    assert [(step.metadata or {})["run_step"] for step in trajectory.steps] == [1, 2]
    assert trajectory.steps[1].completion is not None
    assert trajectory.steps[1].completion.content == "The sum is known."
    (one,) = trajectory.tool_runs
    assert (one.name, one.arguments, one.result, one.step_id) == ("add", {"a": 1, "b": 2}, 3, trajectory.steps[0].id)
    recorded.keep(trajectory)


@pytest.mark.parametrize("way", WAYS)
def test_responses(way: Any, recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            assert await way(agent_of(model), "Add.") == "The sum is known."
        return trajectory

    with ScriptedServer(add_then_answer) as server:
        trajectory = with_model(server, scenario, OpenAIResponsesModel)
    assert len(server.requests) == len(trajectory.steps) == 2
    assert {(step.protocol, step.status) for step in trajectory.steps} == {("openai.responses", "ok")}
    assert [one.step_id for one in trajectory.tool_runs] == [trajectory.steps[0].id]
    for step, record_of_it in zip(trajectory.steps, server.requests, strict=True):
        *_, last = events_of(record_of_it)
        answer = last.get("response", last)
        served = [message["tokens"] for message in answer["output_messages"]]
        assert step.completion_token_ids is not None
        assert step.completion_token_ids.tolist() == [token for tokens in served for token in tokens]
    recorded.keep(trajectory)


@pytest.mark.sees("other models")
@pytest.mark.parametrize("way", WAYS)
def test_a_test_model(way: Any, recorded: Recorded) -> None:
    async def scenario() -> Trajectory:
        with rt.trajectory() as trajectory:
            await way(agent_of(TestModel(call_tools=["add"])), "Add.", model_settings={"temperature": 0.5})
        return trajectory

    trajectory = asyncio.run(scenario())
    first, second = trajectory.steps
    for step in trajectory.steps:
        assert (step.status, step.model, step.protocol, step.completion_token_ids) == ("ok", "test", None, None)
        assert step.sampling == {"temperature": 0.5}
        assert step.token_issue is not None
        assert step.token_issue.code == "not_on_wire"
        assert step.tools is not None
        assert [tool["function"]["name"] for tool in step.tools] == ["add", "fail"]
        assert step.usage is not None
        assert step.usage.cache_read is None  # not reported: missing is not zero
    assert first.completion is not None
    assert second.completion is not None
    (asked,) = first.completion.tool_calls
    assert (asked.name, asked.arguments) == ("add", '{"a":0,"b":0}')
    assert second.completion.content == '{"add":0}'
    assert second.messages is not None
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "tool"]
    assert [(one.result, one.step_id) for one in trajectory.tool_runs] == [(0, first.id)]
    recorded.keep(trajectory)


def test_a_function_model(recorded: Recorded) -> None:
    """Its parts: text, thoughts, tool calls, images."""

    def answer(messages: Any, info: Any) -> ModelResponse:
        if any(part.part_kind == "tool-return" for part in messages[-1].parts):
            return ModelResponse(parts=[ThinkingPart("hm"), TextPart("done")], finish_reason="stop")
        return ModelResponse(parts=[ToolCallPart("look", {"at": "it"})])

    async def stream(messages: Any, info: Any) -> Any:
        if any(part.part_kind == "tool-return" for part in messages[-1].parts):
            yield "done"
        else:
            yield {0: DeltaToolCall("look", '{"at": ')}
            yield {0: DeltaToolCall(json_args='"it"}')}

    async def scenario() -> Trajectory:
        agent = agent_of(FunctionModel(answer, stream_function=stream), tools=[])

        @agent.tool_plain
        def look(at: str) -> ToolReturn:
            """Looks."""
            return ToolReturn(return_value=f"{at} seen", metadata={"kept": True})

        prompt: Any = ["What is it?", ImageUrl("http://x/y.png"), BinaryContent(b"abc", media_type="image/png")]
        with rt.trajectory() as trajectory:
            await agent.run(prompt)
            await run_stream(agent, prompt)
        return trajectory

    trajectory = asyncio.run(scenario())
    assert [step.status for step in trajectory.steps] == ["ok"] * 4
    calls = [step.completion.tool_calls for step in trajectory.steps if step.completion]
    assert [(one.name, one.arguments) for some in calls for one in some] == [
        ("look", '{"at":"it"}'),
        ("look", calls[2][0].arguments),
    ]
    assert trajectory.steps[0].messages is not None
    assert trajectory.steps[0].messages[1]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}},
    ]
    assert trajectory.steps[1].completion is not None
    assert (trajectory.steps[1].completion.content, trajectory.steps[1].completion.reasoning) == ("done", "hm")
    kept: list[Any] = [one.result for one in trajectory.tool_runs]
    assert [(one["return_value"], one["metadata"]) for one in kept] == [("it seen", {"kept": True})] * 2
    recorded.keep(trajectory)


@pytest.mark.parametrize("wrap", [WrapperModel, InstrumentedModel, lambda model: WrapperModel(WrapperModel(model))])
@pytest.mark.parametrize("way", WAYS)
def test_models_in_models(wrap: Any, way: Any, recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await way(agent_of(wrap(model)), "Add.")
        return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


class Router(Model):
    """A model of one's own that calls another."""

    def __init__(self, inner: Model) -> None:
        super().__init__()
        self._inner = inner

    @property
    def model_name(self) -> str:
        return "router"

    @property
    def system(self) -> str:
        return "own"

    async def request(self, *args: Any) -> ModelResponse:
        return await self._inner.request(*args)

    @asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> Any:
        async with self._inner.request_stream(*args, **kwargs) as stream:
            yield stream


@pytest.mark.parametrize("way", WAYS)
def test_a_recorded_model_in_ones_own(way: Any, recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await way(agent_of(Router(record(model, engine="vllm"))), "Add.")
        return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [(step.metadata or {})["run_step"] for step in trajectory.steps] == [1, 2]
    recorded.keep(trajectory)


def test_a_model_of_the_run(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given to one run, by ``override``, or by its name, which is looked up when the run begins."""

    async def scenario(model: Any) -> Trajectory:
        agent = agent_of(TestModel())
        used: list[Any] = []

        @agent.instructions
        def note(ctx: RunContext[Any]) -> str:
            used.append(ctx.model)
            return "Really."

        with rt.trajectory() as trajectory:
            await run(agent, "Add.", model=model)
            with agent.override(model=model):
                await run(agent, "Add.")
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", "none")
            await run(agent, "Add.", model="openai-chat:scripted")
        await used[-1].client.close()  # Pydantic AI 2.0 leaves it open
        return trajectory

    with ScriptedServer("fine") as server:
        trajectory = with_model(server, scenario)
    assert len(trajectory.steps) == 3
    assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


def test_a_model_alone(recorded: Recorded) -> None:
    """A recorded model is recorded without an agent, too."""

    async def scenario(model: Any) -> Trajectory:
        assert record(model, engine="vllm") is model
        assert record(model) is model
        with rt.trajectory() as trajectory:
            await model_request(model, [ModelRequest(parts=[UserPromptPart("Well?")])])
        return trajectory

    with ScriptedServer("fine") as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert trajectory.steps[0].metadata == {"framework": "pydantic-ai"}
    recorded.keep(trajectory)


def test_a_model_alone_with_settings(recorded: Recorded) -> None:
    """The model's own settings are a part of what it was asked."""

    async def scenario() -> Trajectory:
        model = record(TestModel(settings={"temperature": 0.5, "top_p": 0.5}))
        with rt.trajectory() as trajectory:
            await model_request(model, [ModelRequest.user_text_prompt("Well?")], model_settings={"top_p": 0.25})
        return trajectory

    trajectory = asyncio.run(scenario())
    assert trajectory.steps[0].sampling == {"temperature": 0.5, "top_p": 0.25}
    recorded.keep(trajectory)


def test_one_model_of_two_agents(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await agent_of(model, name="one").run("Add.")
            await agent_of(model, name="two", is_recorded=False).run("Add.")
        return trajectory

    with ScriptedServer("fine") as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [step.agent for step in trajectory.steps] == ["one", "agent"]
    recorded.keep(trajectory)


def test_a_recorded_model_is_still_its_own() -> None:
    model = record(TestModel(custom_output_text="x"))
    assert type(model).__name__ == "TestModel"
    assert isinstance(model, TestModel)
    assert inspect.iscoroutinefunction(model.request)
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.custom_output_text == "x"
        assert asyncio.run(run(Agent(other), "?")) == "x"
