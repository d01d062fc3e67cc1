"""Runs that end before they are done, and streams that are read after their block."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import agents
import pytest
from agents import (
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    RunHooks,
    Runner,
    function_tool,
)
from oracle import Recorded, Served, assert_all_served, assert_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_openai_agents import record

from .harness import add, adding, agent_of, calling, chat_model, explode, results, run, streamed, tools_of


def held_at(turn: int, **hold: Any) -> Any:
    """Adds, and is held in the answer after so many tool results."""
    script = adding(5)

    def answer(request: dict[str, Any], messages: list[dict[str, Any]]) -> Reply | Fault:
        reply = script(request, messages)
        return Fault(reply, **hold) if len(results(messages)) == turn else reply

    return answer


@pytest.mark.sees("cancelled")
@pytest.mark.parametrize("way", [run, streamed])
@pytest.mark.parametrize("hold", [{"hold": True}, {"hold_after": 4}])
def test_a_cancelled_task(recorded: Recorded, way: Any, hold: dict[str, Any]) -> None:
    async def go(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            task = asyncio.ensure_future(way(record(agent_of(chat_model(server)), engine="vllm")))
            await asyncio.to_thread(server.wait_held, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return trajectory

    with ScriptedServer(held_at(1, **hold)) as server:
        trajectory = asyncio.run(go(server))
        server.release()
    assert [step.status for step in trajectory.steps] == ["ok", "cancelled"]
    Served(server.requests[0]).assert_is(trajectory.steps[0])
    assert list(trajectory.steps[1].messages or ()) == server.requests[1].json["messages"]
    recorded.keep(trajectory)


def test_a_cancelled_tree_is_aborted(recorded: Recorded) -> None:
    """Cancelled in the answer of an agent that is a tool of one that was handed to; each trajectory ends."""

    def script(request: Any, messages: Any) -> Reply | Fault:
        if "transfer_to_second" in tools_of(request):
            return calling("transfer_to_second")
        if "ask_third" in tools_of(request):
            return calling("ask_third", input="?")
        return Fault("late", hold=True)

    async def go(server: ScriptedServer) -> None:
        model = chat_model(server)
        third = agent_of(model, "third", tools=[])
        second = agent_of(model, "second", tools=[third.as_tool("ask_third", "Third.")])
        task = asyncio.ensure_future(run(record(agent_of(model, "first", handoffs=[second]), engine="vllm")))
        await asyncio.to_thread(server.wait_held, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ScriptedServer(script) as server:
        asyncio.run(go(server))
        server.release()
    found = {one.name: (one.status, [step.status for step in one.steps]) for one in recorded.all()}
    assert found == {
        "first": ("aborted", ["ok"]),
        "second": ("aborted", ["ok"]),
        "third": ("aborted", ["cancelled"]),
    }


def test_a_stream_that_its_user_cancels(recorded: Recorded) -> None:
    async def go(server: ScriptedServer) -> None:
        result = Runner.run_streamed(record(agent_of(chat_model(server)), engine="vllm"), "Add.")
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                await asyncio.to_thread(server.wait_held, 1)
                result.cancel()
        # Whoever waits for the task sees its end.
        assert result.run_loop_task is not None
        await asyncio.gather(result.run_loop_task, return_exceptions=True)

    with ScriptedServer(Fault("A long answer.", hold_after=4)) as server:
        asyncio.run(go(server))
        server.release()
    (trajectory,) = recorded.all()
    (step,) = trajectory.steps
    assert trajectory.status == "aborted"
    assert step.status in ("cancelled", "abandoned")
    assert step.completion is not None


def test_a_stream_that_its_reader_leaves_is_recorded_to_its_end(recorded: Recorded) -> None:
    """The SDK goes on with the run when the reader closes the stream of its events."""

    async def go(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            result = Runner.run_streamed(record(agent_of(chat_model(server)), engine="vllm"), "Add.")
            events: Any = result.stream_events()
            async for _ in events:
                break
            await events.aclose()
        return trajectory

    with ScriptedServer(adding(2)) as server:
        trajectory = asyncio.run(go(server))
        assert_served(server, trajectory.steps)
    assert len(trajectory.steps) == 3
    recorded.keep(trajectory)


def test_a_model_stream_that_breaks_off(recorded: Recorded) -> None:
    async def go(server: ScriptedServer) -> None:
        with pytest.raises(Exception, match=r"."):
            await streamed(record(agent_of(chat_model(server)), engine="vllm"))

    with ScriptedServer(Fault("A long answer.", cut_after=4)) as server:
        asyncio.run(go(server))
    (trajectory,) = recorded.all()
    (step,) = trajectory.steps
    assert (trajectory.status, step.status) == ("failed", "error")
    assert step.completion is not None


@pytest.mark.parametrize("has_handoff", [False, True])
def test_a_stream_that_is_read_after_the_block(recorded: Recorded, has_handoff: bool) -> None:
    """The block's trajectory is closed when the first call begins: the run is a child of it."""

    def script(request: Any, messages: Any) -> Reply:
        if "transfer_to_second" in tools_of(request):
            return calling("transfer_to_second")
        return calling("add", a=1, b=2) if "3" not in results(messages) else Reply("Done.")

    async def go(server: ScriptedServer) -> Trajectory:
        model = chat_model(server)
        handoffs = [agent_of(model, "second")] if has_handoff else []
        agent = record(agent_of(model, "first", handoffs=handoffs), engine="vllm")
        with rt.trajectory("block") as trajectory:
            result = Runner.run_streamed(agent, "Add.")
        async for _ in result.stream_events():
            pass
        assert result.final_output == "Done."
        return trajectory

    with ScriptedServer(script) as server:
        block = asyncio.run(go(server))
        found = {one.name: one for one in recorded.all()}
        assert_all_served(server, list(found.values()))
    assert found["first"].parent_id == block.id
    assert {one.episode_id for one in found.values()} == {block.id}
    if has_handoff:
        assert found["second"].parent_id == found["first"].id
        assert found["second"].parent_step_id == found["first"].steps[0].id
    last = found["second" if has_handoff else "first"]
    assert [(tool.result, tool.step_id) for tool in last.tool_runs] == [(3, last.steps[0].id)]
    assert {one.status for one in found.values()} == {"completed"}


def test_a_block_that_ends_in_the_middle_of_a_stream(recorded: Recorded) -> None:
    async def go(server: ScriptedServer) -> Trajectory:
        agent = record(agent_of(chat_model(server)), engine="vllm")
        with rt.trajectory("block") as trajectory:
            result = Runner.run_streamed(agent, "Add.")
            events = result.stream_events()
            await anext(events)
            await asyncio.to_thread(server.wait_held, 1)
        server.release()
        async for _ in events:
            pass
        return trajectory

    with ScriptedServer(held_at(0, hold_after=2)) as server:
        block = asyncio.run(go(server))
        first, later = recorded.all()
        assert_all_served(server, [first, later])
    assert [len(first.steps), len(later.steps)] == [1, 5]
    assert (first.id, later.parent_id, later.name) == (block.id, block.id, "adder")


@pytest.mark.skipif(not hasattr(agents, "ModelTimeoutError"), reason="this release has no timeout of model calls")
def test_a_model_that_is_too_slow(recorded: Recorded) -> None:
    async def go(server: ScriptedServer) -> None:
        settings = ModelSettings(timeout=0.05)
        with pytest.raises(agents.ModelTimeoutError):
            await run(record(agent_of(chat_model(server), model_settings=settings), engine="vllm"))

    with ScriptedServer(Fault("late", stall=True)) as server:
        asyncio.run(go(server))
    (trajectory,) = recorded.all()
    assert (trajectory.status, [step.status for step in trajectory.steps]) == ("failed", ["cancelled"])


def test_a_guardrail_beside_the_first_call_that_stops_the_run(recorded: Recorded) -> None:
    """The model's answer is held while the guardrail decides: its call is cancelled. A streamed run waits for it."""

    async def go(server: ScriptedServer) -> None:
        async def trips(context: Any, agent: Any, asked: Any) -> GuardrailFunctionOutput:
            await asyncio.to_thread(server.wait_held, 1)
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

        guardrails = [InputGuardrail(trips)]
        agent = record(agent_of(chat_model(server), input_guardrails=guardrails, tools=[add]), engine="vllm")
        with pytest.raises(InputGuardrailTripwireTriggered):
            await run(agent)

    with ScriptedServer(Fault("late", hold_after=3)) as server:
        asyncio.run(go(server))
        server.release()
    (trajectory,) = recorded.all()
    assert (trajectory.status, trajectory.stop_reason) == ("failed", "input_guardrail")
    assert [step.status for step in trajectory.steps] == ["cancelled"]


@pytest.mark.parametrize("way", [run, streamed])
def test_a_tool_that_ends_after_its_run(recorded: Recorded, way: Any) -> None:
    """It refuses to be cancelled with the run that another tool has failed: it is one tool run, and has no result."""

    def script(request: Any, messages: Any) -> Reply:
        return Reply(None, tool_calls=[("explode", '{"reason": "no"}'), ("slow", "{}")])

    class Hooks(RunHooks[Any]):
        def __init__(self) -> None:
            self.ended = asyncio.Event()

        async def on_tool_end(self, *args: Any) -> None:
            self.ended.set()

    async def go(server: ScriptedServer) -> Trajectory:
        go_on, hooks = asyncio.Event(), Hooks()

        @function_tool
        async def slow() -> str:
            """Goes on when it is cancelled."""
            while not go_on.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await go_on.wait()
            return "late"

        agent = record(agent_of(chat_model(server), tools=[explode, slow]), engine="vllm")
        with rt.trajectory() as trajectory:
            with pytest.raises(Exception, match="no"):
                await way(agent, hooks=hooks)
            go_on.set()
            await hooks.ended.wait()
        return trajectory

    with ScriptedServer(script) as server:
        trajectory = asyncio.run(go(server))
    assert [(tool.name, tool.result) for tool in trajectory.tool_runs] == [("explode", None), ("slow", None)]
    recorded.keep(trajectory)
