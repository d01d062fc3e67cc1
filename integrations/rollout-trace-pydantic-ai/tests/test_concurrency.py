"""Many rollouts at once on one model object: each trajectory has its own calls, in order."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from oracle import Recorded, Served
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.integration import Frame
from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer
from rollout_trace_pydantic_ai import record

from .harness import WAYS, agent_of, call, openai_model, results, run, with_model


def task_of(request: dict[str, Any]) -> str:
    return str(request["messages"][1]["content"])


def counting(request: dict[str, Any]) -> Reply | Fault:
    """Three turns; what is asked depends on the task, so that no two rollouts say the same. First answers are held."""
    task, done = task_of(request), len(results(request))
    if done == 2:
        return Reply(f"{task} is done")
    reply = Reply(None, tool_calls=[call("add", a=done, b=int(task.split()[1]))])
    return Fault(reply, hold_after=5) if done == 0 else reply


def assert_each_has_its_own(server: ScriptedServer, trajectories: list[Trajectory]) -> None:
    server.wait_idle()
    asked: dict[str, list[RequestRecord]] = defaultdict(list)
    for one in server.requests:
        asked[task_of(one.json)].append(one)
    assert len(asked) == len(trajectories)
    for trajectory in trajectories:
        assert trajectory.task is not None
        records = asked[str(trajectory.task.id)]
        assert len(trajectory.steps) == len(records) == 3
        for one, step in zip(records, trajectory.steps, strict=True):
            Served(one).assert_is(step)
        assert len(trajectory.sequences()) == 1
        calls = [one.id for step in trajectory.steps if step.completion for one in step.completion.tool_calls]
        assert [one.tool_call_id for one in trajectory.tool_runs] == calls


@pytest.mark.sees("at once")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("agents", ["one", "many"])
def test_twelve_in_one_event_loop(way: Any, agents: str, recorded: Recorded) -> None:
    async def rollout(agent: Any, task: str) -> Trajectory:
        with rt.trajectory(task=task) as trajectory:
            assert await way(agent, task) == f"{task} is done"
        return trajectory

    async def scenario(model: Any) -> list[Trajectory]:
        shared = agent_of(model)
        rollouts = [
            asyncio.ensure_future(rollout(shared if agents == "one" else agent_of(model), f"task {n}"))
            for n in range(12)
        ]
        # All are in the middle of their first answer.
        await asyncio.to_thread(server.wait_held, 12)
        server.release()
        return await asyncio.gather(*rollouts)

    with ScriptedServer(counting) as server:
        trajectories = with_model(server, scenario)
    assert_each_has_its_own(server, trajectories)
    recorded.keep(*trajectories)


def test_eight_threads(recorded: Recorded) -> None:
    """One agent in eight event loops, with a model for each: its client belongs to the loop."""
    agent = agent_of(None)

    async def once(task: str) -> None:
        async with openai_model(server) as model:
            await run(agent, task, model=model)

    def rollout(task: str) -> Trajectory:
        with rt.trajectory(task=task) as trajectory:
            asyncio.run(once(task))
        return trajectory

    with ScriptedServer(counting) as server, ThreadPoolExecutor(8) as threads:
        rollouts = [threads.submit(rollout, f"task {n}") for n in range(8)]
        server.wait_held(8)
        server.release()
        trajectories = [one.result() for one in rollouts]
    assert_each_has_its_own(server, trajectories)
    recorded.keep(*trajectories)


def test_parallel_children(recorded: Recorded) -> None:
    """Sub-agents that run at once in one turn: each its own trajectory, all of the same step."""

    def script(request: dict[str, Any]) -> Reply:
        if request["messages"][0]["content"] != "outer" or results(request):
            return Reply(f"{task_of(request)} is done")
        return Reply(None, tool_calls=[call("ask", question=f"task {n}") for n in range(4)])

    async def scenario(model: Any) -> Trajectory:
        inner = Agent(model, name="inner", instructions="inner")
        outer: Agent[Any, Any] = Agent(model, name="outer", instructions="outer")

        @outer.tool_plain
        async def ask(question: str) -> str:
            """Asks."""
            return (await inner.run(question)).output

        with rt.trajectory() as trajectory:
            await record(outer, engine="vllm").run("Well?")
        return trajectory

    with ScriptedServer(script) as server:
        trajectory = with_model(server, scenario)
    children = [one for one in recorded.all() if one.parent_id == trajectory.id]
    assert {one.parent_step_id for one in children} == {trajectory.steps[0].id}
    assert [len(one.steps) for one in children] == [1] * 4
    by_response = {Served(one).response_id: Served(one) for one in server.requests}
    for child in children:
        by_response[child.steps[0].response_id].assert_is(child.steps[0])


def test_nothing_is_kept_of_runs_that_have_ended() -> None:
    """After 400 runs as many objects of ours are alive as after 100."""

    async def scenario() -> None:
        agent = record(Agent(TestModel(call_tools=["adder"]), tools=[adder]))

        async def runs(count: int) -> int:
            for _ in range(count):
                await agent.run("Add.")
            gc.collect()
            return sum(_is_ours(one) for one in gc.get_objects())

        few = await runs(100)
        assert await runs(300) == few

    asyncio.run(scenario())


def adder(a: int) -> int:
    """Adds one."""
    return a + 1


def _is_ours(one: Any) -> bool:
    kind = type(one)
    return issubclass(kind, (Frame, Trajectory)) or kind.__module__.startswith("rollout_trace")
