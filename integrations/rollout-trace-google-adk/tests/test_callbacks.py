"""Callbacks and plugins of the user's: what they answer, replace, change and skip."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.apps import App
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from oracle import Recorded, assert_served
from pydantic_core import PydanticSerializationError

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, ScriptedServer
from rollout_trace_google_adk import RolloutPlugin

from .harness import SSE, adding, agent_of, litellm, once, run, runner_of, text_of


def answer(text: str) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


async def recorded_run(runner: Any, **options: Any) -> tuple[Trajectory, str]:
    with rt.trajectory("task") as trajectory:
        events = await run(runner, **options)
    return trajectory, text_of(events)


class Answers(BasePlugin):
    """Answers in the place of the model, or of a tool."""

    def __init__(self) -> None:
        super().__init__("answers")

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> LlmResponse | None:
        return answer("from the plugin") if "cache" in str(llm_request.contents) else None

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> dict[str, Any] | None:
        return {"sum": "known"} if tool.name == "add" else None


@pytest.mark.sees("cached", "`before_model_callback` of agents and plugins")
@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("by", ["agent", "plugin"])
def test_a_callback_that_answers_in_the_models_place(recorded: Recorded, by: str, is_streamed: bool) -> None:
    def callback(callback_context: Any, llm_request: Any) -> LlmResponse | None:
        return answer("from the agent") if "cache" in str(llm_request.contents) else None

    with ScriptedServer("never") as server:
        options: dict[str, Any] = {"before_model_callback": callback} if by == "agent" else {}
        # The user's plugin comes first, and keeps ADK from calling later ones.
        plugins: list[BasePlugin] = [*([Answers()] if by == "plugin" else []), RolloutPlugin(engine="vllm")]
        app = App(name="tests", root_agent=agent_of(litellm(server), **options), plugins=plugins)
        config = SSE if is_streamed else None
        trajectory, said = asyncio.run(recorded_run(InMemoryRunner(app=app), message="From the cache.", config=config))
        assert server.requests == []
    assert said == f"from the {by}"
    (step,) = trajectory.steps
    assert (step.status, step.agent, step.model) == ("cached", "adder", "openai/scripted")
    assert step.completion is not None
    assert step.completion.content == said
    assert step.messages is not None
    assert [message["role"] for message in step.messages] == ["system", "user"]
    assert step.token_issue is not None
    assert step.token_issue.code == "cached"
    assert trajectory.sequences() == []
    recorded.keep(trajectory)


@pytest.mark.sees("superseded", "no: an answer that `after_model_callback` replaces stays a step")
def test_an_answer_that_a_callback_replaces_stays_what_the_model_sampled(recorded: Recorded) -> None:
    def callback(callback_context: Any, llm_response: Any) -> LlmResponse:
        return answer("replaced")

    with ScriptedServer("sampled") as server:
        agent = agent_of(litellm(server), after_model_callback=callback)
        trajectory, said = asyncio.run(recorded_run(runner_of(agent)))
        assert_served(server, trajectory.steps)
    assert said == "replaced"
    assert [step.completion and step.completion.content for step in trajectory.steps] == ["sampled"]
    recorded.keep(trajectory)


@pytest.mark.parametrize("by", ["agent", "plugin"])
def test_a_callback_that_answers_in_a_tools_place(recorded: Recorded, by: str) -> None:
    def callback(tool: Any, args: Any, tool_context: Any) -> dict[str, Any]:
        return {"sum": "known"}

    with ScriptedServer(adding(1)) as server:
        options: dict[str, Any] = {"before_tool_callback": callback} if by == "agent" else {}
        plugins = [*([Answers()] if by == "plugin" else []), RolloutPlugin(engine="vllm")]
        app = App(name="tests", root_agent=agent_of(litellm(server), **options), plugins=plugins)
        trajectory, _ = asyncio.run(recorded_run(InMemoryRunner(app=app)))
        assert_served(server, trajectory.steps)
    (tool_run,) = trajectory.tool_runs
    assert (tool_run.result, tool_run.error, tool_run.step_id) == ({"sum": "known"}, None, trajectory.steps[0].id)
    recorded.keep(trajectory)


def test_a_callback_that_changes_arguments_and_results(recorded: Recorded) -> None:
    def before(tool: Any, args: Any, tool_context: Any) -> None:
        args["b"] = 40
        args.pop("c", None)

    def after(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> dict[str, Any]:
        return {"the sum": tool_response}

    with ScriptedServer(lambda _, messages: once("add", a=2, b=3, c=4)(messages)) as server:
        agent = agent_of(litellm(server), before_tool_callback=before, after_tool_callback=after)
        trajectory, _ = asyncio.run(recorded_run(runner_of(agent)))
        assert_served(server, trajectory.steps)
    (tool_run,) = trajectory.tool_runs
    # What the tool got, and what the model reads.
    assert (tool_run.arguments, tool_run.result) == ({"a": 2, "b": 40}, {"the sum": 42})
    asked = trajectory.steps[0].completion
    assert asked is not None
    assert asked.tool_calls[0].arguments == '{"a": 2, "b": 3, "c": 4}'
    recorded.keep(trajectory)


def test_arguments_that_the_tool_itself_changes(recorded: Recorded) -> None:
    def drain(words: list[str]) -> int:
        """Drains."""
        count = len(words)
        words.clear()
        return count

    with ScriptedServer(lambda _, messages: once("drain", words=["a", "b"])(messages)) as server:
        trajectory, _ = asyncio.run(recorded_run(runner_of(agent_of(litellm(server), tools=[drain]))))
    (tool_run,) = trajectory.tool_runs
    assert (tool_run.arguments, tool_run.result) == ({"words": ["a", "b"]}, 2)
    recorded.keep(trajectory)


def test_a_callback_that_recovers_from_a_models_error(recorded: Recorded) -> None:
    def callback(callback_context: Any, llm_request: Any, error: Exception) -> LlmResponse:
        return answer("recovered")

    with ScriptedServer(Fault(status=404, body={"error": {"message": "broken"}})) as server:
        agent = agent_of(litellm(server), on_model_error_callback=callback)
        trajectory, said = asyncio.run(recorded_run(runner_of(agent)))
        assert len(server.requests) == 1
    assert said == "recovered"
    (step,) = trajectory.steps
    assert (step.status, step.error and step.error.status) == ("error", 404)
    assert trajectory.status == "completed"
    recorded.keep(trajectory)


def test_a_callback_that_skips_an_agent(recorded: Recorded) -> None:
    def callback(callback_context: Any) -> types.Content:
        return types.Content(role="model", parts=[types.Part(text="skipped")])

    with ScriptedServer("never") as server:
        agent = agent_of(litellm(server), before_agent_callback=callback)
        trajectory, said = asyncio.run(recorded_run(runner_of(agent)))
        assert server.requests == []
    assert (said, trajectory.steps, trajectory.status) == ("skipped", [], "completed")


@pytest.mark.parametrize(
    "name", ["before_agent_callback", "after_agent_callback", "before_model_callback", "after_model_callback"]
)
def test_a_callback_that_raises(recorded: Recorded, name: str) -> None:
    def callback(*_: Any, **__: Any) -> None:
        raise LookupError("the user's own")

    with ScriptedServer("hello") as server:
        options: dict[str, Any] = {name: callback}
        agent = agent_of(litellm(server), **options)
        with pytest.raises(LookupError, match="the user's own"):
            asyncio.run(run(runner_of(agent)))
        (trajectory,) = recorded.all()
        called = 0 if name.startswith("before") else 1
        assert len(server.requests) == called
    assert (trajectory.status, [step.status for step in trajectory.steps]) == ("failed", ["ok"] * called)


def test_a_plugin_that_retries_a_tool(recorded: Recorded) -> None:
    """ADK's own: the model is told to try again."""
    from google.adk.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin

    tried: list[int] = []

    def flaky() -> str:
        """Fails once."""
        tried.append(1)
        if len(tried) == 1:
            raise RuntimeError("once")
        return "fine"

    def script(request: dict[str, Any], messages: list[Any]) -> Any:
        return "done" if len(tried) == 2 else once("flaky")([])

    with ScriptedServer(script) as server:
        plugins = [ReflectAndRetryToolPlugin(max_retries=2), RolloutPlugin(engine="vllm")]
        app = App(name="tests", root_agent=agent_of(litellm(server), tools=[flaky]), plugins=plugins)
        trajectory, _ = asyncio.run(recorded_run(InMemoryRunner(app=app)))
        assert_served(server, trajectory.steps)
    first, second = trajectory.tool_runs
    assert (first.error and first.error.type, second.error, second.result) == ("RuntimeError", None, "fine")
    assert "flaky" in str(first.result)
    recorded.keep(trajectory)


def test_a_tool_call_that_a_callback_makes_is_of_its_step(recorded: Recorded) -> None:
    """ADK makes its id: the model's answer cannot be found by it."""
    asked: list[int] = []

    def callback(callback_context: Any, llm_request: Any) -> LlmResponse | None:
        asked.append(1)
        call = types.Part(function_call=types.FunctionCall(name="add", args={"a": 1, "b": 1}))
        return LlmResponse(content=types.Content(role="model", parts=[call])) if len(asked) == 2 else None

    with ScriptedServer(adding(1)) as server:
        trajectory, _ = asyncio.run(recorded_run(runner_of(agent_of(litellm(server), before_model_callback=callback))))
    assert [step.status for step in trajectory.steps] == ["ok", "cached", "ok"]
    assert [one.step_id for one in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    recorded.keep(trajectory)


def test_a_result_with_an_array(recorded: Recorded) -> None:
    numpy = pytest.importorskip("numpy")

    def measure() -> dict[str, Any]:
        """Measures."""
        return {"values": numpy.array([1, 2, 3])}

    with ScriptedServer(lambda _, messages: once("measure")(messages)) as server:
        agent = agent_of(litellm(server), tools=[measure])
        try:
            asyncio.run(run(runner_of(agent, is_recorded=False)))
        except PydanticSerializationError:
            pytest.skip("this release takes no arrays")
        trajectory, said = asyncio.run(recorded_run(runner_of(agent)))
    assert said == "done"
    assert [one.result for one in trajectory.tool_runs] == [{"values": [1, 2, 3]}]
    recorded.keep(trajectory)
