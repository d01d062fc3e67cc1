"""Several agents in one tree of trajectories: transfer, workflow agents, graphs, agents and runners inside tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, Workflow
from oracle import Recorded, assert_all_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_google_adk import RolloutPlugin, record

from .harness import SSE, agent_of, by_system, litellm, once, results, run, runner_of, session_of, text_of


def by_name(trajectories: list[Trajectory]) -> dict[str, Trajectory]:
    found = {str(trajectory.name): trajectory for trajectory in trajectories}
    assert len(found) == len(trajectories)
    return found


def assert_child(child: Trajectory, parent: Trajectory, step: int | None) -> None:
    """``step``: the number of the parent's step that led to the child; None if none did."""
    assert (child.parent_id, child.episode_id) == (parent.id, parent.episode_id)
    assert child.parent_step_id == (None if step is None else parent.steps[step].id)


def transferring(to: str) -> Callable[[list[Any]], Reply]:
    return lambda messages: Reply(tool_calls=[("transfer_to_agent", json.dumps({"agent_name": to}))])


def team(server: ScriptedServer) -> LlmAgent:
    """A coordinator with two specialists, who can transfer to each other."""
    model = litellm(server)
    first, second = agent_of(model, "first"), agent_of(model, "second")
    return agent_of(model, "boss", tools=[], sub_agents=[first, second])


async def in_trajectory(runner: Any, **options: Any) -> Trajectory:
    with rt.trajectory("task") as trajectory:
        await run(runner, **options)
    return trajectory


@pytest.mark.sees("sub-agents")
@pytest.mark.parametrize("is_inside", [True, False])
def test_transfer(recorded: Recorded, is_inside: bool) -> None:
    script = by_system(boss=transferring("first"), first=once("add", a=1, b=2))
    with ScriptedServer(script) as server:
        runner = runner_of(team(server))
        asyncio.run(in_trajectory(runner) if is_inside else run(runner))
        boss, first = recorded.all()
        assert_all_served(server, [boss, first])
    assert (boss.name, first.name) == ("task" if is_inside else "boss", "first")
    assert (boss.status, first.status) == ("completed", "completed")
    assert (len(boss.steps), len(first.steps)) == (1, 2)
    assert_child(first, boss, 0)
    assert [step.agent for step in (*boss.steps, *first.steps)] == ["boss", "first", "first"]
    assert [tool_run.name for tool_run in boss.tool_runs] == ["transfer_to_agent"]
    assert [tool_run.name for tool_run in first.tool_runs] == ["add"]


def test_transfer_on_to_a_peer_and_back(recorded: Recorded) -> None:
    """Each is the child of the one that transferred to it; back at the root, its run goes on."""

    def boss(messages: list[Any]) -> Reply:
        return (
            Reply("all done") if "second" in str(messages) and "SECOND" in str(messages) else transferring("first")([])
        )

    def second(messages: list[Any]) -> Reply:
        return Reply("SECOND", tool_calls=[("transfer_to_agent", '{"agent_name": "boss"}')])

    with ScriptedServer(by_system(boss=boss, first=transferring("second"), second=second)) as server:
        events = asyncio.run(run(runner_of(team(server))))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    assert text_of(events) == "all done"
    assert {name: len(one.steps) for name, one in found.items()} == {"boss": 2, "first": 1, "second": 1}
    assert_child(found["first"], found["boss"], 0)
    assert_child(found["second"], found["first"], 0)
    assert {one.status for one in found.values()} == {"completed"}


def test_transfer_inside_a_workflow_agent(recorded: Recorded) -> None:
    """There ADK runs the other agent inside the one that transfers."""
    script = by_system(boss=transferring("first"), first=Reply("done"))
    with ScriptedServer(script) as server:
        asyncio.run(run(runner_of(SequentialAgent(name="line", sub_agents=[team(server)]))))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    assert {name: len(one.steps) for name, one in found.items()} == {"line": 0, "boss": 1, "first": 1}
    assert_child(found["boss"], found["line"], None)
    assert_child(found["first"], found["boss"], 0)


def test_a_sequence(recorded: Recorded) -> None:
    with ScriptedServer(by_system(one=once("add", a=1, b=2), two=Reply("two"))) as server:
        model = litellm(server)
        line = SequentialAgent(name="line", sub_agents=[agent_of(model, "one"), agent_of(model, "two")])
        asyncio.run(run(runner_of(line)))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    assert {name: len(one.steps) for name, one in found.items()} == {"line": 0, "one": 2, "two": 1}
    assert_child(found["one"], found["line"], None)
    assert_child(found["two"], found["line"], None)
    assert len(found["one"].tool_runs) == 1


@pytest.mark.parametrize("is_streamed", [True, False])
def test_parallel_branches_do_not_mix(recorded: Recorded, is_streamed: bool) -> None:
    """All are in their first answer at the same time."""
    from rollout_trace.testing import Fault

    names = [f"branch{n}" for n in range(4)]

    def answering(name: str) -> Callable[[list[Any]], Any]:
        call = once("add", a=len(name), b=int(name[-1]))
        return lambda messages: call(messages) if results(messages) else Fault(call(messages), hold_after=1)

    async def main(server: ScriptedServer) -> None:
        branches: list[Any] = [agent_of(litellm(server), name) for name in names]
        runner = runner_of(ParallelAgent(name="fan", sub_agents=branches))
        running = asyncio.ensure_future(run(runner, config=SSE if is_streamed else None))
        await asyncio.to_thread(server.wait_held, 4)
        server.release()
        await running

    with ScriptedServer(by_system(**{name: answering(name) for name in names})) as server:
        asyncio.run(main(server))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    fan = found.pop("fan")
    assert sorted(found) == names
    for name, branch in found.items():
        assert_child(branch, fan, None)
        assert [step.agent for step in branch.steps] == [name, name]
        assert [one.result for one in branch.tool_runs] == [7 + int(name[-1])]
        assert branch.tool_runs[0].step_id == branch.steps[0].id
        assert all(name in json.dumps(step.messages) for step in branch.steps)


def test_a_loop(recorded: Recorded) -> None:
    """Each pass is a run of its own."""
    from google.adk.tools.exit_loop_tool import exit_loop

    asked: list[int] = []

    def script(messages: list[Any]) -> Reply:
        asked.append(1)
        return Reply("once more") if len(asked) < 3 else Reply(tool_calls=[("exit_loop", "{}")])

    with ScriptedServer(by_system(writer=script)) as server:
        writer = agent_of(litellm(server), "writer", tools=[exit_loop])
        asyncio.run(run(runner_of(LoopAgent(name="loop", sub_agents=[writer], max_iterations=5))))
        loop, *passes = sorted(recorded.all(), key=lambda one: (one.name, one.started_at))
        assert_all_served(server, passes)
    assert [one.name for one in passes] == ["writer"] * 3
    assert [len(one.steps) for one in passes] == [1, 1, 1]
    for one in passes:
        assert_child(one, loop, None)
    assert [run.name for run in passes[2].tool_runs] == ["exit_loop"]


@pytest.mark.parametrize("include_plugins", [True, False])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_agent_as_a_tool(recorded: Recorded, include_plugins: bool, is_streamed: bool) -> None:
    """ADK runs it with a runner of its own, which has the plugins or not."""
    script = by_system(boss=once("helper", request="Add."), helper=once("add", a=1, b=2))
    with ScriptedServer(script) as server:
        helper = agent_of(litellm(server), "helper")
        boss = agent_of(litellm(server), "boss", tools=[AgentTool(helper, include_plugins=include_plugins)])
        app = App(name="tests", root_agent=boss, plugins=[RolloutPlugin(engine="vllm")])
        asyncio.run(run(InMemoryRunner(app=app), config=SSE if is_streamed else None))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    assert {name: len(one.steps) for name, one in found.items()} == {"boss": 2, "helper": 2}
    assert_child(found["helper"], found["boss"], 0)
    (tool_run,) = found["boss"].tool_runs
    assert (tool_run.name, tool_run.arguments, tool_run.result) == ("helper", {"request": "Add."}, "done")
    assert [one.result for one in found["helper"].tool_runs] == [3]


def test_two_agents_as_tools_at_once(recorded: Recorded) -> None:
    def boss(messages: list[Any]) -> Reply:
        calls = [(name, '{"request": "Add."}') for name in ("one", "two")]
        return Reply("done") if results(messages) else Reply(tool_calls=calls)

    with ScriptedServer(by_system(boss=boss, one=once("add", a=1, b=1), two=once("add", a=2, b=2))) as server:
        model = litellm(server)
        tools: list[Any] = [AgentTool(agent_of(model, name)) for name in ("one", "two")]
        asyncio.run(run(runner_of(agent_of(model, "boss", tools=tools))))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    for name, result in (("one", 2), ("two", 4)):
        assert_child(found[name], found["boss"], 0)
        assert [one.result for one in found[name].tool_runs] == [result]


def test_a_runner_that_a_tool_makes(recorded: Recorded) -> None:
    """Nothing of it was passed to ``record``."""

    with ScriptedServer(by_system(boss=once("ask", question="Add."), helper=once("add", a=1, b=2))) as server:

        async def ask(question: str) -> str:
            """Asks."""
            helper = agent_of(litellm(server), "helper")
            return text_of(await run(runner_of(helper, is_recorded=False), question))

        asyncio.run(run(runner_of(agent_of(litellm(server), "boss", tools=[ask]))))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    assert_child(found["helper"], found["boss"], 0)
    assert [one.result for one in found["boss"].tool_runs] == ["done"]


def test_a_graph(recorded: Recorded) -> None:
    """A workflow is a trajectory; the agents among its nodes, and the workflows, are its children."""

    def shout(node_input: Any) -> str:
        return str(node_input).upper()

    with ScriptedServer(by_system(one=once("add", a=1, b=2), two=Reply("two"), three=Reply("three"))) as server:
        one, two, three = (agent_of(litellm(server), name) for name in ("one", "two", "three"))
        inner = Workflow(name="inner", edges=[(START, two, three)])
        graph = Workflow(name="graph", edges=[(START, one, shout, inner)])
        asyncio.run(run(record(InMemoryRunner(node=graph, app_name="tests"), engine="vllm")))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    sizes = {name: len(one.steps) for name, one in found.items()}
    assert sizes == {"graph": 0, "one": 2, "inner": 0, "two": 1, "three": 1}
    for child, parent in (("one", "graph"), ("inner", "graph"), ("two", "inner"), ("three", "inner")):
        assert_child(found[child], found[parent], None)


def test_an_agent_that_runs_in_the_place_of_a_tool(recorded: Recorded) -> None:
    """A sub-agent in the mode ``single_turn`` is offered as a tool and runs in the parent's session."""
    script = by_system(boss=once("helper", request="Add."), helper=once("add", a=1, b=2))
    with ScriptedServer(script) as server:
        helper = agent_of(litellm(server), "helper", mode="single_turn", description="Helps.")
        boss = agent_of(litellm(server), "boss", tools=[], sub_agents=[helper])
        asyncio.run(run(runner_of(boss)))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    assert {name: len(one.steps) for name, one in found.items()} == {"boss": 2, "helper": 2}
    assert_child(found["helper"], found["boss"], 0)


def test_a_task_that_is_delegated(recorded: Recorded) -> None:
    """ADK ends the boss' loop for the sub-agent's, and begins it anew: one trajectory of the boss."""

    def helper(messages: list[Any]) -> Reply:
        return Reply(tool_calls=[("finish_task", '{"result": "3"}')])

    with ScriptedServer(by_system(boss=once("helper", request="Add."), helper=helper)) as server:
        model = litellm(server)
        boss = agent_of(model, "boss", tools=[], sub_agents=[agent_of(model, "helper", mode="task", description="H.")])
        asyncio.run(run(runner_of(boss)))
        found = by_name(recorded.all())
        assert_all_served(server, list(found.values()))
    assert {name: len(one.steps) for name, one in found.items()} == {"boss": 2, "helper": 1}
    assert_child(found["helper"], found["boss"], 0)


def test_an_agent_of_the_users_own_class(recorded: Recorded) -> None:
    class Twice(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> Any:
            for _ in range(2):
                async for event in self.sub_agents[0].run_async(ctx):
                    yield event

    with ScriptedServer(by_system(one=Reply("hello"))) as server:
        asyncio.run(run(runner_of(Twice(name="twice", sub_agents=[agent_of(litellm(server), "one")]))))
        twice, *passes = sorted(recorded.all(), key=lambda one: str(one.name), reverse=True)
        assert_all_served(server, passes)
    assert [(one.name, one.parent_id) for one in passes] == [("one", twice.id)] * 2


@pytest.mark.parametrize("what", ["runner", "agent", "app", "plugin", "sub-agent"])
def test_what_can_be_recorded(recorded: Recorded, what: str) -> None:
    with ScriptedServer(by_system(line=Reply("x"), one=once("add", a=1, b=2))) as server:
        one = agent_of(litellm(server), "one")
        line = SequentialAgent(name="line", sub_agents=[one])
        plugins: list[Any] = [RolloutPlugin(engine="vllm")] if what == "plugin" else []
        app = App(name="tests", root_agent=line, plugins=plugins)
        runner = InMemoryRunner(app=app)
        given: Any = {"runner": runner, "agent": line, "app": app, "sub-agent": one}.get(what)
        if given is not None:
            assert record(given, engine="vllm") is given
            assert record(given, engine="vllm") is given
        trajectory = asyncio.run(in_trajectory(runner))
        found = [one for one in recorded.all() if one.steps]
        assert_all_served(server, found)
    (one_,) = found
    if what == "sub-agent":
        assert one_.id == trajectory.id
    else:
        assert (one_.name, one_.parent_id) == ("one", trajectory.id)
    assert len(one_.tool_runs) == 1


def test_wrong_objects_raise() -> None:
    for wrong in (None, "agent", litellm, object()):
        with pytest.raises(TypeError, match=r"record\(\) needs a Runner, an App, an agent or a Workflow of ADK, got"):
            record(wrong)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="'vlm' is not known"):
        RolloutPlugin(engine="vlm")


def test_an_agent_that_is_not_recorded_is_not(recorded: Recorded) -> None:
    """Though another one in the process is, and shares the model."""
    with ScriptedServer("hello") as server:
        model = litellm(server)
        asyncio.run(run(runner_of(agent_of(model))))
        asyncio.run(run(runner_of(agent_of(model), is_recorded=False)))
        assert ["logprobs" in one.json for one in server.requests] == [True, False]
    (trajectory,) = recorded.all()
    assert len(trajectory.steps) == 1
    assert rt.orphans() == []


def test_a_session_over_several_runs(recorded: Recorded) -> None:
    """Inside one trajectory, its runs are one conversation; without, each is a trajectory."""

    async def main(runner: Any) -> Trajectory:
        session = await session_of(runner)
        with rt.trajectory("talk") as trajectory:
            for question in ("one", "two", "three"):
                await run(runner, question, session=session)
        await run(runner, "four", session=session)
        return trajectory

    with ScriptedServer("hello") as server:
        talk = asyncio.run(main(runner_of(agent_of(litellm(server)))))
        talk_, last = recorded.all()
        assert_all_served(server, [talk_, last])
    assert (len(talk.steps), len(talk.sequences()), last.name) == (3, 1, "adder")
    recorded.keep(talk)


def test_a_session_that_goes_on_with_the_agent_it_was_transferred_to(recorded: Recorded) -> None:
    def first(messages: list[Any]) -> Reply:
        return Reply(f"answer {sum(message['role'] == 'user' for message in messages)}")

    async def main(runner: Any) -> None:
        session = await session_of(runner)
        for question in ("one", "two"):
            await run(runner, question, session=session)

    with ScriptedServer(by_system(boss=transferring("first"), first=first)) as server:
        asyncio.run(main(runner_of(team(server))))
        boss, first_, again, first_again = recorded.all()
        assert_all_served(server, [boss, first_, again, first_again])
    assert [len(one.steps) for one in (boss, first_, again, first_again)] == [1, 1, 0, 1]
    assert_child(first_, boss, 0)
    assert_child(first_again, again, None)
    assert boss.episode_id != again.episode_id
