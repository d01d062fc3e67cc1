"""Runs over several calls: sessions, and approvals that a run waits for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, RunState, SQLiteSession, function_tool
from oracle import Recorded, assert_all_served, assert_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_openai_agents import record

from .harness import adding, agent_of, calling, chat_model, results, run, streamed, tools_of


@pytest.mark.parametrize("way", [run, streamed])
def test_a_session_goes_on_in_one_trajectory(recorded: Recorded, way: Any) -> None:
    async def go(server: ScriptedServer) -> Trajectory:
        agent, session = record(agent_of(chat_model(server)), engine="vllm"), SQLiteSession("one")
        with rt.trajectory() as trajectory:
            for question in ("Add.", "And again."):
                await way(agent, question, session=session)
        session.close()
        return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(go(server))
        assert_served(server, trajectory.steps)
    assert len(trajectory.steps) == 3
    assert len(trajectory.sequences()) == 1
    recorded.keep(trajectory)


@function_tool(needs_approval=True)
def delete(name: str) -> str:
    """Deletes something."""
    return f"{name} is gone"


def deleting(request: dict[str, Any], messages: list[dict[str, Any]]) -> Reply:
    if "transfer_to_second" in tools_of(request):
        return calling("transfer_to_second")
    return Reply("Deleted.") if len(results(messages)) > 1 else calling("delete", name="x")


async def interrupted_and_resumed(agent: Agent[Any], is_streamed: bool, through_text: bool) -> Any:
    way = streamed if is_streamed else run
    result = await way(agent, "Delete x.")
    (waiting,) = result.interruptions
    state = result.to_state()
    if through_text:
        state = await RunState.from_json(agent, state.to_json())
        (waiting,) = state.get_interruptions()
    state.approve(waiting)
    return await way(agent, state)


@pytest.mark.parametrize("through_text", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_run_that_waits_for_an_approval(recorded: Recorded, is_streamed: bool, through_text: bool) -> None:
    """In a block both parts are one trajectory, and the tool is linked to the step that asked for it."""

    async def go(server: ScriptedServer) -> Trajectory:
        model = chat_model(server)
        second = agent_of(model, "second", tools=[delete])
        first = record(agent_of(model, "first", tools=[], handoffs=[second]), engine="vllm")
        with rt.trajectory("task") as trajectory:
            result = await interrupted_and_resumed(first, is_streamed, through_text)
        assert result.final_output == "Deleted."
        return trajectory

    with ScriptedServer(deleting) as server:
        root = asyncio.run(go(server))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert (root.status, root.stop_reason, len(root.steps)) == ("completed", None, 1)
    before, after = [one for one in trajectories if one.name == "second"]
    assert [one.parent_id for one in (before, after)] == [root.id] * 2
    assert (len(before.steps), len(before.tool_runs)) == (1, 0)
    assert [tool.result for tool in after.tool_runs] == ["x is gone"]
    assert [step.agent for step in after.steps] == ["second"]


def test_without_a_block_the_first_part_is_interrupted(recorded: Recorded) -> None:
    async def go(server: ScriptedServer) -> None:
        agent = record(agent_of(chat_model(server), tools=[delete]), engine="vllm")
        await interrupted_and_resumed(agent, False, False)

    def script(request: Any, messages: Any) -> Reply:
        return Reply("Deleted.") if results(messages) else calling("delete", name="x")

    with ScriptedServer(script) as server:
        asyncio.run(go(server))
        first, second = recorded.all()
        assert_all_served(server, [first, second])
    assert [(one.name, one.status, one.stop_reason) for one in (first, second)] == [
        ("adder", "completed", "interrupted"),
        ("adder", "completed", None),
    ]
    assert [tool.result for tool in second.tool_runs] == ["x is gone"]
    (waits,) = (first.metadata or {})["waits_for"]
    assert (waits["name"], waits["arguments"], waits["for"]) == ("delete", '{"name": "x"}', "approval")
    assert second.metadata is None


@pytest.mark.parametrize("by", ["session", "group_id"])
def test_both_halves_of_a_run_that_waits_have_its_session(recorded: Recorded, by: str, tmp_path: Path) -> None:
    """Also in another process, which has the state as JSON, and an agent and a session of its own."""

    async def go(server: ScriptedServer) -> None:
        state: Any = None
        for _ in range(2):
            agent = record(agent_of(chat_model(server), tools=[delete]), engine="vllm")
            if state is not None:
                state = await RunState.from_json(agent, json.loads(state))
                state.approve(state.get_interruptions()[0])
            session = SQLiteSession("s1", tmp_path / "sessions.db") if by == "session" else None
            config = RunConfig(group_id="s1") if by == "group_id" else None
            result = await Runner.run(agent, state or "Delete x.", session=session, run_config=config)
            state = json.dumps(result.to_state().to_json())
            if session is not None:
                session.close()

    def script(request: Any, messages: Any) -> Reply:
        return Reply("Deleted.") if results(messages) else calling("delete", name="x")

    with ScriptedServer(script) as server:
        asyncio.run(go(server))
    assert [(one.stop_reason, (one.metadata or {})["conversation_id"]) for one in recorded.all()] == [
        ("interrupted", "s1"),
        (None, "s1"),
    ]


def test_an_agent_as_a_tool_that_waits(recorded: Recorded) -> None:
    def script(request: Any, messages: Any) -> Reply:
        if "ask" in tools_of(request):
            return Reply("Done.") if results(messages) else calling("ask", input="Delete x.")
        return Reply("Gone.") if results(messages) else calling("delete", name="x")

    async def go(server: ScriptedServer) -> Trajectory:
        model = chat_model(server)
        inner = agent_of(model, "inner", tools=[delete])
        outer = record(agent_of(model, "outer", tools=[inner.as_tool("ask", "Asks.")]), engine="vllm")
        with rt.trajectory("task") as trajectory:
            result = await Runner.run(outer, "Delete x.")
            state = result.to_state()
            state.approve(result.interruptions[0])
            await Runner.run(outer, state)
        return trajectory

    with ScriptedServer(script) as server:
        root = asyncio.run(go(server))
        trajectories = recorded.all()
        assert_all_served(server, trajectories)
    assert [step.agent for step in root.steps] == ["outer", "outer"]
    # The first has none: it waits. 0.18 ends the tool with what the inner agent said before.
    assert [tool.name for tool in root.tool_runs] == ["ask", "ask"]
    assert root.tool_runs[1].result == "Gone."
    before, after = [one for one in trajectories if one.name == "inner"]
    assert (before.stop_reason, after.stop_reason) == ("interrupted", None)
    assert [one.parent_id for one in (before, after)] == [root.id] * 2
    assert [tool.result for tool in after.tool_runs] == ["x is gone"]
