"""Answers that the agent does not go on with, answers that no model gave, and answers that were of no use."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pydantic_ai.exceptions
import pytest
from oracle import Recorded, assert_served
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import FallbackExceptionGroup, SkipModelRequest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_pydantic_ai import record

from .harness import RELEASE, WAYS, adding, agent_of, call, run, run_iter, run_stream, with_model


def outcomes(trajectory: Trajectory) -> list[tuple[str, Any]]:
    return [(step.status, step.completion and step.completion.content) for step in trajectory.steps]


@pytest.mark.parametrize("way", WAYS)
def test_a_fallback_model(way: Any, recorded: Recorded) -> None:
    """Each model that was tried is a step."""

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            assert await way(agent_of(FallbackModel(model, copy.copy(model))), "Add.") == "fine"
        return trajectory

    with ScriptedServer("fine", faults={1: Fault(status=500)}) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert outcomes(trajectory) == [("error", None), ("ok", "fine")]
    assert [(step.metadata or {})["run_step"] for step in trajectory.steps] == [1, 1]
    recorded.keep(trajectory)


@pytest.mark.sees("superseded", "yes; an answer that a validator refuses stays a step, with an error")
@pytest.mark.parametrize("way", [run, run_iter])
def test_an_answer_that_a_fallback_refuses(way: Any, recorded: Recorded) -> None:
    def is_bad(response: ModelResponse) -> bool:
        return "bad" in str(response.text)

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            assert await way(agent_of(FallbackModel(model, model, fallback_on=is_bad)), "Add.") == "good"
        return trajectory

    with ScriptedServer(["bad", "good"]) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert outcomes(trajectory) == [("superseded", "bad"), ("ok", "good")]
    assert len(trajectory.sequences()) == 1
    recorded.keep(trajectory)


def test_answers_with_one_id(recorded: Recorded) -> None:
    """Some servers give all answers the same id: it is the latest that the agent goes on with."""

    def is_bad(response: ModelResponse) -> bool:
        return "bad" in str(response.text)

    def answering(text: str) -> FunctionModel:
        return FunctionModel(lambda _, __: ModelResponse(parts=[TextPart(text)], provider_response_id="same"))

    async def scenario() -> Trajectory:
        models = FallbackModel(answering("bad"), answering("good"), fallback_on=is_bad)
        with rt.trajectory() as trajectory:
            assert await run(agent_of(models), "Add.") == "good"
        return trajectory

    trajectory = asyncio.run(scenario())
    assert outcomes(trajectory) == [("superseded", "bad"), ("ok", "good")]
    recorded.keep(trajectory)


def test_no_answer_that_a_fallback_accepts(recorded: Recorded) -> None:
    def is_bad(response: ModelResponse) -> bool:
        return True

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory, pytest.raises(FallbackExceptionGroup):
            await agent_of(FallbackModel(model, model, fallback_on=is_bad)).run("Add.")
        return trajectory

    with ScriptedServer(["one", "two"]) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    # The agent has no answer to go on with. The last one is marked with the reason.
    assert [step.error is None for step in trajectory.steps] == [True, False]
    recorded.keep(trajectory)


@pytest.mark.skipif(not hasattr(pydantic_ai.exceptions, "RetryModelRequest"), reason="of a later release")
def test_an_answer_that_a_capability_refuses(recorded: Recorded) -> None:
    class Picky(AbstractCapability[Any]):
        async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
            if "bad" in response.text:
                raise pydantic_ai.exceptions.RetryModelRequest
            return response

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            assert await run(agent_of(model, capabilities=[Picky()]), "Add.") == "good"
        return trajectory

    with ScriptedServer(["bad", "good"]) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert outcomes(trajectory) == [("superseded", "bad"), ("ok", "good")]
    recorded.keep(trajectory)


@pytest.mark.skipif(RELEASE < (2, 54), reason="the hook of the other capability runs after ours")
@pytest.mark.parametrize("way", [run, run_iter])
def test_an_answer_that_a_capability_replaces_or_edits(way: Any, recorded: Recorded) -> None:
    class Editor(AbstractCapability[Any]):
        async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
            if "secret" in response.text:
                return ModelResponse(parts=[TextPart("I cannot say.")])
            response.parts = [TextPart(response.text + "!")]
            return response

    async def scenario(model: Any) -> Trajectory:
        agent = agent_of(model, capabilities=[Editor()])
        with rt.trajectory() as trajectory:
            assert [await way(agent, "Say."), await way(agent, "Say.")] == ["I cannot say.", "hello!"]
        return trajectory

    with ScriptedServer(["the secret", "hello"]) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert outcomes(trajectory) == [("superseded", "the secret"), ("ok", "hello")]
    recorded.keep(trajectory)


class Cache(WrapperModel):
    """Answers with what it answered before."""

    answer: ModelResponse | None = None

    async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
        self.answer = self.answer or await super().request(*args, **kwargs)
        return self.answer


@pytest.mark.sees("cached", "of a model that wraps another, or a capability")
def test_an_answer_from_a_cache(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        agent = agent_of(Cache(model))
        with rt.trajectory() as trajectory:
            assert [await run(agent, "Add."), await run_iter(agent, "Add.")] == ["fine", "fine"]
        return trajectory

    with ScriptedServer("fine") as server:
        trajectory = with_model(server, scenario)
    assert len(server.requests) == 1
    assert outcomes(trajectory) == [("ok", "fine"), ("cached", "fine")]
    assert trajectory.steps[1].messages is not None
    assert [one["role"] for one in trajectory.steps[1].messages] == ["system", "user"]
    assert len(trajectory.sequences()) == 1
    recorded.keep(trajectory)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("skips", [True, False])
def test_a_capability_that_answers(way: Any, skips: bool, recorded: Recorded) -> None:
    class Answers(AbstractCapability[Any]):
        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
            answer = ModelResponse(parts=[TextPart("from memory")])
            if skips:
                raise SkipModelRequest(answer)
            return answer

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            assert await way(agent_of(model, capabilities=[Answers()]), "Add.") == "from memory"
        return trajectory

    with ScriptedServer([]) as server:
        trajectory = with_model(server, scenario)
    assert outcomes(trajectory) == [("cached", "from memory")]
    recorded.keep(trajectory)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("calls_both", [True, False])
def test_a_capability_that_calls_another_model(way: Any, calls_both: bool, recorded: Recorded) -> None:
    """Its answer is the turn's: one step, that of the call."""

    class Routes(AbstractCapability[Any]):
        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
            if calls_both:
                await handler(request_context)
            return await model_request(
                request_context.model,
                request_context.messages,
                model_request_parameters=request_context.model_request_parameters,
            )

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await way(agent_of(record(model, engine="vllm"), capabilities=[Routes()]), "Add.")
        return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    turns = [("superseded", 1), ("ok", 1), ("superseded", 2), ("ok", 2)] if calls_both else [("ok", 1), ("ok", 2)]
    assert [(step.status, (step.metadata or {})["run_step"]) for step in trajectory.steps] == turns
    assert [one.result for one in trajectory.tool_runs] == [2]
    recorded.keep(trajectory)


@pytest.mark.parametrize("way", [run, run_iter, run_stream])
def test_an_output_validator_that_refuses(way: Any, recorded: Recorded) -> None:
    """The model is sent its own answer again, with the reason: a turn like any other, whose answer was of no use."""

    async def scenario(model: Any) -> Trajectory:
        agent = agent_of(model, retries=3)

        @agent.output_validator
        def check(output: str) -> str:
            if "bad" in output and way is not run_stream:
                raise ModelRetry("say something good")
            return output

        with rt.trajectory() as trajectory:
            await way(agent, "Add.")
        return trajectory

    with ScriptedServer(["bad", "good"]) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    if way is run_stream:  # a stream has no way back
        return
    assert outcomes(trajectory) == [("ok", "bad"), ("ok", "good")]
    first, second = trajectory.steps
    assert first.error is not None
    assert (first.error.type, first.error.message) == ("ModelRetry", "say something good")
    assert second.error is None
    assert len(trajectory.sequences()) == 1
    recorded.keep(trajectory)


class City(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("answer", [Reply("Paris"), Reply(None, tool_calls=[call("final_result", name="Paris")])])
def test_an_output_that_cannot_be_parsed(answer: Reply, recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await run(agent_of(model, output_type=City, retries=3), "Which?")
        return trajectory

    good = Reply(None, tool_calls=[call("final_result", name="Paris", people=2)])
    with ScriptedServer([answer, good]) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [(step.status, step.error is None) for step in trajectory.steps] == [("ok", False), ("ok", True)]
    recorded.keep(trajectory)


def test_outputs_that_are_never_accepted(recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        with pytest.raises(UnexpectedModelBehavior):
            await agent_of(model, output_type=City, retries=1, name="asker").run("Which?")

    with ScriptedServer("Paris") as server:
        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert_served(server, trajectory.steps)
    assert [(step.status, step.error is None) for step in trajectory.steps] == [("ok", False), ("ok", False)]
    assert trajectory.status == "failed"


@pytest.mark.parametrize("arguments", [{"word": "x"}, {"wrong": "x"}])
def test_a_tool_that_is_asked_too_often(arguments: dict[str, str], recorded: Recorded) -> None:
    """The errors are those of the tool runs; the answers have none, as in a run that goes on."""

    def picky(word: str) -> str:
        """Is picky."""
        raise ModelRetry("say something else")

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory, pytest.raises(UnexpectedModelBehavior):
            await run(agent_of(model, tools=[picky], retries=1), "Talk.")
        return trajectory

    with ScriptedServer(Reply(None, tool_calls=[call("picky", **arguments)])) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [step.error for step in trajectory.steps] == [None, None]
    assert [one.error is None for one in trajectory.tool_runs] == [False, False]
    recorded.keep(trajectory)


@pytest.mark.parametrize("place", ["tool", "validator"])
def test_an_agent_inside_whose_answer_is_of_no_use(place: str, recorded: Recorded) -> None:
    """The error is on the answer of the inner agent alone."""

    async def scenario(model: Any) -> None:
        inner = Agent(model, name="inner", instructions="inner", retries=0)
        outer: Agent[Any, Any] = Agent(model, name="outer", instructions="outer")

        async def ask(question: str) -> str:
            """Asks."""
            return (await inner.run(question)).output

        if place == "tool":
            outer.tool_plain(ask)
        else:
            outer.output_validator(ask)
        with pytest.raises(UnexpectedModelBehavior):
            await record(outer, engine="vllm").run("Well?")

    def script(request: dict[str, Any]) -> Reply:
        if request["messages"][0]["content"] == "inner":
            return Reply(None, tool_calls=[call("nothing")])
        return Reply(None, tool_calls=[call("ask", question="Well?")]) if place == "tool" else Reply("done")

    with ScriptedServer(script) as server:
        with_model(server, scenario)
    everything = {one.name: one for one in recorded.all()}
    assert [step.error for step in everything["outer"].steps] == [None]
    assert [step.error is None for step in everything["inner"].steps] == [False]


def test_a_fallback_to_a_model_without_a_client(recorded: Recorded) -> None:
    def answer(messages: Any, info: Any) -> ModelResponse:
        return ModelResponse(parts=[TextPart("made up")])

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            assert await run(agent_of(FallbackModel(model, FunctionModel(answer))), "Add.") == "made up"
        return trajectory

    with ScriptedServer(adding(0), faults={1: Fault(status=500)}) as server:
        trajectory = with_model(server, scenario)
    assert outcomes(trajectory) == [("error", None), ("ok", "made up")]
    issue = trajectory.steps[1].token_issue
    assert issue is not None
    assert issue.code == "not_on_wire"
    recorded.keep(trajectory)
