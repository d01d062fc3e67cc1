"""Rollouts in actors of a real Ray cluster on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import rollout_trace as rt
from rollout_trace.collection.job import Outcome, WorkerLost
from rollout_trace.collection.ray_executor import RayExecutor
from rollout_trace.testing import ScriptedServer
from tests.collection import executor_agents as agents
from tests.collection.jobs import job, work
from tests.collection.making import all_of, exists, said, using

pytestmark = pytest.mark.usefixtures("cluster")


def test_rollouts_are_spread_over_actors(tmp_path: Path) -> None:
    """As many actors as there are CPUs; each makes several rollouts at the same time. The cluster goes on."""
    shared = work()
    processes = said(all_of(RayExecutor(), *(job(shared, n, "meet", str(tmp_path), 6) for n in range(6))))
    assert sorted(map(processes.count, set(processes))) == [3, 3]
    assert ray.is_initialized()
    assert str(os.getpid()) not in processes


@pytest.mark.parametrize("how", [("die", signal.SIGKILL), ("leave", 0)])
def test_an_actor_that_ends(how: tuple[Any, ...]) -> None:
    async def body(executor: RayExecutor) -> tuple[str, str]:
        shared = work()
        first = (await executor.run(job(shared, 0, "process"))).trajectory_id
        with pytest.raises(WorkerLost, match="the Ray actor that made the rollout has ended: ActorDiedError"):
            await executor.run(job(shared, 1, *how))
        return first, (await executor.run(job(shared, 2, "process"))).trajectory_id

    first, second = using(RayExecutor(actors=1), body)
    assert first != second


@pytest.mark.parametrize("how", ["block_loop", "hold_everything"])
def test_an_actor_that_does_not_answer(how: str, tmp_path: Path) -> None:
    async def body(executor: RayExecutor) -> Outcome:
        shared = work(timeout=0.1)
        with pytest.raises(WorkerLost, match="did not answer 1 seconds after a rollout's time had ended"):
            await executor.run(job(shared, 0, how, str(tmp_path / "ready")))
        return await executor.run(job(shared, 1, "process"))

    assert using(RayExecutor(actors=1, grace=1.0), body).status == "completed"
    assert (tmp_path / "ready").exists()


def test_a_cancelled_rollout_is_stopped(tmp_path: Path) -> None:
    async def body(executor: RayExecutor) -> tuple[str, str]:
        begun, stopped = tmp_path / "begun", tmp_path / "stopped"
        running = asyncio.ensure_future(executor.run(job(work(), 0, "for_ever", str(begun), str(stopped))))
        await exists(begun)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await exists(stopped)
        return begun.read_text(), (await executor.run(job(work(), 1, "process"))).trajectory_id

    first, second = using(RayExecutor(actors=1), body)
    assert first == second


def test_actors_are_replaced_after_so_many_rollouts() -> None:
    async def body(executor: RayExecutor) -> list[str]:
        shared = work()
        return [(await executor.run(job(shared, n, "process"))).trajectory_id for n in range(3)]

    processes = using(RayExecutor(actors=1, rollouts_per_actor=2), body)
    assert [processes.count(one) for one in dict.fromkeys(processes)] == [2, 1]


def test_what_can_be_sent() -> None:
    """Exceptions come back; of agents and tasks Ray sends what is defined in a function, but no lock."""
    shared = work(agent=lambda task: task)
    found = all_of(
        RayExecutor(actors=1),
        job(shared, 0, "process"),
        job(shared, 1, "fail", "value"),
        job(shared, 2, "fail", "own"),
        job(shared, 3, "process", threading.Lock()),
        job(work(agent=threading.Lock()), 4, "process"),
    )
    assert isinstance(found[0], Outcome)
    assert [repr(one) for one in found[1:3]] == ["ValueError('no such thing')", "RuntimeError('Own: of a function')"]
    assert "the task t cannot be sent to a Ray actor" in str(found[3])
    assert "the agent, or a reward, cannot be sent to a Ray actor" in str(found[4])


# With `rt.collect`.


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: f"about {request['messages'][-1]['content']}") as server:
        yield server


def collect(agent: Any, tasks: Any, output: str, **options: Any) -> rt.CollectSummary:
    given = {"samples": 2, "seed": 5, "engine": "vllm", "reward": agents.reward, "progress": False, **options}
    return rt.collect(agent, tasks, output=output, **given)


@pytest.mark.parametrize(("agent", "place"), [(agents.solve, "folder/"), (agents.solve_async, "x.jsonl")])
def test_the_same_as_in_this_process(agent: Any, place: str, tmp_path: Path, server: ScriptedServer) -> None:
    """Rollouts, rewards, tokens and the summary; a folder has shards of each actor."""
    tasks = agents.tasks(server.base_url, 3)
    here, there = f"{tmp_path}/here-{place}", f"{tmp_path}/there-{place}"
    local = collect(agent, tasks, here)
    made = collect(agent, tasks, there, executor="ray", concurrency=4)
    assert agents.account(there) == agents.account(here)
    assert len(agents.account(there)) == 6
    assert (made.mean_reward, made.usage) == (local.mean_reward, local.usage)
    if place == "folder/":
        assert len(list(Path(there).glob("part-*"))) == 2
    again = collect(agent, tasks, there, samples=3, executor="ray")
    assert (again.earlier, again.made) == (6, 3)


def test_actors_that_are_killed(tmp_path: Path, server: ScriptedServer) -> None:
    """Their rollouts are made again; what they had recorded comes from their journals, and does not count."""
    tasks = agents.tasks(server.base_url, 3, folder=str(tmp_path))
    collect(agents.solve, tasks, f"{tmp_path}/here/")
    options: dict[str, Any] = {"name": "solve", "executor": rt.RayExecutor(actors=2, num_cpus=0.5)}
    summary = collect(agents.solve_or_die, tasks, f"{tmp_path}/there/", **options)
    assert summary.by_status == {"completed": 6}
    named = [(*row[:4], f"{row[0]}", *row[5:]) for row in agents.account(f"{tmp_path}/there/")]
    assert named == agents.account(f"{tmp_path}/here/")


def test_agent_and_reward_of_a_function(tmp_path: Path, server: ScriptedServer) -> None:
    """Ray sends them, with what they refer to."""
    begin = "what is"

    def agent(task: dict[str, Any]) -> str:
        return agents.ask(task, f"{begin} {task['question']}")

    tasks = agents.tasks(server.base_url, 2)
    summary = collect(agent, tasks, f"{tmp_path}/x.jsonl", executor="ray", reward=lambda *_: float(len(begin)))
    assert (summary.by_status, summary.mean_reward) == ({"completed": 4}, 7.0)
