"""Several agents: as tools, in graphs, in swarms."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from strands import tool
from strands.multiagent import GraphBuilder, Swarm

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_strands import RolloutHookProvider

from .harness import Recorded, Served, adding, agent_of, openai_model, results


def system_of(request: dict[str, Any]) -> str:
    return str(request["messages"][0]["content"])


def by_system(**scripts: Any) -> Any:
    """A model that follows the script named by the system prompt."""
    return lambda request: scripts[system_of(request)](request)


def assert_each_has_its_own(server: ScriptedServer, trajectories: list[Trajectory]) -> None:
    """Each trajectory has exactly the calls that were made with its name as the system prompt, in order."""
    server.wait_idle()
    found = {trajectory.name: trajectory for trajectory in trajectories}
    expected: dict[str, list[Served]] = {}
    for record in server.requests:
        expected.setdefault(system_of(record.json), []).append(Served(record))
    assert {name for name, trajectory in found.items() if trajectory.steps} == set(expected)
    for name, records in expected.items():
        assert len(found[name].steps) == len(records)
        for served, step in zip(records, found[name].steps, strict=True):
            served.assert_is(step)
            assert step.agent == name


def delegating(request: dict[str, Any]) -> Reply:
    done = len(results(request))
    return Reply(tool_calls=[("adder", json.dumps({"input": "Add."}))]) if done == 0 else Reply("The adder knows.")


@pytest.mark.sees("sub-agents", "agents as tools")
def test_an_agent_as_a_tool(recorded: Recorded) -> None:
    with ScriptedServer(by_system(boss=delegating, adder=adding(2))) as server:
        model = openai_model(server)
        adder = agent_of(model, name="adder", system_prompt="adder", is_recorded=False)
        boss = agent_of(model, name="boss", system_prompt="boss", tools=[adder.as_tool()])
        with rt.trajectory("boss") as trajectory:
            boss("Go.")
    parent, child = recorded.all()
    assert_each_has_its_own(server, [parent, child])
    assert (parent.id, child.parent_id, child.episode_id) == (trajectory.id, parent.id, parent.episode_id)
    assert child.parent_step_id == parent.steps[0].id
    assert [run.name for run in child.tool_runs] == ["add", "add"]
    (run,) = parent.tool_runs
    assert (run.name, run.arguments, run.result) == ("adder", {"input": "Add."}, "The sum is known.\n")
    assert [len(one.sequences()) for one in (child, parent)] == [1, 1]
    recorded.keep(trajectory)


def test_a_sub_agent_that_fails(recorded: Recorded) -> None:
    def broken(request: dict[str, Any]) -> Fault:
        return Fault(status=500)

    with ScriptedServer(by_system(boss=delegating, adder=broken)) as server:
        model = openai_model(server)
        adder = agent_of(model, name="adder", system_prompt="adder", is_recorded=False)
        with rt.trajectory("boss"):
            agent_of(model, name="boss", system_prompt="boss", tools=[adder])("Go.")
    parent, child = recorded.all()
    assert (child.status, parent.status) == ("failed", "completed")
    assert child.error is not None
    assert child.error.type == "InternalServerError"
    (run,) = parent.tool_runs
    assert run.error is not None
    assert "Agent error" in run.error.message


def test_an_agent_inside_a_tool(recorded: Recorded) -> None:
    """The tool is the user's own function; the agent in it has a hook of its own."""
    with ScriptedServer(by_system(boss=delegating, adder=adding(1))) as server:
        model = openai_model(server)

        @tool(name="adder")
        def ask_adder(input: str) -> str:
            """Adds."""
            return str(agent_of(model, name="adder", system_prompt="adder")(input))

        with rt.trajectory("boss"):
            agent_of(model, name="boss", system_prompt="boss", tools=[ask_adder])("Go.")
    parent, child = recorded.all()
    assert_each_has_its_own(server, [parent, child])
    assert (child.parent_id, child.parent_step_id) == (parent.id, parent.steps[0].id)


def answering(text: str) -> Any:
    return lambda request: Reply(text)


@pytest.mark.sees("sub-agents", "nodes of graphs and swarms")
@pytest.mark.parametrize("around", [True, False])
def test_a_graph(recorded: Recorded, around: bool) -> None:
    """Two nodes at once, then one; a nested graph among them."""
    provider = RolloutHookProvider(engine="vllm")
    names = ("first", "left", "right", "last")
    with ScriptedServer(by_system(**{name: adding(1) for name in names})) as server:
        model = openai_model(server)
        agents = {name: agent_of(model, name=name, system_prompt=name, is_recorded=False) for name in names}
        nested = GraphBuilder().set_max_node_executions(10)
        nested.add_node(agents["right"], "right")
        builder = GraphBuilder().set_max_node_executions(10)
        nodes: dict[str, Any] = {**agents, "right": nested.build()}
        for name in names:
            builder.add_node(nodes[name], name)
        for begin, end in [("first", "left"), ("first", "right"), ("left", "last"), ("right", "last")]:
            builder.add_edge(begin, end)
        builder.set_graph_id("team").set_hook_providers([provider])
        graph = builder.build()
        if around:
            with rt.trajectory("team"):
                graph("Go.")
                rt.reward(0.5, children=True)
        else:
            graph("Go.")
    found = recorded.all()
    assert {one.reward for one in found} == {0.5 if around else None}
    assert_each_has_its_own(server, found)
    trajectories = {trajectory.name: trajectory for trajectory in found}
    team = trajectories["team"]
    assert (team.parent_id, team.status, len(found)) == (None, "completed", 6)
    inner = trajectories["right"]
    assert {one.parent_id for one in found if one not in (team, inner)} == {team.id}
    assert inner.parent_id == next(one.id for one in found if one.name == "default_graph")
    assert {one.episode_id for one in found} == {team.episode_id}


def test_a_graph_whose_node_fails(recorded: Recorded) -> None:
    with ScriptedServer(Fault(status=500)) as server:
        agent = agent_of(openai_model(server), name="broken", system_prompt="broken", is_recorded=False)
        builder = GraphBuilder().set_max_node_executions(10)
        builder.add_node(agent, "broken")
        graph = RolloutHookProvider(engine="vllm").attach(builder.build())
        with pytest.raises(Exception, match="500"):
            graph("Go.")
    team, node = recorded.all()
    assert (node.status, team.status) == ("failed", "failed")
    assert node.parent_id == team.id


def test_what_the_caller_is_handling_is_no_failure_of_a_graph(recorded: Recorded) -> None:
    async def run(graph: Any) -> None:
        try:
            raise KeyError("the caller's")
        except KeyError:
            await graph.invoke_async("Go.")

    with ScriptedServer("fine") as server:
        builder = GraphBuilder().set_max_node_executions(10)
        builder.add_node(agent_of(openai_model(server), name="node", is_recorded=False), "node")
        asyncio.run(run(RolloutHookProvider(engine="vllm").attach(builder.build())))
    assert [(one.status, one.error) for one in recorded.all()] == [("completed", None)] * 2


def test_a_swarm(recorded: Recorded) -> None:
    def first(request: dict[str, Any]) -> Reply:
        if results(request):
            return Reply("handed over")
        return Reply(tool_calls=[("handoff_to_agent", json.dumps({"agent_name": "second", "message": "Yours."}))])

    with ScriptedServer(by_system(first=first, second=adding(1))) as server:
        model = openai_model(server)
        agents = [agent_of(model, name=name, system_prompt=name, is_recorded=False) for name in ("first", "second")]
        swarm = Swarm(agents, id="swarm", hooks=[RolloutHookProvider(engine="vllm")])
        with rt.trajectory("swarm"):
            swarm("Go.")
    found = recorded.all()
    assert_each_has_its_own(server, found)
    trajectories = {trajectory.name: trajectory for trajectory in found}
    assert trajectories["first"].parent_id == trajectories["second"].parent_id == trajectories["swarm"].id
    assert trajectories["first"].tool_runs[0].name == "handoff_to_agent"


def test_only_what_has_hooks_can_be_attached() -> None:
    with pytest.raises(TypeError, match="attach\\(\\) needs an agent, a graph or a swarm of Strands, got 'adder'"):
        RolloutHookProvider().attach("adder")
