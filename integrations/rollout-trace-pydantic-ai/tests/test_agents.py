"""Agents that other agents run: a trajectory each, with the parent and the step that led to it."""

from __future__ import annotations

from typing import Any

import pytest
from oracle import Recorded, assert_all_served, assert_served
from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.test import TestModel

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_pydantic_ai import RolloutCapability, record

from .harness import WAYS, adding, agent_of, call, results, run_stream, with_model


def by_name(trajectories: list[Trajectory]) -> dict[str, Trajectory]:
    return {one.name: one for one in trajectories}


def delegating(request: dict[str, Any]) -> Reply:
    """Each agent whose only tool asks another one calls that tool, then answers."""
    tools = [tool["function"]["name"] for tool in request.get("tools") or ()]
    if results(request) or not tools:
        return Reply(f"{request['messages'][0]['content']} answers")
    (tool,) = tools
    return Reply(None, tool_calls=[call(tool, question="Well?")])


def asking(name: str, other: Agent[Any, Any] | None, model: Any, way: Any, **options: Any) -> Agent[Any, Any]:
    """An agent that asks another one, in a tool."""
    agent: Agent[Any, Any] = Agent(model, name=name, instructions=name, **options)
    if other is not None:

        @agent.tool_plain
        async def ask(question: str) -> str:
            """Asks."""
            return str(await way(other, question))

    return agent


@pytest.mark.sees("sub-agents")
@pytest.mark.parametrize("own", ["none", "record", "capability"])
@pytest.mark.parametrize("way", WAYS)
def test_three_deep(way: Any, own: str, recorded: Recorded) -> None:
    """With a hook of their own or without: agents inside a recorded run are its children."""

    async def scenario(model: Any) -> Trajectory:
        options = {"capabilities": [RolloutCapability(engine="vllm")]} if own == "capability" else {}
        inner = asking("inner", None, model, way, **options)
        middle = asking("middle", inner, model, way, **options)
        outer = asking("outer", middle, model, way)
        if own == "record":
            record(middle, engine="vllm")
            record(inner, engine="vllm")
        with rt.trajectory("task") as trajectory:
            assert await way(record(outer, engine="vllm"), "Well?") == "outer answers"
        return trajectory

    with ScriptedServer(delegating) as server:
        with_model(server, scenario)
    everything = by_name(recorded.all())
    assert_all_served(server, list(everything.values()))
    outer, middle, inner = (everything[name] for name in ("task", "middle", "inner"))
    assert len(everything) == 3
    assert [(one.parent_id, one.parent_step_id) for one in (outer, middle, inner)] == [
        (None, None),
        (outer.id, outer.steps[0].id),
        (middle.id, middle.steps[0].id),
    ]
    assert {one.episode_id for one in everything.values()} == {outer.episode_id}
    assert [len(one.steps) for one in (outer, middle, inner)] == [2, 2, 1]
    assert [one.result for one in outer.tool_runs] == ["middle answers"]
    assert [one.result for one in middle.tool_runs] == ["inner answers"]


def test_outside_a_recorded_run_nothing_is_added(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        record(Agent(TestModel()))
        with rt.trajectory() as trajectory:
            await agent_of(model, is_recorded=False).run("Add.")
        return trajectory

    with ScriptedServer(adding(0)) as server:
        trajectory = with_model(server, scenario)
    assert trajectory.steps == []


def test_agents_in_validators_and_processors(recorded: Recorded) -> None:
    """What runs in the agent's own hooks runs inside it, too."""

    async def scenario(model: Any) -> None:
        judge = asking("judge", None, model, None)
        agent = record(asking("judged", None, model, None), engine="vllm")

        @agent.output_validator
        async def ask_judge(output: str) -> str:
            return str((await judge.run(output)).output)

        assert (await agent.run("Well?")).output == "judge answers"

    with ScriptedServer(delegating) as server:
        with_model(server, scenario)
    everything = by_name(recorded.all())
    assert_all_served(server, list(everything.values()))
    judged, judge = everything["judged"], everything["judge"]
    assert (judge.parent_id, judge.parent_step_id) == (judged.id, judged.steps[0].id)
    assert [step.status for step in judged.steps] == ["ok"]


def test_calls_of_a_model_in_a_tool(recorded: Recorded) -> None:
    """A model that a tool calls itself is recorded; its answer is no turn of the agent's."""

    async def scenario(model: Any) -> Trajectory:
        agent: Agent[Any, Any] = agent_of(model, tools=[], name="outer")

        @agent.tool
        async def ask(ctx: RunContext[Any], question: str) -> str:
            """Asks the model."""
            answer = await model_request(ctx.model, [ModelRequest.user_text_prompt(question)])  # type: ignore[arg-type]
            return str(answer.text)

        with rt.trajectory() as trajectory:
            await agent.run("Well?")
        return trajectory

    with ScriptedServer(delegating) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [step.status for step in trajectory.steps] == ["ok"] * 3
    assert [(step.metadata or {}).get("run_step") for step in trajectory.steps] == [1, None, 2]
    recorded.keep(trajectory)


def test_the_reader_of_a_stream_runs_another_agent(recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        outer, other = agent_of(model, name="outer"), agent_of(model, name="other")
        async with outer.run_stream("Add.") as streamed:
            async for _ in streamed.stream_text(debounce_by=None):
                break
            await other.run("Add.")

    with ScriptedServer("A long answer of many words.", chunk_tokens=1) as server:
        with_model(server, scenario)
    everything = by_name(recorded.all())
    # As in Pydantic AI's own traces, what the block holds is inside the run.
    assert everything["other"].parent_id == everything["outer"].id
    assert [step.status for step in everything["other"].steps] == ["ok"]


def test_a_wrapped_agent(recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        agent = WrapperAgent(agent_of(model, is_recorded=False, name="adder"))
        assert record(agent, engine="vllm") is agent
        await run_stream(agent, "Add.")

    with ScriptedServer(adding(1)) as server:
        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert_served(server, trajectory.steps)


def test_two_capabilities_record_once(recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        capabilities = [RolloutCapability(engine="vllm"), RolloutCapability()]
        agent = agent_of(model, name="adder", capabilities=capabilities)
        record(record(agent, engine="vllm"))
        await agent.run("Add.", capabilities=[RolloutCapability()])

    with ScriptedServer(adding(2)) as server:
        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert_served(server, trajectory.steps)
    assert len(trajectory.tool_runs) == 2


def test_what_cannot_be_recorded() -> None:
    with pytest.raises(TypeError, match=r"record\(\) needs an agent or a model of Pydantic AI, got 'gpt'"):
        record("gpt")
    for wrong in (lambda: RolloutCapability(engine="wllm"), lambda: record(Agent(TestModel()), engine="wllm")):
        with pytest.raises(ValueError, match="wllm"):
            wrong()
