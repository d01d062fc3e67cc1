"""One agent: what is recorded is what the server was asked and answered."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from pydantic import BaseModel
from shown import assert_shows_the_same

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer

from .harness import Recorded, add, adding, agent_of, assert_served, openai_model, said
from .test_models import litellm_model


@pytest.mark.sees("ids")
@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_loop_is_recorded_call_for_call(recorded: Recorded, stream: bool) -> None:
    with ScriptedServer(adding(2)) as server:
        agent = agent_of(openai_model(server, stream=stream), name="adder")
        with rt.trajectory("episode") as trajectory:
            result = agent("Add.")
    assert str(result) == "The sum is known.\n"
    assert_served(server, trajectory.steps)
    assert [step.agent for step in trajectory.steps] == ["adder"] * 3
    assert [(run.name, run.arguments, run.result) for run in trajectory.tool_runs] == [
        ("add", {"a": 0, "b": 2}, "2"),
        ("add", {"a": 1, "b": 2}, "3"),
    ]
    calls = [call for step in trajectory.steps if step.completion for call in step.completion.tool_calls]
    assert [run.tool_call_id for run in trajectory.tool_runs] == [call.id for call in calls]
    assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    assert all(run.duration is not None and run.error is None for run in trajectory.tool_runs)
    recorded.keep(trajectory)


@pytest.mark.sees("one row")
def test_a_tool_loop_makes_one_training_row(recorded: Recorded) -> None:
    with ScriptedServer(adding(2)) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server))("Add.")
    (row,) = trajectory.sequences()
    assert len(row.step_ids) == 3
    trained = row.token_ids[row.loss_mask == 1].tolist()
    assert trained == [i for step in trajectory.steps for i in step.completion_token_ids]  # type: ignore[union-attr]
    assert not [finding for finding in trajectory.check() if finding.grade == "fatal"]
    recorded.keep(trajectory)


@pytest.mark.sees("streaming")
def test_streaming_and_not_give_the_same_steps() -> None:
    found = []
    for stream in (True, False):
        with ScriptedServer(adding(2)) as server, rt.trajectory() as trajectory:
            agent_of(openai_model(server, stream=stream))("Add.")
        found.append(re.sub(r"chatcmpl-[\w-]+", "ID", json.dumps(said(trajectory.steps), default=str)))
    assert found[0] == found[1]


def test_without_a_trajectory_a_run_opens_one(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server:
        agent = agent_of(openai_model(server), name="adder")
        agent("Add.")
        agent("Again.")
    first, second = recorded.all()
    assert (first.name, first.parent_id, first.status) == ("adder", None, "completed")
    assert [len(first.steps), len(second.steps)] == [2, 1]
    assert_served(server, [*first.steps, *second.steps])


@pytest.mark.sees("parallel tools")
def test_parallel_tool_calls(recorded: Recorded) -> None:
    def script(request: dict[str, Any]) -> Reply:
        if request["messages"][-1]["role"] == "tool":
            return Reply("done")
        return Reply(tool_calls=[("add", json.dumps({"a": n, "b": n})) for n in range(5)])

    with ScriptedServer(script) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server))("Add.")
    assert_served(server, trajectory.steps)
    completion = trajectory.steps[0].completion
    assert completion is not None
    runs = {run.tool_call_id: run for run in trajectory.tool_runs}
    assert len(trajectory.tool_runs) == 5
    for n, call in enumerate(completion.tool_calls):
        run = runs[call.id]
        assert (run.arguments, run.result, run.step_id) == ({"a": n, "b": n}, str(2 * n), trajectory.steps[0].id)
    assert len(trajectory.sequences()) == 1
    recorded.keep(trajectory)


@pytest.mark.sees("tool errors")
def test_a_tool_that_raises_and_one_that_is_not_there(recorded: Recorded) -> None:
    answers = [Reply(tool_calls=[("fail", '{"reason": "no luck"}'), ("nothing", "{}")]), Reply("It failed.")]
    with ScriptedServer(answers) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server))("Fail.")
    assert_served(server, trajectory.steps)
    failed = next(run for run in trajectory.tool_runs if run.name == "fail")
    assert failed.error is not None
    assert (failed.error.type, failed.error.message) == ("RuntimeError", "no luck")
    assert failed.result == "Error: RuntimeError - no luck"
    unknown = next(run for run in trajectory.tool_runs if run.name == "nothing")
    assert unknown.error is not None
    assert unknown.error.message == "Unknown tool: nothing"
    recorded.keep(trajectory)


@pytest.mark.sees("error")
@pytest.mark.parametrize("stream", [True, False])
def test_an_http_error_is_a_step(recorded: Recorded, stream: bool) -> None:
    with ScriptedServer([adding(1)({"messages": []}), Fault(status=500)]) as server:
        agent = agent_of(openai_model(server, stream=stream))
        with pytest.raises(Exception, match="500"), rt.trajectory() as trajectory:
            agent("Add.")
    assert [step.status for step in trajectory.steps] == ["ok", "error"]
    error = trajectory.steps[1].error
    assert error is not None
    assert error.status == 500
    assert trajectory.status == "failed"
    recorded.keep(trajectory)


def test_a_failed_run_of_its_own_says_what_failed(recorded: Recorded) -> None:
    with ScriptedServer(Fault(status=404)) as server:
        agent = agent_of(openai_model(server))
        with pytest.raises(Exception, match="404"):
            agent("Add.")
    (trajectory,) = recorded.all()
    assert trajectory.status == "failed"
    assert trajectory.error is not None
    assert trajectory.error.type == "NotFoundError"


async def _in_an_except_block(agent: Any) -> None:
    try:
        raise KeyError("the caller's")
    except KeyError:
        await agent.invoke_async("Add.")


def test_what_the_caller_is_handling_is_no_failure_of_the_run(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server:
        asyncio.run(_in_an_except_block(agent_of(openai_model(server))))
    (trajectory,) = recorded.all()
    assert (trajectory.status, trajectory.error) == ("completed", None)


class Sum(BaseModel):
    """A sum."""

    value: int


@pytest.mark.sees("structured output")
def test_structured_output(recorded: Recorded) -> None:
    answers: list[str | Reply] = ["It is four.", Reply(tool_calls=[("Sum", '{"value": 4}')]), "done"]
    with ScriptedServer(answers) as server, rt.trajectory() as trajectory:
        result = agent_of(openai_model(server))("Add.", structured_output_model=Sum)
    assert result.structured_output == Sum(value=4)
    assert_served(server, trajectory.steps)
    assert [run.name for run in trajectory.tool_runs] == ["Sum"]
    recorded.keep(trajectory)


@pytest.mark.filterwarnings("ignore:Agent.structured_output:DeprecationWarning")
def test_the_deprecated_structured_output(recorded: Recorded) -> None:
    with ScriptedServer('{"value": 4}') as server:
        agent = agent_of(openai_model(server), name="adder")
        assert agent.structured_output(Sum, "Add.") == Sum(value=4)
    (trajectory,) = recorded.all()
    assert (trajectory.name, trajectory.status) == ("adder", "completed")
    (step,) = trajectory.steps
    assert step.completion_token_ids is not None
    assert step.status == "ok"


def test_a_tool_called_by_hand(recorded: Recorded) -> None:
    with ScriptedServer("hi") as server, rt.trajectory() as trajectory:
        agent = agent_of(openai_model(server))
        agent.tool.add(a=1, b=2)
    (run,) = trajectory.tool_runs
    assert (run.name, run.arguments, run.result) == ("add", {"a": 1, "b": 2}, "3")
    recorded.keep(trajectory)


def test_several_providers_record_an_agent_once(recorded: Recorded) -> None:
    with ScriptedServer(adding(1)) as server, rt.trajectory() as trajectory:
        from rollout_trace_strands import RolloutHookProvider

        one = RolloutHookProvider(engine="vllm")
        agent = agent_of(openai_model(server), hooks=[one, one], tools=[add])
        one.attach(agent)
        agent("Add.")
    assert_served(server, trajectory.steps)
    assert len(trajectory.tool_runs) == 1
    assert len(recorded.all()) == 1


@pytest.mark.sees("stream", "`stream_async` 168 (168)")
@pytest.mark.parametrize("kind", ["openai", "litellm"])
def test_events_of_a_stream_are_those_without_the_recorder(kind: str) -> None:
    def shown(engine: Any) -> list[Any]:
        async def events(agent: Any) -> list[Any]:
            return [[*event.get("event", event)] async for event in agent.stream_async("Add.")]

        with ScriptedServer(adding(2)) as server:
            model: Any = openai_model(server, stream=True)
            if kind == "litellm":
                model = litellm_model(api_base=server.base_url)
            return asyncio.run(events(agent_of(model, engine=engine, is_recorded=engine is not None)))

    assert_shows_the_same(shown, 168, 168)
