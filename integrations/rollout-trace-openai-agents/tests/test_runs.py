"""Runs of one agent: ids, tools, errors, structured output, turns; unstreamed, synchronous and streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agents import (
    AgentOutputSchema,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    retry_policies,
    set_tracing_disabled,
)
from agents.run import ModelInputData
from openai import APIStatusError
from oracle import Recorded, Served, assert_all_served, assert_served, said
from pydantic import BaseModel

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_openai_agents import record

from .harness import WAYS, add, adding, agent_of, calling, chat_model, results, run, streamed

PARALLEL = [("add", json.dumps({"a": 1, "b": 2})), ("add", json.dumps({"a": 3, "b": 4})), ("fail", '{"reason": "no"}')]


def recorded_run(way: Any, server: ScriptedServer, recorded: Recorded, **options: Any) -> Trajectory:
    """One run in a trajectory."""

    async def run_it() -> Trajectory:
        agent = record(agent_of(chat_model(server), **options), engine="vllm")
        with rt.trajectory("task") as trajectory:
            await way(agent)
        return trajectory

    trajectory = asyncio.run(run_it())
    server.wait_idle()
    recorded.keep(trajectory)
    return trajectory


@pytest.mark.sees("ids")
@pytest.mark.sees("one row")
@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_loop(recorded: Recorded, way: Any, is_traced: bool) -> None:
    set_tracing_disabled(not is_traced)
    try:
        with ScriptedServer(adding(2)) as server:
            trajectory = recorded_run(way, server, recorded)
            assert_served(server, trajectory.steps)
    finally:
        set_tracing_disabled(False)
    assert (trajectory.name, trajectory.status, trajectory.stop_reason) == ("task", "completed", None)
    assert [step.agent for step in trajectory.steps] == ["adder"] * 3
    assert all(step.metadata == {"framework": "openai-agents"} and step.trainable for step in trajectory.steps)
    first, second = trajectory.tool_runs
    asked = [step.completion.tool_calls[0] for step in trajectory.steps[:2] if step.completion]
    assert [(one.tool_call_id, one.step_id) for one in (first, second)] == [
        (call.id, step.id) for call, step in zip(asked, trajectory.steps, strict=False)
    ]
    assert [(one.name, one.arguments, one.result, one.error) for one in (first, second)] == [
        ("add", {"a": 0, "b": 2}, 2, None),
        ("add", {"a": 1, "b": 2}, 3, None),
    ]
    assert all((one.duration or 0) > 0 for one in (first, second))
    (row,) = trajectory.sequences()
    assert row.loss_mask.sum() == sum(len(Served(one).ids) for one in server.requests)


@pytest.mark.sees("parallel tools")
@pytest.mark.sees("tool errors")
@pytest.mark.parametrize("way", WAYS)
def test_parallel_tools_of_which_one_raises(recorded: Recorded, way: Any) -> None:
    def script(request: Any, messages: Any) -> Reply:
        return Reply("Done.") if results(messages) else Reply(None, tool_calls=PARALLEL)

    with ScriptedServer(script) as server:
        trajectory = recorded_run(way, server, recorded)
        assert_served(server, trajectory.steps)
    first, last = trajectory.steps
    assert first.completion is not None
    runs = {one.tool_call_id: one for one in trajectory.tool_runs}
    assert list(runs) == [call.id for call in first.completion.tool_calls]
    told = {message["tool_call_id"]: message["content"] for message in last.messages or () if message["role"] == "tool"}
    one, two, failed = runs.values()
    assert [(one.arguments, one.result), (two.arguments, two.result)] == [({"a": 1, "b": 2}, 3), ({"a": 3, "b": 4}, 7)]
    assert failed.result == told[failed.tool_call_id or ""]
    assert failed.error is not None
    assert (failed.error.type, failed.error.message) == ("RuntimeError", "no")
    assert {run.step_id for run in runs.values()} == {first.id}


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_ends_the_run(recorded: Recorded, way: Any) -> None:
    async def run_it() -> None:
        with pytest.raises(Exception, match="no"):
            await way(record(agent_of(chat_model(server)), engine="vllm"))

    with ScriptedServer(calling("explode", reason="no")) as server:
        asyncio.run(run_it())
    (trajectory,) = recorded.all()
    assert trajectory.status == "failed"
    (tool,) = trajectory.tool_runs
    assert tool.error is not None
    assert (tool.error.type, tool.error.message, tool.result) == ("RuntimeError", "no", None)
    assert tool.step_id == trajectory.steps[0].id


@pytest.mark.sees("streaming")
def test_streamed_steps_equal_unstreamed_ones(recorded: Recorded) -> None:
    """The SDK asks for the usage of a stream only with ``include_usage``."""
    found, settings = [], ModelSettings(include_usage=True)
    for way in (run, streamed):
        with ScriptedServer(adding(2)) as server:
            found.append(recorded_run(way, server, recorded, model_settings=settings))
            assert {bool(one.json.get("stream")) for one in server.requests} == {way is streamed}
    assert said(found[0].steps) == said(found[1].steps)


@pytest.mark.parametrize("way", WAYS)
def test_without_a_trajectory_a_run_opens_one(recorded: Recorded, way: Any) -> None:
    async def run_them() -> None:
        agent = record(agent_of(chat_model(server)), engine="vllm")
        await way(agent)
        await way(agent)

    with ScriptedServer(adding(1)) as server:
        asyncio.run(run_them())
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert [(one.name, one.parent_id, one.status, len(one.steps)) for one in trajectories] == [
        ("adder", None, "completed", 2)
    ] * 2
    assert trajectories[0].episode_id != trajectories[1].episode_id


@pytest.mark.sees("error")
@pytest.mark.parametrize("way", WAYS)
def test_an_http_error(recorded: Recorded, way: Any) -> None:
    async def run_it() -> None:
        with pytest.raises(APIStatusError):
            await way(record(agent_of(chat_model(server)), engine="vllm"))

    with ScriptedServer(adding(2), faults={2: Fault(status=500)}) as server:
        asyncio.run(run_it())
        (trajectory,) = recorded.all()
        assert_served(server, trajectory.steps)
    assert [step.status for step in trajectory.steps] == ["ok", "error"]
    assert trajectory.status == "failed"
    assert trajectory.error is not None
    assert trajectory.error.type == "InternalServerError"


@pytest.mark.sees("superseded", "none: the SDK repeats calls that failed, and discards no answer")
@pytest.mark.parametrize("way", [run, streamed])
def test_the_sdks_own_retries_are_steps_of_their_own(recorded: Recorded, way: Any) -> None:
    settings = ModelRetrySettings(
        max_retries=2, backoff={"initial_delay": 0.0}, policy=retry_policies.http_status([500])
    )
    with ScriptedServer(adding(1), faults={1: Fault(status=500), 2: Fault(status=500)}) as server:
        trajectory = recorded_run(way, server, recorded, model_settings=ModelSettings(retry=settings))
        assert_served(server, trajectory.steps)
    assert [step.status for step in trajectory.steps] == ["error", "error", "ok", "ok"]
    assert trajectory.status == "completed"


class Sum(BaseModel):
    value: int


@pytest.mark.sees("structured output")
@pytest.mark.parametrize("way", [run, streamed])
def test_structured_output(recorded: Recorded, way: Any) -> None:
    with ScriptedServer('{"value": 5}') as server:
        trajectory = recorded_run(way, server, recorded, output_type=AgentOutputSchema(Sum))
        assert_served(server, trajectory.steps)
    (step,) = trajectory.steps
    assert step.sampling is not None
    assert step.sampling["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("way", [run, streamed])
def test_an_answer_that_is_no_json_is_whole_and_has_the_error(recorded: Recorded, way: Any) -> None:
    async def run_it() -> None:
        with pytest.raises(ModelBehaviorError):
            await way(record(agent_of(chat_model(server), output_type=Sum), engine="vllm"))

    with ScriptedServer("five") as server:
        asyncio.run(run_it())
        (trajectory,) = recorded.all()
        server.wait_idle()
        (step,) = trajectory.steps
        assert step.completion_token_ids is not None
        assert step.completion_token_ids.tolist() == Served(server.requests[0]).ids
    assert (step.status, step.error and step.error.type) == ("ok", "ModelBehaviorError")
    assert (trajectory.status, trajectory.error and trajectory.error.type) == ("failed", "ModelBehaviorError")


@pytest.mark.parametrize("way", WAYS)
def test_too_many_turns(recorded: Recorded, way: Any) -> None:
    async def run_it() -> None:
        with pytest.raises(MaxTurnsExceeded):
            await way(record(agent_of(chat_model(server)), engine="vllm"), max_turns=2)

    with ScriptedServer(adding(9)) as server:
        asyncio.run(run_it())
        (trajectory,) = recorded.all()
        assert_served(server, trajectory.steps)
    assert (trajectory.status, trajectory.stop_reason) == ("failed", "max_turns")
    assert trajectory.error is not None
    assert trajectory.error.type == "MaxTurnsExceeded"
    assert len(trajectory.tool_runs) == 2


def test_a_stop_reason_of_the_users_stays(recorded: Recorded) -> None:
    async def run_it() -> Trajectory:
        with rt.trajectory() as trajectory:
            trajectory.stop_reason = "mine"
            with pytest.raises(MaxTurnsExceeded):
                await run(record(agent_of(chat_model(server), tools=[add]), engine="vllm"), max_turns=1)
        return trajectory

    with ScriptedServer(adding(9)) as server:
        trajectory = asyncio.run(run_it())
    assert (trajectory.status, trajectory.stop_reason) == ("completed", "mine")
    recorded.keep(trajectory)


def test_a_filter_that_rewrites_what_was_said_splits_the_row(recorded: Recorded) -> None:
    """``rt.drift`` has the reason; without the filter it is one row."""

    def shortened(data: Any) -> ModelInputData:
        items: list[Any] = [dict(item) for item in data.model_data.input]
        for item in items:
            if item.get("type") == "function_call":
                item["arguments"] = item["arguments"].replace(" ", "")
        return ModelInputData(input=items, instructions=data.model_data.instructions)

    async def go() -> Trajectory:
        agent = record(agent_of(chat_model(server)), engine="vllm")
        with rt.trajectory() as trajectory:
            await run(agent, run_config=RunConfig(call_model_input_filter=shortened))
        return trajectory

    with ScriptedServer(adding(2)) as server:
        trajectory = asyncio.run(go())
        assert_served(server, trajectory.steps)
    assert len(trajectory.sequences()) == 3
    assert [one.kind for one in rt.drift(trajectory)] == ["tool_arguments"] * 2
    recorded.keep(trajectory)
