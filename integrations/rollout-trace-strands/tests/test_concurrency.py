"""Many rollouts at once on one model object: each trajectory has its own calls, in order."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer

from .harness import Recorded, Served, agent_of, openai_model, results


def task_of(request: dict[str, Any]) -> str:
    return str(request["messages"][1]["content"][0]["text"])


def counting(request: dict[str, Any], record: RequestRecord) -> Reply | Fault:
    """Three turns; what is said depends on the task, so that no two rollouts say the same. First answers are held."""
    task, done = task_of(request), len(results(request))
    if done == 2:
        return Reply(f"{task} is done")
    reply = Reply(f"{task} at {done}", tool_calls=[("add", json.dumps({"a": done, "b": len(task)}))])
    return Fault(reply, hold_after=5) if done == 0 else reply


def assert_each_has_its_own(server: ScriptedServer, trajectories: list[Trajectory]) -> None:
    server.wait_idle()
    asked: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in server.requests:
        asked[task_of(record.json)].append(record)
    assert len(asked) == len(trajectories)
    for trajectory in trajectories:
        assert trajectory.task is not None
        records = asked[str(trajectory.task.id)]
        assert len(trajectory.steps) == len(records) == 3
        for record, step in zip(records, trajectory.steps, strict=True):
            Served(record).assert_is(step)
        assert len(trajectory.sequences()) == 1
        calls = [call.id for step in trajectory.steps if step.completion for call in step.completion.tool_calls]
        assert [run.tool_call_id for run in trajectory.tool_runs] == calls


@pytest.mark.sees("at once")
def test_twenty_in_one_event_loop(recorded: Recorded) -> None:
    from rollout_trace_strands import RolloutHookProvider

    async def rollout(model: Any, provider: Any, task: str) -> Trajectory:
        with rt.trajectory(task=task) as trajectory:
            await agent_of(model, is_recorded=False, hooks=[provider]).invoke_async(task)
        return trajectory

    async def run(server: ScriptedServer) -> list[Trajectory]:
        model, provider = openai_model(server), RolloutHookProvider(engine="vllm")
        rollouts = [asyncio.ensure_future(rollout(model, provider, f"task {n}")) for n in range(20)]
        # All are in the middle of their first answer.
        await asyncio.to_thread(server.wait_held, 20)
        server.release()
        return await asyncio.gather(*rollouts)

    with ScriptedServer(counting) as server:
        trajectories = asyncio.run(run(server))
    assert_each_has_its_own(server, trajectories)
    recorded.keep(*trajectories)


def test_eight_threads(recorded: Recorded) -> None:
    from rollout_trace_strands import RolloutHookProvider

    with ScriptedServer(counting) as server, ThreadPoolExecutor(8) as threads:
        model, provider = openai_model(server), RolloutHookProvider(engine="vllm")

        def rollout(task: str) -> Trajectory:
            with rt.trajectory(task=task) as trajectory:
                agent_of(model, is_recorded=False, hooks=[provider])(task)
            return trajectory

        futures = [threads.submit(rt.propagate(rollout), f"task {n}") for n in range(8)]
        server.wait_held(8)
        server.release()
        trajectories = [future.result() for future in futures]
    assert_each_has_its_own(server, trajectories)
    recorded.keep(*trajectories)


def test_one_agent_run_twice_at_once(recorded: Recorded) -> None:
    """Strands allows it on request; the runs share a history, so only who asked what is looked at."""
    from strands.types.agent import ConcurrentInvocationMode

    async def run(server: ScriptedServer) -> None:
        mode = ConcurrentInvocationMode.UNSAFE_REENTRANT
        agent = agent_of(openai_model(server), concurrent_invocation_mode=mode)
        runs = [asyncio.ensure_future(agent.invoke_async(name)) for name in ("one", "two")]
        await asyncio.to_thread(server.wait_held, 2)
        server.release()
        await asyncio.gather(*runs)

    with ScriptedServer(Fault("done", hold_after=2)) as server:
        asyncio.run(run(server))
    first, second = recorded.all()
    assert [len(first.steps), len(second.steps)] == [1, 1]
    assert (first.status, second.status) == ("completed", "completed")
    server.wait_idle()
    served = sorted(Served(record).asked["messages"][1]["content"][0]["text"] for record in server.requests)
    assert served == ["one", "one"] or served == ["one", "two"]
