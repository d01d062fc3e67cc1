"""The loop of one agent: turns, tools, structured output, errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from google.adk.agents.run_config import RunConfig
from oracle import Recorded, Served, assert_served, said
from pydantic import BaseModel

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer

from .harness import SSE, Script, add, adding, agent_of, litellm, once, results, run, runner_of, text_of

ROUTES = pytest.mark.parametrize("route", ["openai", "hosted_vllm"])
MODES = pytest.mark.parametrize("config", [RunConfig(), SSE], ids=["whole", "streamed"])


async def recorded_run(server: ScriptedServer, agent: Any, **options: Any) -> Trajectory:
    with rt.trajectory("task") as trajectory:
        await run(runner_of(agent), **options)
    return trajectory


def tool_rows(trajectory: Trajectory) -> list[Any]:
    return [(run.name, run.arguments, run.result, run.error and run.error.type) for run in trajectory.tool_runs]


@pytest.mark.sees("ids")
@pytest.mark.sees("one row")
@ROUTES
@MODES
def test_a_tool_loop_of_three_turns(recorded: Recorded, route: str, config: RunConfig) -> None:
    with ScriptedServer(adding(2)) as server:
        trajectory = asyncio.run(recorded_run(server, agent_of(litellm(server, route)), config=config))
        assert_served(server, trajectory.steps)
    assert [step.agent for step in trajectory.steps] == ["adder"] * 3
    assert {str(step.metadata) for step in trajectory.steps} == {"{'framework': 'google-adk'}"}
    assert tool_rows(trajectory) == [("add", {"a": 0, "b": 2}, 2, None), ("add", {"a": 1, "b": 2}, 3, None)]
    calls = [(call.id, step.id) for step in trajectory.steps if step.completion for call in step.completion.tool_calls]
    assert [(run.tool_call_id, run.step_id) for run in trajectory.tool_runs] == calls
    assert all(run.duration is not None for run in trajectory.tool_runs)
    assert len(trajectory.sequences()) == 1
    assert trajectory.status == "completed"
    recorded.keep(trajectory)


@pytest.mark.sees("streaming")
@ROUTES
def test_streamed_and_whole_are_the_same(route: str) -> None:
    """ADK reports each chunk of a stream, and the whole answer at its end: one step."""
    steps = []
    for config in (RunConfig(), SSE):
        with ScriptedServer(adding(2)) as server:
            steps.append(asyncio.run(recorded_run(server, agent_of(litellm(server, route)), config=config)).steps)
    assert len(steps[0]) == 3
    assert said(steps[0]) == said(steps[1])


@pytest.mark.sees("parallel tools")
@MODES
def test_parallel_tools(recorded: Recorded, config: RunConfig) -> None:
    """Each waits for the other: they run at once."""
    began: list[asyncio.Event] = []

    async def meet(me: int) -> int:
        """Meets."""
        began[me].set()
        await began[1 - me].wait()
        return me * 10

    def script(request: dict[str, Any], messages: list[Any]) -> Reply:
        if results(messages):
            return Reply("met")
        return Reply(tool_calls=[("meet", '{"me": 0}'), ("meet", '{"me": 1}')])

    async def main(server: ScriptedServer) -> Trajectory:
        began[:] = [asyncio.Event(), asyncio.Event()]
        return await recorded_run(server, agent_of(litellm(server), tools=[meet]), config=config)

    with ScriptedServer(script) as server:
        trajectory = asyncio.run(main(server))
        assert_served(server, trajectory.steps)
    assert tool_rows(trajectory) == [("meet", {"me": 0}, 0, None), ("meet", {"me": 1}, 10, None)]
    asked = trajectory.steps[0].completion
    assert asked is not None
    assert [run.tool_call_id for run in trajectory.tool_runs] == [call.id for call in asked.tool_calls]
    assert {run.step_id for run in trajectory.tool_runs} == {trajectory.steps[0].id}
    recorded.keep(trajectory)


@pytest.mark.sees("tool errors")
def test_a_tool_that_raises_ends_the_run(recorded: Recorded) -> None:
    async def main(server: ScriptedServer) -> None:
        with rt.trajectory("task"):
            await run(runner_of(agent_of(litellm(server))))

    with ScriptedServer(lambda _, messages: once("fail", reason="no reason")(messages)) as server:
        with pytest.raises(RuntimeError, match="no reason"):
            asyncio.run(main(server))
    (trajectory,) = recorded.all()
    (tool_run,) = trajectory.tool_runs
    assert tool_run.error is not None
    assert (tool_run.error.type, tool_run.error.message, tool_run.result) == ("RuntimeError", "no reason", None)
    assert tool_run.step_id == trajectory.steps[0].id
    assert trajectory.status == "failed"
    assert [step.status for step in trajectory.steps] == ["ok"]


def test_a_tool_that_raises_and_a_callback_that_answers(recorded: Recorded) -> None:
    def answers(tool: Any, args: Any, tool_context: Any, error: Exception) -> dict[str, Any]:
        return {"error": str(error), "hint": "try again"}

    with ScriptedServer(lambda _, messages: once("fail", reason="no reason")(messages)) as server:
        agent = agent_of(litellm(server), on_tool_error_callback=answers)
        trajectory = asyncio.run(recorded_run(server, agent))
        assert_served(server, trajectory.steps)
    (tool_run,) = trajectory.tool_runs
    assert tool_run.error is not None
    assert tool_run.error.type == "RuntimeError"
    # What the model reads.
    assert tool_run.result == {"error": "no reason", "hint": "try again"}
    assert json.loads(server.requests[1].json["messages"][-1]["content"]) == tool_run.result
    assert trajectory.status == "completed"
    recorded.keep(trajectory)


def test_a_tool_that_is_not_there(recorded: Recorded) -> None:
    """The model is told, or, in older releases, the run fails."""
    with ScriptedServer(lambda _, messages: once("subtract", a=1)(messages)) as server:
        with contextlib.suppress(ValueError):
            asyncio.run(run(runner_of(agent_of(litellm(server)))))
        (trajectory,) = recorded.all()
        assert_served(server, trajectory.steps)
    (tool_run,) = trajectory.tool_runs
    assert (tool_run.name, tool_run.arguments) == ("subtract", {"a": 1})
    assert tool_run.error is not None
    assert tool_run.error.type == "ValueError"
    assert ("subtract" in str(tool_run.result)) == (trajectory.status == "completed")


class Sum(BaseModel):
    value: int


@pytest.mark.sees("structured output")
@MODES
def test_structured_output(recorded: Recorded, config: RunConfig) -> None:
    with ScriptedServer('{"value": 5}') as server:
        agent = agent_of(litellm(server), tools=[], output_schema=Sum)
        trajectory = asyncio.run(recorded_run(server, agent, config=config))
        assert_served(server, trajectory.steps)
        assert server.requests[0].json["response_format"]["type"] == "json_schema"
    (step,) = trajectory.steps
    assert step.completion is not None
    assert step.completion.content == '{"value": 5}'
    assert step.logprobs_mode == "constrained"
    recorded.keep(trajectory)


def test_structured_output_beside_tools(recorded: Recorded) -> None:
    """ADK has the model give it as arguments of a tool where the provider cannot do both."""

    def script(request: dict[str, Any], messages: list[Any]) -> Reply:
        names = [tool["function"]["name"] for tool in request["tools"]]
        if "set_model_response" not in names:
            return Reply('{"value": 5}') if results(messages) else Reply(tool_calls=[("add", '{"a": 2, "b": 3}')])
        done = len(results(messages))
        call = ("set_model_response", '{"value": 5}') if done else ("add", '{"a": 2, "b": 3}')
        return Reply(tool_calls=[call])

    with ScriptedServer(script) as server:
        agent = agent_of(litellm(server), tools=[add], output_schema=Sum)
        trajectory = asyncio.run(recorded_run(server, agent))
        assert_served(server, trajectory.steps)
    assert tool_rows(trajectory)[0] == ("add", {"a": 2, "b": 3}, 5, None)
    recorded.keep(trajectory)


@pytest.mark.sees("error")
@ROUTES
@MODES
@pytest.mark.parametrize("status", [404, 500])
def test_an_http_error(recorded: Recorded, route: str, config: RunConfig, status: int) -> None:
    async def main(server: ScriptedServer) -> None:
        with rt.trajectory("task"):
            await run(runner_of(agent_of(litellm(server, route))), config=config)

    script: Script = lambda _, messages: (  # noqa: E731
        Fault(status=status, body={"error": {"message": "broken"}}) if results(messages) else adding(1)({}, messages)
    )
    with ScriptedServer(script) as server:
        with pytest.raises(Exception, match="broken"):
            asyncio.run(main(server))
        server.wait_idle()
        served = [Served(record) for record in server.requests]
    (trajectory,) = recorded.all()
    assert [step.status for step in trajectory.steps] == ["ok", *["error"] * (len(served) - 1)]
    for one, step in zip(served, trajectory.steps, strict=True):
        one.assert_is(step)
    assert trajectory.status == "failed"


def test_without_a_trajectory_a_run_opens_one(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server:
        events = asyncio.run(run(runner_of(agent_of(litellm(server)))))
        (trajectory,) = recorded.all()
        assert_served(server, trajectory.steps)
    assert text_of(events) == "The sum is known."
    assert (trajectory.name, trajectory.status, trajectory.parent_id) == ("adder", "completed", None)
    assert len(trajectory.tool_runs) == 1


def test_engine_none_asks_for_nothing(recorded: Recorded) -> None:
    with ScriptedServer("hello") as server:
        asyncio.run(run(runner_of(agent_of(litellm(server)), engine=None)))
        (trajectory,) = recorded.all()
        assert not {"logprobs", "return_token_ids"} & server.requests[0].json.keys()
    (step,) = trajectory.steps
    assert (step.status, step.completion_token_ids) == ("ok", None)


def test_an_engine_with_options(recorded: Recorded) -> None:
    for route in ("openai", "hosted_vllm"):
        with ScriptedServer("hello") as server:
            engine = rt.Engine("vllm", top_logprobs=3)
            asyncio.run(run(runner_of(agent_of(litellm(server, route)), engine=engine)))
            assert server.requests[0].json["top_logprobs"] == 3
    assert [len(trajectory.steps) for trajectory in recorded.all()] == [1, 1]


def test_the_sync_runner(recorded: Recorded) -> None:
    """It runs in a thread of its own, in a copy of the caller's context."""
    from .harness import content_of, session_of

    with ScriptedServer(adding(1)) as server:
        runner = runner_of(agent_of(litellm(server)))
        session = asyncio.run(session_of(runner))
        with rt.trajectory("task") as trajectory:
            events = list(runner.run(user_id="user", session_id=session, new_message=content_of("Add.")))
        assert_served(server, trajectory.steps)
    assert text_of(events) == "The sum is known."
    assert len(trajectory.tool_runs) == 1
    recorded.keep(trajectory)
