"""Runs of one agent in all ways: each call once, from its bytes, with its tools."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from openai import AsyncOpenAI
from oracle import Recorded, Served, assert_served
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer

from .harness import RELEASE, WAYS, adding, agent_of, call, of_any_run, results, run, run_iter, run_stream, with_model


def assert_loop_of_three(server: ScriptedServer, trajectory: Trajectory) -> None:
    assert_served(server, trajectory.steps)
    assert len(trajectory.steps) == 3
    assert {step.status for step in trajectory.steps} == {"ok"}
    assert {step.agent for step in trajectory.steps} == {"adder"}
    assert [step.metadata["run_step"] for step in trajectory.steps if step.metadata] == [1, 2, 3]
    calls = [one for step in trajectory.steps if step.completion for one in step.completion.tool_calls]
    assert [(one.tool_call_id, one.arguments, one.result, one.error) for one in trajectory.tool_runs] == [
        (calls[0].id, {"a": 0, "b": 2}, 2, None),
        (calls[1].id, {"a": 1, "b": 2}, 3, None),
    ]
    assert [one.step_id for one in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    assert all(one.duration is not None for one in trajectory.tool_runs)


@pytest.mark.sees("ids")
@pytest.mark.sees("one row", "yes; newer releases rewrite tool arguments as compact JSON")
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_loop(way: Any, recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory(task="sum") as trajectory:
            assert await way(agent_of(model, name="adder"), "Add.") == "The sum is known."
        return trajectory

    with ScriptedServer(adding(2)) as server:
        trajectory = with_model(server, scenario)
    assert_loop_of_three(server, trajectory)
    (sequence,) = trajectory.sequences()
    assert sequence.loss_mask.sum() == sum(len(Served(one).ids) for one in server.requests)
    recorded.keep(trajectory)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_run_sync(is_streamed: bool, recorded: Recorded) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the one that `run_sync` uses
    with ScriptedServer(adding(2)) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="none")
        agent = agent_of(OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=client)), name="adder")
        with rt.trajectory() as trajectory:
            if is_streamed:
                assert agent.run_stream_sync("Add.").get_output() == "The sum is known."
            else:
                assert agent.run_sync("Add.").output == "The sum is known."
        loop.run_until_complete(client.close())
    asyncio.set_event_loop(None)
    loop.close()
    assert_loop_of_three(server, trajectory)
    recorded.keep(trajectory)


def test_a_run_opens_a_trajectory(recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        await agent_of(model, name="adder").run("Add.")

    with ScriptedServer(adding(2)) as server:
        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert (trajectory.name, trajectory.status) == ("adder", "completed")
    assert_loop_of_three(server, trajectory)
    assert trajectory.metadata is not None
    assert {step.metadata["run_id"] for step in trajectory.steps if step.metadata} == {trajectory.metadata["run_id"]}


@pytest.mark.sees("streaming")
def test_streamed_and_unstreamed_are_equal(recorded: Recorded) -> None:
    def recorded_by(way: Any) -> Trajectory:
        async def scenario(model: Any) -> Trajectory:
            with rt.trajectory() as trajectory:
                await way(agent_of(model, name="adder"), "Add.")
            return trajectory

        with ScriptedServer(adding(2)) as server:
            return with_model(server, scenario)

    whole, *streamed = [recorded_by(way) for way in WAYS]
    for one in streamed:
        assert of_any_run(one.steps) == of_any_run(whole.steps)
    recorded.keep(whole, *streamed)


@pytest.mark.sees("parallel tools")
@pytest.mark.parametrize("way", WAYS)
def test_tools_at_once(way: Any, recorded: Recorded) -> None:
    def script(request: dict[str, Any]) -> Reply:
        if results(request):
            return Reply("done")
        return Reply(None, tool_calls=[call("meet", name=name) for name in "abc"])

    async def scenario(model: Any) -> Trajectory:
        here: list[str] = []
        all_here = asyncio.Event()

        async def meet(name: str) -> str:
            """Meets the others."""
            here.append(name)
            if len(here) == 3:
                all_here.set()
            await all_here.wait()
            return f"{name} met"

        with rt.trajectory() as trajectory:
            await way(agent_of(model, tools=[meet]), "Meet.")
        return trajectory

    with ScriptedServer(script) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert trajectory.steps[0].completion is not None
    calls = {one.id: one for one in trajectory.steps[0].completion.tool_calls}
    runs = sorted(trajectory.tool_runs, key=lambda one: str(one.result))
    assert [(one.arguments, one.result) for one in runs] == [({"name": name}, f"{name} met") for name in "abc"]
    assert {one.tool_call_id for one in runs} == set(calls)
    assert {one.step_id for one in runs} == {trajectory.steps[0].id}
    recorded.keep(trajectory)


class City(BaseModel):
    name: str
    people: int


@pytest.mark.sees("structured output")
@pytest.mark.parametrize("way", [run, run_iter, run_stream])
def test_structured_output(way: Any, recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            city = await way(agent_of(model, output_type=City), "Which city?")
        assert city == City(name="Paris", people=2)
        return trajectory

    def script(request: dict[str, Any]) -> Reply:
        return Reply(None, tool_calls=[call("final_result", name="Paris", people=2)])

    with ScriptedServer(script) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert trajectory.tool_runs == []  # the output is no tool's
    assert trajectory.steps[0].error is None
    recorded.keep(trajectory)


def test_a_stream_read_after_the_block(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        async with AsyncExitStack() as stack:
            with rt.trajectory() as trajectory:
                streamed = await stack.enter_async_context(agent_of(model, name="adder").run_stream("Add."))
            assert await streamed.get_output() == "The sum is known."
        return trajectory

    with ScriptedServer(adding(2), chunk_tokens=2) as server:
        trajectory = with_model(server, scenario)
    (read,) = recorded.all()
    assert_served(server, read.steps)
    assert [step.status for step in read.steps] == ["ok", "ok", "ok"]
    assert rt.orphans() == []
    assert read.id == trajectory.id


def test_several_runs_in_one_trajectory(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        agent = agent_of(model, name="adder")
        with rt.trajectory() as trajectory:
            first = await agent.run("Add.")
            second = await agent.run("And again?", message_history=first.all_messages())
        steps = trajectory.steps
        assert [step.metadata["run_id"] for step in steps if step.metadata] == [first.run_id] * 3 + [second.run_id]
        return trajectory

    with ScriptedServer(adding(2)) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert len(trajectory.sequences()) == 1
    recorded.keep(trajectory)


def test_rewritten_arguments_are_drift(recorded: Recorded) -> None:
    """Since 2.58 Pydantic AI sends tool arguments back as compact JSON, whatever the model wrote."""

    def script(request: dict[str, Any]) -> Reply:
        return Reply("done") if results(request) else Reply(None, tool_calls=[("add", '{"a": 1, "b": 2}')])

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await agent_of(model).run("Add.")
        return trajectory

    with ScriptedServer(script) as server:
        trajectory = with_model(server, scenario)
    is_rewritten = RELEASE >= (2, 58)
    assert [one.kind for one in rt.drift(trajectory)] == (["tool_arguments"] if is_rewritten else [])
    assert len(trajectory.sequences()) == (2 if is_rewritten else 1)
    recorded.keep(trajectory)


def test_a_history_processor_is_drift(recorded: Recorded) -> None:
    """What the model is sent is recorded, not the history; a shortened one begins another row."""

    def shorten(messages: list[Any]) -> list[Any]:
        return messages[-1:] if len(messages) > 2 and len(messages[-1].parts) else messages

    async def scenario(model: Any) -> Trajectory:
        from pydantic_ai.capabilities import ProcessHistory

        agent = agent_of(model, capabilities=[ProcessHistory(shorten)], tools=[])
        with rt.trajectory() as trajectory:
            first = await agent.run("One?")
            await agent.run("Two?", message_history=first.all_messages())
        return trajectory

    with ScriptedServer(["first", "second"]) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert len(trajectory.sequences()) == 2
    recorded.keep(trajectory)


def test_instrumented_as_well(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await run_iter(agent_of(model, name="adder"), "Add.")
        return trajectory

    with rt.instrument(), ScriptedServer(adding(2)) as server:
        trajectory = with_model(server, scenario)
    assert_loop_of_three(server, trajectory)
    recorded.keep(trajectory)


def test_a_wrapped_client_keeps_its_settings(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        rt.wrap_openai(model.client, engine="vllm", keep_bytes=True)
        with rt.trajectory() as trajectory:
            await agent_of(model, engine=None).run("Add.")
        return trajectory

    with ScriptedServer(adding(0)) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    recorded.keep(trajectory)
