"""Runs that end before they are done: cancelled, left by their reader, stopped by a limit."""

from __future__ import annotations

import asyncio
import gc
import inspect
from typing import Any

import pytest
from google.adk.agents.run_config import RunConfig
from google.adk.runners import Runner
from google.adk.tools.agent_tool import AgentTool
from oracle import Recorded, Served, assert_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer

from .harness import (
    SSE,
    Script,
    adding,
    agent_of,
    by_system,
    content_of,
    events_of,
    litellm,
    once,
    results,
    run,
    runner_of,
    session_of,
)

ROUTES = pytest.mark.parametrize("route", ["openai", "hosted_vllm"])


def held_at(turn: int, **hold: Any) -> Script:
    """Adds, and is held in the answer after so many tool results."""

    def script(request: dict[str, Any], messages: list[Any]) -> Any:
        reply = adding(5)(request, messages)
        return Fault(reply, **hold) if len(results(messages)) == turn else reply

    return script


async def cancelled(server: ScriptedServer, runner: Any, **options: Any) -> None:
    """Cancels a run that is held by the server."""
    task = asyncio.ensure_future(run(runner, **options))
    await asyncio.to_thread(server.wait_held, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.sees("cancelled")
@ROUTES
@pytest.mark.parametrize("hold", [{"hold": True}, {"hold_after": 4}], ids=["before", "within"])
def test_a_cancelled_task(recorded: Recorded, route: str, hold: dict[str, Any]) -> None:
    async def main(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            await cancelled(server, runner_of(agent_of(litellm(server, route))), config=SSE)
        return trajectory

    with ScriptedServer(held_at(1, **hold)) as server:
        trajectory = asyncio.run(main(server))
        server.release()
    assert [step.status for step in trajectory.steps] == ["ok", "cancelled"]
    Served(server.requests[0]).assert_is(trajectory.steps[0])
    assert list(trajectory.steps[1].messages or ()) == server.requests[1].json["messages"]
    recorded.keep(trajectory)


def test_a_cancelled_run_without_a_trajectory(recorded: Recorded) -> None:
    with ScriptedServer(held_at(0, hold=True)) as server:
        asyncio.run(cancelled(server, runner_of(agent_of(litellm(server)))))
        server.release()
    (trajectory,) = recorded.all()
    assert [step.status for step in trajectory.steps] == ["cancelled"]
    assert trajectory.status in ("aborted", "failed", "cancelled")


def test_a_cancelled_sub_agent(recorded: Recorded) -> None:
    script = by_system(boss=once("helper", request="Add."), helper=Fault("never", hold=True))
    with ScriptedServer(script) as server:
        boss = agent_of(litellm(server), "boss", tools=[AgentTool(agent_of(litellm(server), "helper"))])
        asyncio.run(cancelled(server, runner_of(boss)))
        server.release()
    found = {one.name: one for one in recorded.all()}
    assert found["helper"].parent_id == found["boss"].id
    assert [step.status for step in found["helper"].steps] == ["cancelled"]
    assert [step.status for step in found["boss"].steps] == ["ok"]
    (tool_run,) = found["boss"].tool_runs
    assert tool_run.error is not None
    assert (tool_run.error.type, tool_run.result) == ("CancelledError", None)


def test_a_cancelled_tool(recorded: Recorded) -> None:
    async def main(server: ScriptedServer) -> Trajectory:
        started = asyncio.Event()

        async def wait() -> str:
            """Waits."""
            started.set()
            await asyncio.Event().wait()
            return "never"

        with rt.trajectory() as trajectory:
            task = asyncio.ensure_future(run(runner_of(agent_of(litellm(server), tools=[wait]))))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return trajectory

    with ScriptedServer(Reply(tool_calls=[("wait", "{}")])) as server:
        trajectory = asyncio.run(main(server))
    (tool_run,) = trajectory.tool_runs
    assert tool_run.error is not None
    assert (tool_run.error.type, tool_run.result) == ("CancelledError", None)
    assert [step.status for step in trajectory.steps] == ["ok"]
    recorded.keep(trajectory)


def test_one_of_two_tools_that_raises_cancels_the_other(recorded: Recorded) -> None:
    async def main(server: ScriptedServer) -> Trajectory:
        started = asyncio.Event()

        async def wait() -> str:
            """Waits."""
            started.set()
            await asyncio.Event().wait()
            return "never"

        async def fail() -> str:
            """Fails."""
            await started.wait()
            raise RuntimeError("no reason")

        with rt.trajectory() as trajectory:
            with pytest.raises(RuntimeError, match="no reason"):
                await run(runner_of(agent_of(litellm(server), tools=[wait, fail])))
        return trajectory

    with ScriptedServer(Reply(tool_calls=[("wait", "{}"), ("fail", "{}")])) as server:
        trajectory = asyncio.run(main(server))
    wait, fail = trajectory.tool_runs
    assert (fail.error and fail.error.type, fail.result) == ("RuntimeError", None)
    assert wait.error is not None
    assert (wait.error.type, wait.result) == ("CancelledError", None)
    recorded.keep(trajectory)


@ROUTES
def test_a_stream_that_its_reader_leaves(recorded: Recorded, route: str) -> None:
    async def main(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            events = events_of(runner_of(agent_of(litellm(server, route))), config=SSE)
            async for event in events:
                if event.partial:
                    break
            await events.aclose()  # type: ignore[attr-defined]
        return trajectory

    with ScriptedServer(Fault("A long answer.", stall_after=6)) as server:
        trajectory = asyncio.run(main(server))
    (step,) = trajectory.steps
    # Not `abandoned`: ADK cancels the task that the call runs in.
    assert step.status == "cancelled"
    assert step.completion is not None
    assert step.completion.content
    assert "A long answer.".startswith(str(step.completion.content))
    recorded.keep(trajectory)


def test_a_stream_that_is_dropped(recorded: Recorded) -> None:
    """Nobody closes it: Python's garbage collector does."""

    async def main(server: ScriptedServer) -> Trajectory:
        with rt.trajectory() as trajectory:
            runner = runner_of(agent_of(litellm(server)))
            session = await session_of(runner)
            async for event in runner.run_async(
                user_id="user", session_id=session, new_message=content_of("Add."), run_config=SSE
            ):
                if event.partial:
                    break
            del event
        gc.collect()
        return trajectory

    with ScriptedServer(Fault("A long answer.", stall_after=6)) as server:
        trajectory = asyncio.run(main(server))
    (step,) = trajectory.steps
    assert step.status in ("abandoned", "cancelled")
    recorded.keep(trajectory)


def test_a_run_that_is_read_after_its_trajectory(recorded: Recorded) -> None:
    """It began inside, and belongs to it; a run that begins later does not."""

    async def main(server: ScriptedServer) -> Trajectory:
        runner = runner_of(agent_of(litellm(server)))
        with rt.trajectory("task") as trajectory:
            events = events_of(runner, config=SSE)
            first = await anext(events)
            assert first.partial
        async for _ in events:
            pass
        return trajectory

    with ScriptedServer("A long answer.") as server:
        trajectory = asyncio.run(main(server))
        assert_served(server, trajectory.steps)
    (step,) = trajectory.steps
    assert (step.status, step.completion and step.completion.content) == ("ok", "A long answer.")
    recorded.keep(trajectory)


def test_what_the_reader_does_between_two_events_is_not_the_agents(recorded: Recorded) -> None:
    from openai import AsyncOpenAI

    async def main(server: ScriptedServer) -> tuple[Trajectory, Trajectory]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            rt.wrap_openai(client, engine="vllm")
            with rt.trajectory("outer") as outer:
                asked = False
                async for event in events_of(runner_of(agent_of(litellm(server))), config=SSE):
                    if event.partial and not asked:
                        asked = True
                        question: Any = [{"role": "user", "content": "mine"}]
                        await client.chat.completions.create(model="m", messages=question)
                        with rt.trajectory("other") as other:
                            await client.chat.completions.create(model="m", messages=question)
        return outer, other

    with ScriptedServer("A long answer.") as server:
        outer, other = asyncio.run(main(server))
    agents, mine = outer.steps
    assert (agents.metadata, agents.agent, mine.metadata, mine.agent) == (
        {"framework": "google-adk"},
        "adder",
        None,
        "outer",
    )
    assert (len(other.steps), other.steps[0].metadata) == (1, None)
    recorded.keep(outer, other)


def test_events_that_are_read_by_many_tasks(recorded: Recorded) -> None:
    """Each event is made in a context of its own."""

    async def main(server: ScriptedServer) -> None:
        events: Any = events_of(runner_of(agent_of(litellm(server))), config=SSE)
        while True:
            try:
                await asyncio.create_task(events.__anext__())
            except StopAsyncIteration:
                return

    with ScriptedServer(adding(1)) as server:
        asyncio.run(main(server))
        (trajectory,) = recorded.all()
        assert_served(server, trajectory.steps)
    assert (trajectory.name, trajectory.status, len(trajectory.tool_runs)) == ("adder", "completed", 1)


@pytest.mark.parametrize("config", [RunConfig(), SSE], ids=["whole", "streamed"])
def test_the_limit_of_model_calls(recorded: Recorded, config: RunConfig) -> None:
    async def main(server: ScriptedServer) -> None:
        with pytest.raises(Exception, match="exceeded"):
            await run(runner_of(agent_of(litellm(server))), config=config.model_copy(update={"max_llm_calls": 2}))

    with ScriptedServer(adding(5)) as server:
        asyncio.run(main(server))
        (trajectory,) = recorded.all()
        assert_served(server, trajectory.steps)
    assert (trajectory.status, len(trajectory.steps), len(trajectory.tool_runs)) == ("failed", 2, 2)


@pytest.mark.skipif("abort_signal" not in inspect.signature(Runner.run_async).parameters, reason="since 2.13")
def test_an_abort_signal(recorded: Recorded) -> None:
    async def main(server: ScriptedServer) -> None:
        signal = asyncio.Event()
        task = asyncio.ensure_future(run(runner_of(agent_of(litellm(server))), abort_signal=signal))
        await asyncio.to_thread(server.wait_held, 1)
        signal.set()
        await task

    with ScriptedServer(held_at(1, hold=True)) as server:
        asyncio.run(main(server))
        server.release()
    (trajectory,) = recorded.all()
    assert [step.status for step in trajectory.steps] == ["ok", "cancelled"]
