"""Many runs at once on one model object and one agent: each trajectory has its own calls, in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from oracle import Recorded, Served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer
from rollout_trace_openai_agents import record

from .harness import add, agent_of, calling, chat_model, results, run, run_sync, streamed, tools_of


def task_of(request: dict[str, Any]) -> str:
    asked = next(message["content"] for message in request["messages"] if message["role"] == "user")
    return str(asked).partition(":")[0]


def counting(request: dict[str, Any], messages: list[dict[str, Any]], record: RequestRecord) -> Reply | Fault:
    """A tool, an agent as a tool, and a handoff; what is said depends on the task. First answers are held."""
    task, offered, done = task_of(request), tools_of(request), len(results(messages))
    if "ask" not in offered:
        return Reply(f"{task}: said")
    if done == 0:
        reply = Reply(f"{task}: adding", tool_calls=calling("add", a=1, b=len(task)).tool_calls)
        return Fault(reply, hold_after=5)
    if done == 1:
        return calling("ask", input=f"{task}: for you")
    return calling("transfer_to_closer")


def team(server: ScriptedServer) -> Any:
    model = chat_model(server)
    helper = agent_of(model, "helper", tools=[])
    closer = agent_of(model, "closer", tools=[])
    return record(
        agent_of(model, "lead", tools=[add, helper.as_tool("ask", "Asks.")], handoffs=[closer]), engine="vllm"
    )


def assert_each_has_its_own(server: ScriptedServer, everything: list[Trajectory], count: int) -> None:
    server.wait_idle()
    asked: dict[str, list[RequestRecord]] = defaultdict(list)
    for one in server.requests:
        asked[task_of(one.json)].append(one)
    roots = {one.id: one for one in everything if one.parent_id is None}
    assert len(asked) == len(roots) == count
    for root in roots.values():
        assert root.task is not None
        members = [one for one in everything if one.episode_id == root.id]
        assert sorted(one.name for one in members) == ["closer", "helper", "task"]
        served = {Served(one).response_id: Served(one) for one in asked[str(root.task.id)]}
        steps = [step for one in members for step in one.steps]
        assert len(steps) == len(served) == 5
        for step in steps:
            served.pop(step.response_id).assert_is(step)
        by_name = {one.name: one for one in members}
        assert by_name["helper"].parent_step_id == root.steps[1].id
        assert by_name["closer"].parent_step_id == root.steps[2].id
        assert [(one.name, one.step_id) for one in root.tool_runs] == [
            ("add", root.steps[0].id),
            ("ask", root.steps[1].id),
        ]
        assert root.tool_runs[0].result == 1 + len(str(root.task.id))
        assert len(root.sequences()) == 1


@pytest.mark.sees("at once")
@pytest.mark.parametrize("way", [run, streamed])
def test_twelve_in_one_event_loop(recorded: Recorded, way: Any) -> None:
    async def rollout(agent: Any, task: str) -> None:
        with rt.trajectory("task", task=task):
            await way(agent, f"{task}: go")

    async def go(server: ScriptedServer) -> None:
        agent = team(server)
        rollouts = [asyncio.ensure_future(rollout(agent, "task" + "k" * n)) for n in range(12)]
        # All are in the middle of their first answer.
        await asyncio.to_thread(server.wait_held, 12)
        server.release()
        await asyncio.gather(*rollouts)

    with ScriptedServer(counting) as server:
        asyncio.run(go(server))
        assert_each_has_its_own(server, recorded.all(), 12)


def test_eight_threads(recorded: Recorded) -> None:
    with ScriptedServer(counting) as server, ThreadPoolExecutor(8) as threads:
        agent = team(server)

        def rollout(task: str) -> None:
            with rt.trajectory("task", task=task):
                run_sync(agent, f"{task}: go")

        futures = [threads.submit(rollout, "task" + "k" * n) for n in range(8)]
        server.wait_held(8)
        server.release()
        for future in futures:
            future.result()
        assert_each_has_its_own(server, recorded.all(), 8)
