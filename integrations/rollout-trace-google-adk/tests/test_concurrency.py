"""Many runs at once, which share one model object, and many runs after each other."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from oracle import Recorded, Served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.integration import Call, Frame
from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer

from .harness import SSE, adding, agent_of, litellm, results, run, runner_of


def task_of(messages: list[Any]) -> str:
    return str(messages[1]["content"])


def counting(request: dict[str, Any], messages: list[Any]) -> Reply | Fault:
    """Three turns; what is said depends on the task, so that no two runs say the same. First answers are held."""
    task, done = task_of(messages), len(results(messages))
    if done == 2:
        return Reply(f"{task} is done")
    reply = Reply(f"{task} at {done}", tool_calls=[("add", json.dumps({"a": done, "b": len(task)}))])
    return Fault(reply, hold_after=5) if done == 0 else reply


def assert_each_has_its_own(server: ScriptedServer, trajectories: list[Trajectory]) -> None:
    server.wait_idle()
    asked: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in server.requests:
        asked[task_of(record.json["messages"])].append(record)
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
        assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
        assert [run.result for run in trajectory.tool_runs] == [
            len(records[0].json["messages"][1]["content"]) + n for n in (0, 1)
        ]


async def rollout(runner: Any, task: str) -> Trajectory:
    with rt.trajectory(task=task) as trajectory:
        await run(runner, task, config=SSE)
    return trajectory


@pytest.mark.sees("at once")
@pytest.mark.parametrize("route", ["openai", "hosted_vllm"])
def test_twelve_in_one_event_loop(recorded: Recorded, route: str) -> None:
    """One model, one agent, one runner."""

    async def main(server: ScriptedServer) -> list[Trajectory]:
        runner = runner_of(agent_of(litellm(server, route)))
        rollouts = [asyncio.ensure_future(rollout(runner, f"task {n}")) for n in range(12)]
        # All are in the middle of their first answer.
        await asyncio.to_thread(server.wait_held, 12)
        server.release()
        return await asyncio.gather(*rollouts)

    with ScriptedServer(counting) as server:
        trajectories = asyncio.run(main(server))
    assert_each_has_its_own(server, trajectories)
    recorded.keep(*trajectories)


@pytest.mark.parametrize("route", ["openai", "hosted_vllm"])
def test_eight_threads(recorded: Recorded, route: str) -> None:
    """Each has an event loop of its own."""
    with ScriptedServer(counting) as server, ThreadPoolExecutor(8) as threads:
        runner = runner_of(agent_of(litellm(server, route)))
        futures = [threads.submit(asyncio.run, rollout(runner, f"task {n}")) for n in range(8)]
        server.wait_held(8)
        server.release()
        trajectories = [future.result() for future in futures]
    assert_each_has_its_own(server, trajectories)
    recorded.keep(*trajectories)


def test_nothing_is_kept_of_runs_that_are_over() -> None:
    async def run_times(number: int, runner: Any) -> None:
        for _ in range(number):
            await rollout(runner, "task")

    def alive_after(number: int, runner: Any) -> int:
        asyncio.run(run_times(number, runner))
        # Counted when the event loop is closed: an open one keeps up to a hundred cancelled timers,
        # each with the context of the run that set it.
        gc.collect()
        kinds = [type(one) for one in gc.get_objects()]
        ours = [
            kind for kind in kinds if str(kind.__module__).startswith(("rollout_trace.record", "rollout_trace_google"))
        ]
        return sum(issubclass(kind, (Frame, Call)) for kind in ours)

    with ScriptedServer(adding(1)) as server:
        runner = runner_of(agent_of(litellm(server)))
        few, many = alive_after(10, runner), alive_after(30, runner)
    # A run has eight of them: frames of the run, of two model calls and of a tool, and calls.
    assert many - few < 8
