"""Several agents in one run: handoffs, agents as tools, guardrails; the tree, with tracing switched on and off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    ModelBehaviorError,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    Runner,
    ToolGuardrailFunctionOutput,
    function_tool,
    handoff,
    set_tracing_disabled,
    tool_input_guardrail,
)
from oracle import Recorded, assert_all_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_openai_agents import record

from .harness import WAYS, add, agent_of, calling, chat_model, client_of, results, run, streamed, tools_of


@pytest.fixture(params=[True, False], ids=["traced", "untraced"], autouse=True)
def tracing(request: pytest.FixtureRequest) -> Iterator[None]:
    set_tracing_disabled(not request.param)
    yield
    set_tracing_disabled(False)


def tree(trajectories: list[Trajectory]) -> dict[str, tuple[str | None, int | None]]:
    """For each trajectory the name of its parent, and the index of the parent's step that led to it."""
    by_id = {one.id: one for one in trajectories}
    found: dict[str, tuple[str | None, int | None]] = {}
    for one in trajectories:
        parent = by_id.get(one.parent_id or "")
        at = None if parent is None else [step.id for step in parent.steps].index(one.parent_step_id or "")
        found[one.name] = (None if parent is None else parent.name, at)
    assert len({one.episode_id for one in trajectories}) == 1
    return found


def passing(request: dict[str, Any], messages: list[dict[str, Any]]) -> Reply:
    """Each agent hands off, once, to the next one; the last adds, then answers."""
    offered = tools_of(request)
    for name in ("transfer_to_second", "transfer_to_third"):
        if name in offered:
            return calling(name)
    return Reply("All done.") if len(results(messages)) > 2 else calling("add", a=1, b=2)


@pytest.mark.sees("sub-agents", "agents as tools, handoffs")
@pytest.mark.parametrize("way", WAYS)
def test_handoffs(recorded: Recorded, way: Any) -> None:
    with ScriptedServer(passing) as server:
        model = chat_model(server)
        third = agent_of(model, "third", tools=[add])
        second = agent_of(model, "second", handoffs=[handoff(third)])
        first = record(agent_of(model, "first", handoffs=[second]), engine="vllm")
        result = asyncio.run(way(first))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert result.final_output == "All done."
    assert tree(trajectories) == {"first": (None, None), "second": ("first", 0), "third": ("second", 0)}
    by_name = {one.name: one for one in trajectories}
    assert {one.status for one in trajectories} == {"completed"}
    assert [(step.agent, step.index) for step in by_name["third"].steps] == [("third", 0), ("third", 1)]
    assert [tool.result for tool in by_name["third"].tool_runs] == [3]
    assert by_name["third"].tool_runs[0].step_id == by_name["third"].steps[0].id


@pytest.mark.parametrize("way", [run, streamed])
def test_an_agent_that_takes_over_again_goes_on_in_its_trajectory(recorded: Recorded, way: Any) -> None:
    def script(request: Any, messages: Any) -> Reply:
        if "transfer_to_second" in tools_of(request):
            return Reply("Back again.") if len(results(messages)) == 2 else calling("transfer_to_second")
        return calling("transfer_to_first")

    async def go() -> Trajectory:
        with rt.trajectory("task") as trajectory:
            await way(first)
        return trajectory

    with ScriptedServer(script) as server:
        model = chat_model(server)
        second = agent_of(model, "second")
        first = record(agent_of(model, "first", handoffs=[second]), engine="vllm")
        second.handoffs.append(first)  # added later
        outer = asyncio.run(go())
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert tree(trajectories) == {"task": (None, None), "second": ("task", 0)}
    assert [step.agent for step in outer.steps] == ["first", "first"]


def delegating(request: dict[str, Any], messages: list[dict[str, Any]]) -> Reply:
    """The manager asks two agents at once, one of which asks a third."""
    offered, done = tools_of(request), results(messages)
    if "ask_left" in offered and not done:
        return Reply(None, tool_calls=[("ask_left", '{"input": "left?"}'), ("ask_right", '{"input": "right?"}')])
    if "ask_deep" in offered and not done:
        return calling("ask_deep", input="deep?")
    if "add" in offered and not done:
        return calling("add", a=4, b=5)
    return Reply(f"Answer: {done[-1] if done else 'mine'}")


@pytest.mark.parametrize("way", WAYS)
def test_agents_as_tools_at_any_depth(recorded: Recorded, way: Any) -> None:
    with ScriptedServer(delegating) as server:
        model = chat_model(server)
        deep = agent_of(model, "deep", tools=[add])
        left = agent_of(model, "left", tools=[deep.as_tool("ask_deep", "Deep.")])
        right = agent_of(model, "right", tools=[])
        tools = [left.as_tool("ask_left", "Left."), right.as_tool("ask_right", "Right.")]
        manager = record(agent_of(model, "manager", tools=tools), engine="vllm")
        asyncio.run(way(manager))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert tree(trajectories) == {
        "manager": (None, None),
        "left": ("manager", 0),
        "right": ("manager", 0),
        "deep": ("left", 0),
    }
    by_name = {one.name: one for one in trajectories}
    assert [(tool.name, tool.result) for tool in by_name["deep"].tool_runs] == [("add", 9)]
    assert {tool.name: tool.result for tool in by_name["manager"].tool_runs} == {
        "ask_left": "Answer: Answer: 9",
        "ask_right": "Answer: mine",
    }


def test_agents_that_a_tool_runs_itself(recorded: Recorded) -> None:
    """Streamed and not, in the tool of an agent that was handed to; and a call of the tool's own."""

    def script(request: Any, messages: Any) -> Reply:
        offered = tools_of(request)
        if "transfer_to_worker" in offered:
            return calling("transfer_to_worker")
        if "research" in offered and len(results(messages)) < 2:
            return calling("research")
        return Reply("Said.")

    with ScriptedServer(script) as server:
        model, client = chat_model(server), rt.wrap_openai(client_of(server), engine="vllm")

        @function_tool
        async def research() -> str:
            """Runs others."""
            await Runner.run(agent_of(model, "plain", tools=[]), "plain?")
            result = Runner.run_streamed(agent_of(model, "flowing", tools=[]), "flowing?")
            async for _ in result.stream_events():
                pass
            await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "mine"}])
            with rt.trajectory("apart"):
                await Runner.run(agent_of(model, "inside", tools=[]), "inside?")
            return "found"

        worker = agent_of(model, "worker", tools=[research])
        asyncio.run(run(record(agent_of(model, "first", handoffs=[worker]), engine="vllm")))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    worker_steps = next(one for one in trajectories if one.name == "worker").steps
    assert [step.messages[-1]["content"] for step in worker_steps if step.messages][1] == "mine"
    assert tree(trajectories) == {
        "first": (None, None),
        "worker": ("first", 0),
        "plain": ("worker", 0),
        "flowing": ("worker", 0),
        "apart": ("worker", 0),
    }
    assert [step.agent for one in trajectories if one.name == "apart" for step in one.steps] == ["inside"]


def guarded_agent(server: ScriptedServer, *, trips: bool, in_parallel: bool = True, **options: Any) -> Agent[Any]:
    """Each of its guardrails runs an agent of its own; that of the input also calls a client itself."""
    model, client = chat_model(server), rt.wrap_openai(client_of(server), engine="vllm")

    async def checks_input(context: Any, agent: Any, asked: Any) -> GuardrailFunctionOutput:
        await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "safe?"}])
        result = await Runner.run(agent_of(model, "input checker", tools=[]), "is it safe?")
        return GuardrailFunctionOutput(output_info=result.final_output, tripwire_triggered=trips)

    async def checks_output(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        result = await Runner.run(agent_of(model, "output checker", tools=[]), "is it right?")
        return GuardrailFunctionOutput(output_info=result.final_output, tripwire_triggered=trips)

    inputs = [InputGuardrail(checks_input, name="safety", run_in_parallel=in_parallel)]
    outputs = [OutputGuardrail(checks_output, name="truth")]
    return agent_of(model, "guarded", input_guardrails=inputs, output_guardrails=outputs, tools=[], **options)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_guardrails(recorded: Recorded, way: Any, trained: bool) -> None:
    with ScriptedServer("Fine.") as server:
        agent = record(guarded_agent(server, trips=False), engine="vllm", train_guardrails=trained)
        asyncio.run(way(agent))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    by_name = {one.name: one for one in trajectories}
    assert sorted(by_name) == ["guarded", "input checker", "output checker"]
    root = by_name["guarded"]
    assert {one.parent_id for one in trajectories} == {None, root.id}
    found = {
        (step.agent, (step.metadata or {}).get("guardrail"), step.trainable)
        for one in trajectories
        for step in one.steps
    }
    assert found == {
        ("guarded", None, True),
        ("safety", "safety", trained),
        ("input checker", "safety", trained),
        ("output checker", "truth", trained),
    }
    assert by_name["input checker"].metadata == {"guardrail": "safety"}
    assert len(root.sequences()) == (2 if trained else 1)
    assert bool(by_name["output checker"].sequences()) is trained


@pytest.mark.parametrize("way", WAYS)
def test_an_input_guardrail_that_stops_the_run(recorded: Recorded, way: Any) -> None:
    async def go() -> None:
        with pytest.raises(InputGuardrailTripwireTriggered):
            await way(record(guarded_agent(server, trips=True, in_parallel=False), engine="vllm"))

    with ScriptedServer("Fine.") as server:
        asyncio.run(go())
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    by_name = {one.name: one for one in trajectories}
    assert (by_name["guarded"].status, by_name["guarded"].stop_reason) == ("failed", "input_guardrail")
    assert by_name["input checker"].status == "completed"
    assert not any(step.trainable for one in trajectories for step in one.steps)


@pytest.mark.parametrize("way", WAYS)
def test_an_output_guardrail_that_stops_the_run(recorded: Recorded, way: Any) -> None:
    async def go() -> None:
        agent = guarded_agent(server, trips=True)
        agent.input_guardrails = []
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await way(record(agent, engine="vllm"))

    with ScriptedServer("Fine.") as server:
        asyncio.run(go())
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    root = next(one for one in trajectories if one.name == "guarded")
    assert (root.status, root.stop_reason) == ("failed", "output_guardrail")
    assert root.steps[0].trainable


def test_a_guardrail_of_a_tool(recorded: Recorded) -> None:
    def script(request: Any, messages: Any) -> Reply:
        if "guarded_add" in tools_of(request) and not results(messages):
            return calling("guarded_add", a=1, b=1)
        return Reply("Fine.")

    with ScriptedServer(script) as server:
        model = chat_model(server)

        @tool_input_guardrail(name="sums")
        async def checks_tool(data: Any) -> ToolGuardrailFunctionOutput:
            await Runner.run(agent_of(model, "tool checker", tools=[]), "may it?")
            return ToolGuardrailFunctionOutput.reject_content("not today")

        @function_tool(tool_input_guardrails=[checks_tool])
        def guarded_add(a: int, b: int) -> int:
            """Adds."""
            return a + b

        asyncio.run(run(record(agent_of(model, tools=[guarded_add]), engine="vllm")))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert tree(trajectories) == {"adder": (None, None), "tool checker": ("adder", 0)}
    checker = next(one for one in trajectories if one.name == "tool checker")
    assert (checker.metadata, [step.trainable for step in checker.steps]) == ({"guardrail": "sums"}, [False])
    assert not any(one.tool_runs for one in trajectories)


def test_a_failed_handoff_says_where(recorded: Recorded) -> None:
    """The agent that failed and the run have failed; the one between them had done its part."""

    def script(request: Any, messages: Any) -> Reply:
        for name in ("transfer_to_second", "transfer_to_third"):
            if name in tools_of(request):
                return calling(name)
        return calling("explode", reason="no")

    async def go() -> None:
        model = chat_model(server)
        second = agent_of(model, "second", handoffs=[agent_of(model, "third")])
        with pytest.raises(Exception, match="no"):
            await run(record(agent_of(model, "first", handoffs=[second]), engine="vllm"))

    with ScriptedServer(script) as server:
        asyncio.run(go())
    statuses = {one.name: one.status for one in recorded.all()}
    assert statuses == {"first": "failed", "second": "completed", "third": "failed"}


@pytest.mark.parametrize("trained", [False, True])
def test_the_run_decides_whether_its_guardrails_are_trained_on(recorded: Recorded, trained: bool) -> None:
    """Also where its model was recorded by hand, without a word on guardrails."""
    with ScriptedServer("Fine.") as server:
        model = record(chat_model(server), engine="vllm")

        async def checks(context: Any, agent: Any, asked: Any) -> GuardrailFunctionOutput:
            await Runner.run(agent_of(model, "checker", tools=[]), "is it safe?")
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        agent = agent_of(model, "guarded", tools=[], input_guardrails=[InputGuardrail(checks)])
        asyncio.run(run(record(agent, engine="vllm", train_guardrails=trained)))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert {one.name: [step.trainable for step in one.steps] for one in trajectories} == {
        "guarded": [True],
        "checker": [trained],
    }


def test_nothing_in_a_guardrail_is_trained_on(recorded: Recorded) -> None:
    """Its agent runs in a trajectory block of its own, with a tool that calls a client itself."""

    def script(request: Any, messages: Any) -> Reply:
        return calling("look") if "look" in tools_of(request) and not results(messages) else Reply("Fine.")

    with ScriptedServer(script) as server:
        model, client = chat_model(server), rt.wrap_openai(client_of(server), engine="vllm")

        @function_tool
        async def look() -> str:
            """Looks."""
            await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "mine"}])
            return "seen"

        async def checks(context: Any, agent: Any, asked: Any) -> GuardrailFunctionOutput:
            with rt.trajectory("apart"):
                await Runner.run(agent_of(model, "checker", tools=[look]), "is it safe?")
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        agent = agent_of(model, "guarded", tools=[], input_guardrails=[InputGuardrail(checks, name="safety")])
        asyncio.run(run(record(agent, engine="vllm")))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    apart = next(one for one in trajectories if one.name == "apart")
    assert [(step.agent, (step.metadata or {}).get("guardrail"), step.trainable) for step in apart.steps] == [
        ("checker", "safety", False)
    ] * 3


def test_an_answer_that_cannot_be_used_is_blamed_once(recorded: Recorded) -> None:
    """The error of an agent as a tool ends the outer run too, whose own answer was fine."""

    def script(request: Any, messages: Any) -> Reply:
        return calling("ask", input="?") if "ask" in tools_of(request) else Reply("no number")

    async def go(server: ScriptedServer) -> None:
        model = chat_model(server)
        inner = agent_of(model, "inner", tools=[], output_type=list[int])
        outer = agent_of(model, "outer", tools=[inner.as_tool("ask", "Asks.", failure_error_function=None)])
        with pytest.raises(ModelBehaviorError):
            await run(record(outer, engine="vllm"))

    with ScriptedServer(script) as server:
        asyncio.run(go(server))
    found = {one.name: [(step.status, step.error and step.error.type) for step in one.steps] for one in recorded.all()}
    assert found == {"outer": [("ok", None)], "inner": [("ok", "ModelBehaviorError")]}
