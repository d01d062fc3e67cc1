"""Runs that end before they are done: cancelled, given up by their reader, cancelled by the agent's own means."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import AfterInvocationEvent, HookProvider, HookRegistry

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_strands import RolloutHookProvider

from .harness import Recorded, Served, adding, agent_of, assert_served, openai_model, results


def held_at(turn: int, **hold: Any) -> Any:
    """Adds, and is held in the answer after so many tool results."""
    script = adding(5)

    def answer(request: dict[str, Any]) -> Reply | Fault:
        reply = script(request)
        return Fault(reply, **hold) if len(results(request)) == turn else reply

    return answer


async def cancelled(server: ScriptedServer, agent: Any, held: int = 1) -> None:
    task = asyncio.ensure_future(agent.invoke_async("Add."))
    await asyncio.to_thread(server.wait_held, held)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.sees("cancelled", "`cancelled` or `abandoned`")
@pytest.mark.parametrize("hold", [{"hold": True}, {"hold_after": 4}])
def test_a_cancelled_task(recorded: Recorded, hold: dict[str, Any]) -> None:
    async def run(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            await cancelled(server, agent_of(openai_model(server)))
        return trajectory

    with ScriptedServer(held_at(1, **hold)) as server:
        trajectory = asyncio.run(run(server))
        server.release()
    assert [step.status for step in trajectory.steps] == ["ok", "cancelled"]
    Served(server.requests[0]).assert_is(trajectory.steps[0])
    assert list(trajectory.steps[1].messages or ()) == server.requests[1].json["messages"]
    recorded.keep(trajectory)


def test_a_cancelled_run_without_a_trajectory_is_aborted(recorded: Recorded) -> None:
    with ScriptedServer(held_at(0, hold=True)) as server:
        asyncio.run(cancelled(server, agent_of(openai_model(server))))
        server.release()
    (trajectory,) = recorded.all()
    assert trajectory.status == "aborted"
    assert [step.status for step in trajectory.steps] == ["cancelled"]


def test_a_stream_that_its_reader_leaves(recorded: Recorded) -> None:
    async def run(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            events: Any = agent_of(openai_model(server)).stream_async("Add.")
            async for event in events:
                if "data" in event:
                    break
            await events.aclose()
        return trajectory

    with ScriptedServer("A long answer.", chunk_bytes=64) as server:
        trajectory = asyncio.run(run(server))
        server.wait_idle()
    (step,) = trajectory.steps
    assert step.status in ("abandoned", "ok")  # ok where all of it had arrived
    assert step.completion is not None
    recorded.keep(trajectory)


def test_what_the_reader_of_a_stream_does_is_not_the_calls(recorded: Recorded) -> None:
    """Between two events the reader makes a call of its own: it is no part of the agent's model call."""
    from openai import AsyncOpenAI

    async def run(server: ScriptedServer) -> tuple[Trajectory, Trajectory]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            rt.wrap_openai(client, engine="vllm")
            with rt.trajectory("agent") as outer:
                asked = False
                async for event in agent_of(openai_model(server), name="adder").stream_async("Add."):
                    if "data" in event and not asked:
                        asked = True
                        question: Any = [{"role": "user", "content": "mine"}]
                        await client.chat.completions.create(model="m", messages=question)
                        with rt.trajectory("other") as other:
                            await client.chat.completions.create(model="m", messages=question)
            return outer, other

    with ScriptedServer("A long answer.") as server:
        outer, other = asyncio.run(run(server))
    agents, mine = outer.steps
    assert (agents.metadata, mine.metadata) == ({"framework": "strands"}, None)
    assert [len(other.steps), other.steps[0].metadata] == [1, None]
    recorded.keep(outer, other)


def test_a_stream_that_is_read_by_many_tasks(recorded: Recorded) -> None:
    """Each event is made in a context of its own: what one context entered, the next knows nothing of."""

    async def run(server: ScriptedServer) -> None:
        events: Any = agent_of(openai_model(server), name="adder").stream_async("Add.")
        while True:
            try:
                await asyncio.create_task(events.__anext__())
            except StopAsyncIteration:
                return

    with ScriptedServer(adding(1)) as server:
        asyncio.run(run(server))
    (trajectory,) = recorded.all()
    assert_served(server, trajectory.steps)
    assert (trajectory.name, trajectory.status, len(trajectory.tool_runs)) == ("adder", "completed", 1)


def test_agent_cancel_in_a_stream(recorded: Recorded) -> None:
    async def run(server: ScriptedServer) -> Trajectory:
        agent = agent_of(openai_model(server))
        with rt.trajectory() as trajectory:
            async for event in agent.stream_async("Add."):
                if "data" in event:
                    agent.cancel()
                if "result" in event:
                    assert event["result"].stop_reason == "cancelled"
        return trajectory

    with ScriptedServer("A long answer.", chunk_bytes=64) as server:
        trajectory = asyncio.run(run(server))
        server.wait_idle()
    (step,) = trajectory.steps
    assert step.status in ("abandoned", "cancelled", "ok")
    assert step.completion is not None
    # Not the sentence that Strands puts in its place.
    assert "Cancelled by user" not in str(step.completion.content)
    recorded.keep(trajectory)


def test_a_tool_that_is_cancelled(recorded: Recorded) -> None:
    from strands import tool

    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    async def run(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            agent = agent_of(openai_model(server), tools=[wait])
            task = asyncio.ensure_future(agent.invoke_async("Wait."))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return trajectory

    with ScriptedServer(Reply(tool_calls=[("wait", "{}")])) as server:
        trajectory = asyncio.run(run(server))
    (tool_run,) = trajectory.tool_runs
    assert tool_run.error is not None
    assert (tool_run.error.type, tool_run.result) == ("CancelledError", None)
    assert [step.status for step in trajectory.steps] == ["ok"]
    recorded.keep(trajectory)


def test_a_sub_agent_of_a_cancelled_run_is_aborted(recorded: Recorded) -> None:
    def script(request: dict[str, Any]) -> Reply | Fault:
        if request["messages"][0]["content"] == "boss":
            return Reply(tool_calls=[("adder", '{"input": "Add."}')])
        return Fault("never", hold=True)

    async def run(server: ScriptedServer) -> None:
        model = openai_model(server)
        adder = agent_of(model, name="adder", system_prompt="adder", is_recorded=False)
        boss = agent_of(model, name="boss", system_prompt="boss", tools=[adder])
        with rt.trajectory("boss"):
            await cancelled(server, boss)

    with ScriptedServer(script) as server:
        asyncio.run(run(server))
        server.release()
    boss, adder = recorded.all()
    assert (adder.status, adder.parent_id) == ("aborted", boss.id)
    assert [step.status for step in adder.steps] == ["cancelled"]
    (run_,) = boss.tool_runs
    assert run_.error is not None


@pytest.mark.parametrize("first", [True, False])
def test_a_hook_of_the_users_that_raises_at_the_end(recorded: Recorded, first: bool) -> None:
    """The run is over all the same: it is written, and takes no later call."""

    class Raises(HookProvider):
        def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
            registry.add_callback(AfterInvocationEvent, self.raises)

        def raises(self, event: AfterInvocationEvent) -> None:
            raise LookupError("the user's own")

    with ScriptedServer(adding(0)) as server:
        hooks = [Raises(), RolloutHookProvider(engine="vllm")]
        agent = agent_of(openai_model(server), is_recorded=False, hooks=hooks if first else hooks[::-1])
        with pytest.raises(LookupError):
            agent("Add.")
        assert rt.current() is None
    (trajectory,) = recorded.all()
    assert [step.status for step in trajectory.steps] == ["ok"]


def test_a_recorded_model_can_be_pickled() -> None:
    """It could be before."""
    with ScriptedServer(adding(0)) as server:
        agent = agent_of(openai_model(server))
        with rt.trajectory():
            agent("Add.")
        back = pickle.loads(pickle.dumps(agent.model))
        with rt.trajectory() as trajectory:
            agent_of(back)("Add.")
        server.wait_idle()
        Served(server.requests[1]).assert_is(trajectory.steps[0])
    assert [step.status for step in trajectory.steps] == ["ok"]


def test_runs_that_nobody_ended_are_let_go_with_their_trajectory(recorded: Recorded) -> None:
    """A conversation manager that raises keeps Strands from telling of the end."""

    class Raises(NullConversationManager):
        def apply_management(self, agent: Any, **kwargs: Any) -> None:
            raise LookupError("the user's own")

    provider = RolloutHookProvider(engine="vllm")
    with ScriptedServer(adding(0)) as server:
        for _ in range(3):
            options: Any = {"is_recorded": False, "hooks": [provider], "conversation_manager": Raises()}
            agent = agent_of(openai_model(server), **options)
            with rt.trajectory() as trajectory, pytest.raises(LookupError):
                agent("Add.")
            assert [step.status for step in trajectory.steps] == ["ok"]
    assert sum(map(len, provider._runs._by_owner.values())) <= 1
