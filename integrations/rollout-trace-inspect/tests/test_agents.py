"""Sub-agents as children, and tools: at once, failing, cancelled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai.agent import Agent, AgentState, agent, as_tool, handoff, react, run
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, includes, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, tool
from inspect_ai.util import collect
from oracle import assert_all_served, assert_served

from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer

from .harness import Evals, add, adding_task, children, fail, recorded_model, results, roots


def tools_of(request: dict[str, Any]) -> set[str]:
    return {one["function"]["name"] for one in request.get("tools", ())}


def manager_and_helper(helper_tool: str) -> Any:
    """The manager asks the helper, which adds; then both say what they have."""

    def script(request: dict[str, Any]) -> Reply:
        if helper_tool in tools_of(request):
            asked = any(helper_tool in str(message.get("tool_calls")) for message in request["messages"])
            if asked:
                return Reply("The manager is done.")
            arguments = {"input": "2 and 3?"} if helper_tool == "helper" else {}
            return Reply("Asking.", tool_calls=[(helper_tool, json.dumps(arguments))])
        if results(request)[-1:] == ["The sum is 5."] or "add" not in tools_of(request):
            return Reply("It is 5.")
        return Reply("Adding.", tool_calls=[("add", '{"a": 2, "b": 3}')])

    return script


def helper() -> Agent:
    return react(name="helper", description="Adds.", prompt=None, tools=[add()], submit=False)


def assert_tree(found: list[Trajectory], tool_name: str, turns: int) -> Trajectory:
    """The manager's trajectory of so many turns and, inside its tool, the helper's. Gives the manager's."""
    (root,) = roots(found)
    (child,) = children(found, root)
    assert (child.name, child.status, child.episode_id) == ("helper", "completed", root.episode_id)
    assert child.parent_step_id == root.steps[0].id
    assert [step.agent for step in root.steps] == ["manager"] * turns
    assert root.name == "manager"
    assert [step.agent for step in child.steps] == ["helper"] * 2
    assert [(run.name, run.step_id) for run in root.tool_runs] == [(tool_name, root.steps[0].id)]
    assert [(run.name, run.result) for run in child.tool_runs] == [("add", "The sum is 5.")]
    return root


@pytest.mark.sees("sub-agents", "as tools, by handoff, run by a solver or another agent")
def test_an_agent_as_a_tool(evals: Evals) -> None:
    manager = react(name="manager", prompt=None, tools=[as_tool(helper())], submit=False)
    with ScriptedServer(manager_and_helper("helper")) as server:
        found = evals.trajectories(evals.run(adding_task(solver=manager), recorded_model(server)))
        assert_all_served(server, found)
    root = assert_tree(found, "helper", turns=2)
    assert root.tool_runs[0].result == "It is 5."


def test_a_handoff(evals: Evals) -> None:
    manager = react(name="manager", prompt=None, tools=[handoff(helper())], submit=False)
    with ScriptedServer(manager_and_helper("transfer_to_helper")) as server:
        found = evals.trajectories(evals.run(adding_task(solver=manager), recorded_model(server)))
        assert_all_served(server, found)
    # The manager ends where the helper has answered.
    root = assert_tree(found, "transfer_to_helper", turns=1)
    assert root.tool_runs[0].result == "Successfully transferred to helper."


def test_an_agent_that_another_runs(evals: Evals) -> None:
    @agent
    def manager() -> Agent:
        async def execute(state: AgentState) -> AgentState:
            state.output = await get_model().generate(state.messages)
            return await run(helper(), "2 and 3?")

        return execute

    def script(request: dict[str, Any]) -> Reply:
        return Reply("On it.") if not tools_of(request) else manager_and_helper("none")(request)

    with ScriptedServer(script) as server:
        found = evals.trajectories(evals.run(adding_task(solver=manager()), recorded_model(server)))
        assert_all_served(server, found)
    (root,) = roots(found)
    (child,) = children(found, root)
    assert [(one.name, len(one.steps)) for one in (root, child)] == [("manager", 1), ("helper", 2)]
    assert child.parent_step_id == root.steps[0].id


def test_agents_that_run_at_once(evals: Evals) -> None:
    @agent
    def manager() -> Agent:
        async def execute(state: AgentState) -> AgentState:
            await collect(*(run(helper(), f"{number}?", name=f"helper {number}") for number in range(4)))
            return state

        return execute

    with ScriptedServer(manager_and_helper("none")) as server:
        found = evals.trajectories(evals.run(adding_task(solver=manager()), recorded_model(server)))
        assert_all_served(server, found)
    (root,) = roots(found)
    assert len(root.steps) == 0
    below = sorted(children(found, root), key=lambda one: one.name)
    for number, child in enumerate(below):
        assert (child.name, len(child.steps), len(child.tool_runs)) == (f"helper {number}", 2, 1)
        for step in child.steps:
            assert step.messages is not None
            assert step.messages[0]["content"] == f"{number}?"
            assert step.agent == child.name


def test_the_agents_of_a_solver_record_into_the_sample(evals: Evals) -> None:
    @solver
    def both() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            await run(helper(), "first")
            await run(react(name="second", prompt=None, submit=False), "second")
            return await generate(state)

        return solve

    with ScriptedServer(manager_and_helper("none")) as server:
        (found,) = evals.trajectories(evals.run(adding_task(solver=both()), recorded_model(server)))
    assert [step.agent for step in found.steps][:3] == ["helper", "helper", "second"]


@pytest.mark.sees("parallel tools")
def test_tools_that_run_at_once(evals: Evals) -> None:
    def script(request: dict[str, Any]) -> Reply:
        if results(request):
            return Reply("Known.")
        return Reply(None, tool_calls=[("add", json.dumps({"a": number, "b": 1})) for number in range(4)])

    with ScriptedServer(script) as server:
        (found,) = evals.trajectories(evals.run(adding_task(), recorded_model(server)))
        assert_served(server, found.steps)
    assert found.steps[0].completion is not None
    asked = [str(call.id) for call in found.steps[0].completion.tool_calls]
    assert sorted(asked) == sorted(str(run.tool_call_id) for run in found.tool_runs)
    assert sorted(str(run.result) for run in found.tool_runs) == [f"The sum is {number}." for number in (1, 2, 3, 4)]
    for tool_run in found.tool_runs:
        assert isinstance(tool_run.arguments, dict)
        assert tool_run.result == f"The sum is {tool_run.arguments['a'] + 1}."
        assert tool_run.step_id == found.steps[0].id
        assert tool_run.duration is not None


@tool
def broken() -> Tool:
    async def execute() -> str:
        """Raises what Inspect does not take for an error of a tool."""
        raise ZeroDivisionError("by zero")

    return execute


@tool
def slow() -> Tool:
    async def execute() -> str:
        """Takes too long."""
        raise TimeoutError

    return execute


def calling(name: str, arguments: str = "{}") -> Any:
    def script(request: dict[str, Any]) -> Reply:
        return Reply("Known.") if results(request) else Reply(None, tool_calls=[(name, arguments)])

    return script


@pytest.mark.sees("tool errors")
@pytest.mark.parametrize(
    ("name", "arguments", "error_type", "said"),
    [
        ("fail", '{"reason": "no luck"}', "ToolError", "no luck"),
        ("slow", "{}", "TimeoutError", ""),
        ("unknown", "{}", "parsing", "Tool unknown not found"),
        ("add", '{"a": "one"}', "parsing", ""),
    ],
)
def test_a_tool_that_fails(evals: Evals, name: str, arguments: str, error_type: str, said: str) -> None:
    task = adding_task(solver=react(tools=[add(), fail(), slow()], submit=False))
    with ScriptedServer(calling(name, arguments)) as server:
        (found,) = evals.trajectories(evals.run(task, recorded_model(server)))
        assert_served(server, found.steps)
    (tool_run,) = found.tool_runs
    assert tool_run.error is not None
    assert (tool_run.name, tool_run.error.type, tool_run.result) == (name, error_type, None)
    assert said in tool_run.error.message
    assert tool_run.step_id == found.steps[0].id
    assert (found.status, len(found.sequences())) == ("completed", 1)


def test_a_tool_that_ends_the_sample(evals: Evals) -> None:
    task = adding_task(solver=react(tools=[broken()], submit=False))
    with ScriptedServer(calling("broken")) as server:
        log = evals.run(task, recorded_model(server), fail_on_error=False)
        (found,) = evals.trajectories(log)
    assert log.samples is not None
    assert log.samples[0].error is not None
    assert found.error is not None
    assert (found.status, found.error.type, found.error.message) == ("failed", "ZeroDivisionError", "by zero")
    (tool_run,) = found.tool_runs
    assert tool_run.error is not None
    assert (tool_run.error.type, tool_run.error.message, tool_run.result) == ("ZeroDivisionError", "by zero", None)
    assert (found.reward, found.rewards) == (None, None)


def test_the_first_scorer_gives_no_score(evals: Evals) -> None:
    @scorer(metrics=[accuracy()])
    def undecided() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score | None:
            return None

        return score

    with ScriptedServer("known") as server:
        task = adding_task(scorer=[undecided(), includes()])
        (found,) = evals.trajectories(evals.run(task, recorded_model(server)))
    assert (found.reward, found.rewards) == (None, {"includes": 1.0})


def test_scores_of_many_values(evals: Evals) -> None:
    @scorer(metrics=[accuracy()])
    def parts() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            return Score(value={"right": "C", "speed": 0.25, "label": "blue"})

        return score

    @scorer(metrics=[accuracy()])
    def word() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            return Score(value="maybe")

        return score

    task = Task(dataset=[Sample(input=[ChatMessageUser(content="Hello")])], scorer=[parts(), word()])
    with ScriptedServer("Hi") as server:
        (found,) = evals.trajectories(evals.run(task, recorded_model(server)))
    assert (found.reward, found.rewards) == (None, {"parts/right": 1.0, "parts/speed": 0.25})
    assert found.metadata is not None
    assert found.metadata["scores"] == {"parts/label": "blue", "word": "maybe"}
