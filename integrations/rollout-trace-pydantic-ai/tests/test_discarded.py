"""Answers that the agent does not go on with, answers that no model gave, and answers that were of no use."""

from __future__ import annotations

import copy
from typing import Any

import pydantic_ai.exceptions
import pytest
from oracle import Recorded, assert_served
from pydantic import BaseModel
from pydantic_ai import ModelRetry, UnexpectedModelBehavior
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import FallbackExceptionGroup, SkipModelRequest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer

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
