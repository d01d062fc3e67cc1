"""Models of every kind, and the three ways to ask for a recording."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from agents import (
    Agent,
    ModelBehaviorError,
    ModelSettings,
    ModelTracing,
    MultiProvider,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    RunConfig,
    RunHooks,
    Runner,
    WebSearchTool,
    add_trace_processor,
    set_default_openai_api,
    set_default_openai_client,
    set_trace_processors,
)
from agents.models import _openai_shared
from agents.models.interface import Model, ModelProvider
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseOutputMessage,
    ResponseOutputText,
)
from openai.types.responses.response import IncompleteDetails
from oracle import Recorded, Served, assert_all_served, assert_served, said

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, ScriptedServer
from rollout_trace_openai_agents import RolloutRunHooks, RolloutTracingProcessor, entry, record

from .harness import SaidModel, add, adding, agent_of, chat_model, client_of, responses_model, run, streamed


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's process-wide client and API, put back afterwards."""
    for name in ("_default_openai_client", "_use_responses_by_default"):
        monkeypatch.setattr(_openai_shared, name, getattr(_openai_shared, name))


def one_run(way: Any, agent: Agent[Any], **options: Any) -> Trajectory:
    async def go() -> Trajectory:
        with rt.trajectory() as trajectory:
            await way(agent, **options)
        return trajectory

    return asyncio.run(go())


@pytest.mark.parametrize("way", [run, streamed])
def test_a_model_by_its_name(recorded: Recorded, defaults: None, way: Any) -> None:
    with ScriptedServer(adding(1)) as server:
        set_default_openai_client(client_of(server), use_for_tracing=False)
        set_default_openai_api("chat_completions")
        trajectory = one_run(way, record(agent_of("gpt-x"), engine="vllm"))
        assert_served(server, trajectory.steps)
    assert [step.agent for step in trajectory.steps] == ["adder", "adder"]
    recorded.keep(trajectory)


class OwnProvider(ModelProvider):
    def __init__(self, client: Any) -> None:
        self.client = client

    def get_model(self, model_name: str | None) -> Model:
        return OpenAIChatCompletionsModel(model_name or "none", self.client)


TAKES_MAPPINGS = "dict" in str(inspect.signature(Runner.run).parameters["run_config"].annotation)


@pytest.mark.parametrize("kind", ["openai", "multi", "own", "model", *(["mapping"] if TAKES_MAPPINGS else [])])
def test_a_model_of_the_run_configuration(recorded: Recorded, kind: str) -> None:
    with ScriptedServer(adding(1)) as server:
        client = client_of(server)
        configs: dict[str, Callable[[], Any]] = {
            "openai": lambda: RunConfig(model_provider=OpenAIProvider(openai_client=client, use_responses=False)),
            "multi": lambda: RunConfig(
                model_provider=MultiProvider(openai_client=client, openai_use_responses=False), model="gpt-y"
            ),
            "own": lambda: RunConfig(model_provider=OwnProvider(client)),
            "mapping": lambda: {"model_provider": OwnProvider(client)},
            "model": lambda: RunConfig(model=chat_model(server)),
        }
        trajectory = one_run(run, record(agent_of("gpt-x"), engine="vllm"), run_config=configs[kind]())
        assert_served(server, trajectory.steps)
    assert len(trajectory.tool_runs) == 1
    recorded.keep(trajectory)


def test_record_of_a_model_or_a_provider(recorded: Recorded) -> None:
    """Runs that begin with one of them are recorded as those of a recorded agent."""
    with ScriptedServer(adding(1)) as server:
        model = record(chat_model(server), engine="vllm")
        assert record(model, engine="vllm") is model
        assert type(model).__name__ == "OpenAIChatCompletionsModel"
        assert isinstance(model, OpenAIChatCompletionsModel)
        provider = record(OwnProvider(client_of(server)), engine="vllm")
        found = [
            one_run(run, agent_of(model)),
            one_run(run, agent_of("gpt-x"), run_config=RunConfig(model_provider=provider)),
            one_run(run, agent_of("gpt-x"), run_config=RunConfig(model=model)),
        ]
        assert_all_served(server, found)
    assert [[len(one.steps), len(one.tool_runs)] for one in found] == [[2, 1]] * 3
    recorded.keep(*found)


def test_hooks_record_one_run(recorded: Recorded) -> None:
    """They subclass ``RolloutRunHooks``, and are called as before; a later run without them is not recorded."""
    seen = []

    class Mine(RolloutRunHooks):
        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            seen.append((agent.name, tool.name, result))

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            seen.append(output)

    with ScriptedServer(adding(1)) as server:
        agent = agent_of(chat_model(server))
        asyncio.run(run(agent, hooks=Mine(engine="vllm")))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
        asyncio.run(run(agent))
        assert len(recorded.all()) == 1
    assert seen == [("adder", "add", 2), "The sum is known."]
    assert [len(one.tool_runs) for one in trajectories] == [1]


def test_hooks_whose_constructor_does_not_call_that_of_ours(recorded: Recorded) -> None:
    class Mine(RolloutRunHooks):
        def __init__(self) -> None:
            self.mine = True

    with ScriptedServer("Fine.") as server:
        asyncio.run(run(agent_of(chat_model(server)), hooks=Mine()))
    assert [len(one.steps) for one in recorded.all()] == [1]


def test_a_processor_records_runs_that_are_traced(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server:
        add_trace_processor(RolloutTracingProcessor(engine="vllm"))
        inner = agent_of(chat_model(server), "inner", tools=[])
        tools = [add, inner.as_tool("ask", "Asks.")]
        for way in (run, streamed):
            asyncio.run(way(agent_of(chat_model(server), tools=tools)))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
        asyncio.run(run(agent_of(chat_model(server)), run_config=RunConfig(tracing_disabled=True)))
        set_trace_processors([])
        asyncio.run(run(agent_of(chat_model(server))))
        assert len(recorded.all()) == 2
    # Runs are no longer followed, either.
    gc.collect()
    assert len(entry._processors) == 0
    assert [(one.name, len(one.steps), len(one.tool_runs), one.status) for one in trajectories] == [
        ("adder", 2, 1, "completed")
    ] * 2


def test_a_clone_of_a_recorded_agent_is_recorded_too(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server:
        agent = record(agent_of(chat_model(server)), engine="vllm")
        clone = agent.clone(name="clone")
        assert replace(agent) == agent
        asyncio.run(run(clone))
        assert_all_served(server, recorded.all())
    assert [one.name for one in recorded.all()] == ["clone"]


@pytest.mark.parametrize("way", [run, streamed])
def test_the_responses_api(recorded: Recorded, way: Any) -> None:
    with ScriptedServer(adding(2)) as server:
        trajectory = one_run(way, record(agent_of(responses_model(server)), engine="vllm"))
        server.wait_idle()
        assert [step.messages is not None for step in trajectory.steps] == [True] * 3
        assert len(server.requests) == 3
    assert {step.protocol for step in trajectory.steps} == {"openai.responses"}
    assert [one.result for one in trajectory.tool_runs] == [2, 3]
    assert [one.step_id for one in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    assert [step.status for step in trajectory.steps] == ["ok"] * 3
    recorded.keep(trajectory)


def test_streamed_responses_equal_unstreamed_ones(recorded: Recorded) -> None:
    found = []
    for way in (run, streamed):
        with ScriptedServer(adding(2)) as server:
            found.append(one_run(way, record(agent_of(responses_model(server)), engine="vllm")))
    assert said(found[0].steps) == said(found[1].steps)


def test_previous_response_id(recorded: Recorded) -> None:
    """Only what is new is sent: each step has that, and names the answer that it goes on from."""
    with ScriptedServer(adding(1)) as server:
        agent = record(agent_of(responses_model(server)), engine="vllm")
        trajectory = one_run(run, agent, auto_previous_response_id=True)
        server.wait_idle()
        first, second = [one.json for one in server.requests]
    assert second["previous_response_id"] == trajectory.steps[0].response_id
    assert [len(step.messages or ()) for step in trajectory.steps] == [
        len(first["input"]) + 1,
        len(second["input"]) + 1,
    ]
    recorded.keep(trajectory)


@pytest.mark.sees("other models", "`ScriptedModel`, any-llm, websockets, models of your own")
@pytest.mark.parametrize("way", [run, streamed])
def test_a_model_without_a_client(recorded: Recorded, way: Any) -> None:
    asks = ResponseFunctionToolCall(call_id="call_1", name="add", arguments='{"a": 1, "b": 2}', type="function_call")
    text = ResponseOutputText(text="Three.", annotations=[], type="output_text")
    says = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
    agent = record(agent_of(SaidModel([asks], [says])), engine="vllm")
    trajectory = one_run(way, agent)
    first, last = trajectory.steps
    assert [step.token_issue and step.token_issue.code for step in trajectory.steps] == ["not_on_wire"] * 2
    assert first.completion is not None
    assert [(call.id, call.name) for call in first.completion.tool_calls] == [("call_1", "add")]
    assert last.completion is not None
    assert last.completion.content == "Three."
    assert [message["role"] for message in last.messages or ()] == ["system", "user", "assistant", "tool"]
    assert {tool["function"]["name"] for tool in last.tools or ()} == {"add", "fail", "explode"}
    assert (trajectory.tool_runs[0].step_id, trajectory.tool_runs[0].result) == (first.id, 3)
    assert trajectory.sequences() == []
    recorded.keep(trajectory)


class CutOff(SaidModel):
    """Its streams end at the limit of tokens."""

    async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        async for event in super().stream_response():
            details = IncompleteDetails(reason="max_output_tokens")
            response = event.response.model_copy(update={"incomplete_details": details})
            yield ResponseIncompleteEvent(response=response, sequence_number=0, type="response.incomplete")


def test_a_streamed_answer_that_is_incomplete_is_kept(recorded: Recorded) -> None:
    """The SDK leaves the stream there, and refuses the answer."""
    text = ResponseOutputText(text="Half an", annotations=[], type="output_text")
    says = ResponseOutputMessage(id="m", content=[text], role="assistant", status="incomplete", type="message")

    async def go() -> None:
        with pytest.raises((ModelBehaviorError, RuntimeError)):
            await streamed(record(agent_of(CutOff([says]))))

    asyncio.run(go())
    (trajectory,) = recorded.all()
    (step,) = trajectory.steps
    assert step.completion is not None
    assert (step.status, step.completion.content, step.finish_reason) == ("ok", "Half an", "max_output_tokens")


def test_a_stream_that_is_left_at_its_last_event_has_no_error(recorded: Recorded) -> None:
    async def go(server: ScriptedServer) -> Trajectory:
        model = record(chat_model(server), engine="vllm")
        options: Any = {"previous_response_id": None, "conversation_id": None, "prompt": None}
        with rt.trajectory() as trajectory:
            events: Any = model.stream_response(
                None, "Hello.", ModelSettings(), [], None, [], ModelTracing.DISABLED, **options
            )
            async for event in events:
                if event.type == "response.completed":
                    break
            await events.aclose()
        return trajectory

    with ScriptedServer("Fine.") as server:
        trajectory = asyncio.run(go(server))
        assert_served(server, trajectory.steps)
    assert [(step.status, step.error) for step in trajectory.steps] == [("ok", None)]
    recorded.keep(trajectory)


class Wrapping(Model):
    """A user's own model, which calls another, and answers some calls itself."""

    def __init__(self, inner: Model, kept: Any = None) -> None:
        self.inner = inner
        self.kept = kept

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        return await self.inner.get_response(*args, **kwargs)

    async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        async for event in self.inner.stream_response(*args, **kwargs):
            yield event


@pytest.mark.parametrize("way", [run, streamed])
def test_a_model_around_a_model_is_one_call(recorded: Recorded, way: Any) -> None:
    with ScriptedServer(adding(1)) as server:
        trajectory = one_run(way, record(agent_of(Wrapping(chat_model(server))), engine="vllm"))
        assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


class Caching(OpenAIChatCompletionsModel):
    kept: Any = None

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        if self.kept is None:
            self.kept = await super().get_response(*args, **kwargs)
        return self.kept


@pytest.mark.sees("cached", "a subclass of the SDK's models that answers itself")
def test_an_answer_without_a_request(recorded: Recorded) -> None:
    with ScriptedServer("Known.") as server:
        agent = record(agent_of(Caching("scripted", client_of(server))), engine="vllm")
        first, second = [one_run(run, agent) for _ in range(2)]
        assert_served(server, first.steps)
    (step,) = second.steps
    assert (step.status, step.completion and step.completion.content) == ("cached", "Known.")
    assert step.token_issue is not None
    assert step.token_issue.code == "cached"
    recorded.keep(first, second)


def test_the_users_settings_stay_without_an_engine(recorded: Recorded) -> None:
    with ScriptedServer("Fine.") as server:
        client = rt.wrap_openai(client_of(server), engine="vllm")
        kind = type(client)
        trajectory = one_run(run, record(agent_of(OpenAIChatCompletionsModel("scripted", client))))
        assert_served(server, trajectory.steps)
        assert type(client) is kind
    recorded.keep(trajectory)


def test_nothing_is_asked_for_without_an_engine(recorded: Recorded) -> None:
    with ScriptedServer("Fine.") as server:
        trajectory = one_run(run, record(agent_of(chat_model(server)), keep_bytes=True))
        server.wait_idle()
        assert "return_token_ids" not in server.requests[0].json
    recorded.keep(trajectory)


def test_an_instrumented_process_records_each_call_once(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server, rt.instrument(engine="vllm"):
        trajectory = one_run(run, record(agent_of(chat_model(server)), engine="vllm"))
        assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


@pytest.mark.parametrize("wrong", [None, "gpt-4o", RunHooks(), object(), Runner])
def test_record_of_anything_else(wrong: Any) -> None:
    with pytest.raises(
        TypeError, match=r"record\(\) needs an Agent, a Model or a ModelProvider of openai-agents, got "
    ):
        record(wrong)


def test_unknown_engines() -> None:
    for make in (lambda: record(agent_of("gpt-x"), engine="vlm"), lambda: RolloutRunHooks(engine="vlm")):
        with pytest.raises(ValueError, match="vlm"):
            make()


def test_wrong_arguments_are_the_sdks_to_refuse() -> None:
    agent: Any = record(agent_of("gpt-x"))
    with pytest.raises(TypeError, match="hooks"):
        asyncio.run(Runner.run(agent, "?", hooks=object()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="nonsense"):
        asyncio.run(Runner.run(agent, "?", nonsense=1))  # type: ignore[call-arg]


def test_hosted_tools_stay_in_the_answer(recorded: Recorded) -> None:
    """A search that the server made is part of its answer, and no tool run."""
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    text = {"type": "output_text", "text": "Found.", "annotations": []}
    message = {"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "content": [text]}
    answer = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "tools": []}
    body = {**answer, "output": [search, message], "tool_choice": "auto", "parallel_tool_calls": True}
    with ScriptedServer(Fault(status=200, body=body)) as server:
        agent = record(agent_of(responses_model(server), tools=[add, WebSearchTool()]), engine="vllm")
        trajectory = one_run(run, agent)
        server.wait_idle()
    (step,) = trajectory.steps
    assert step.completion is not None
    assert step.completion.content == "Found."
    assert (step.completion.extra or {})["output"][0] == search
    assert [tool["type"] for tool in step.tools or ()] == ["function", "web_search"]
    assert trajectory.tool_runs == []
    recorded.keep(trajectory)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", [run, streamed])
def test_litellm(recorded: Recorded, way: Any) -> None:
    """The ``openai/`` route of LiteLLM; a call of LiteLLM outside a recorded run is not recorded."""
    import litellm
    from agents.extensions.models.litellm_model import LitellmModel

    async def go(server: ScriptedServer) -> Trajectory:
        model = LitellmModel("openai/scripted", base_url=server.base_url, api_key="none")
        with rt.trajectory() as trajectory:
            await way(record(agent_of(model, tools=[add]), engine="vllm"))
            question = [{"role": "user", "content": "apart"}]
            await litellm.acompletion("openai/scripted", question, base_url=server.base_url, api_key="none")
        return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(go(server))
        server.wait_idle()
        assert len(server.requests) == 3
        assert [step.model for step in trajectory.steps] == ["scripted", "scripted"]
        for record_of, step in zip(server.requests, trajectory.steps, strict=False):
            Served(record_of).assert_is(step)
    assert [(tool.result, tool.step_id) for tool in trajectory.tool_runs] == [(2, trajectory.steps[0].id)]
    recorded.keep(trajectory)
