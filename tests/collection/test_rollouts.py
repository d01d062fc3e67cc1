"""``rt.rollouts``: groups as they are complete, paced by the consumer and by versions of the weights."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.trainers.feed import Feed
from tests.amount import amount
from tests.collection import executor_agents

ROLLOUTS = amount(120, 240, 2000)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(_answer) as server:
        yield server


def _answer(request: Mapping[str, Any]) -> Reply | Fault:
    if request["messages"][-1]["content"].startswith("refused"):
        return Fault(status=500)
    return Reply("four")


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, text: str) -> str:
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content or ""


def graded(task: Any, result: Any, trajectory: Any) -> float:
    return float(len(result))


def stream(agent: Any, tasks: Any, **options: Any) -> rt.Rollouts:
    return rt.rollouts(agent, tasks, progress=False, engine="vllm", **options)


def tasks_of(number: int) -> list[dict[str, str]]:
    return [{"id": f"t{at}"} for at in range(number)]


def noted(trajectory: rt.Trajectory) -> dict[str, Any]:
    found: dict[str, Any] = (trajectory.metadata or {})["collect"]
    return found


@pytest.mark.parametrize("order", ["ready", "tasks"])
def test_groups_are_what_the_file_has(tmp_path: Path, client: openai.OpenAI, order: Any) -> None:
    output = tmp_path / "rollouts.jsonl"
    figures: list[dict[str, float]] = []

    def agent(task: Any, rollout: rt.Rollout) -> str:
        if task["id"] == "t2" and rollout.index == 1:
            raise RuntimeError("in an agent")
        with rt.trajectory("helper"):
            ask(client, "inside")
        return ask(client, task["id"])

    options = {"samples": 3, "output": output, "reward": graded, "policy_version": 7, "order": order}
    made = stream(agent, tasks_of(5), **options, log=figures.append)
    groups = list(made)
    ids = [f"t{at}" for at in range(5)]
    assert (ids == [one.id for one in groups]) if order == "tasks" else sorted(str(one.id) for one in groups) == ids
    written = {one.id: one for one in rt.read(output)}
    runs = [run for group in groups for run in group.trajectories]
    assert len(runs) == 15
    assert {run.id: run.to_json() for run in runs} == {
        name: one.to_json() for name, one in written.items() if one.parent_id is None
    }
    of_file = {group.id: group for group in rt.groups(written.values())}
    for group in groups:
        assert [run.rollout_index for run in group.trajectories] == [0, 1, 2]
        assert group.rewards == tuple(None if run.status == "failed" else 4.0 for run in group.trajectories)
        for found in (group.inside, of_file[group.id].inside):
            assert Counter(one.parent_id for one in found) == Counter(
                run.id for run in group.trajectories if run.status != "failed"
            )
        assert {step.policy_version for run in (*group.trajectories, *group.inside) for step in run.steps} == {7}
    assert [run.status for run in runs].count("failed") == 1
    assert [one["groups"] for one in figures] == [1, 2, 3, 4, 5]
    assert {one["reward"] for one in figures} == {4.0}
    assert "exact_turns" not in figures[0]
    assert made.summary is not None
    assert made.summary.by_status == {"completed": 14, "failed": 1}
    assert list(made) == []


def test_async_agents_tasks_and_consumers(tmp_path: Path, server: ScriptedServer) -> None:
    """A queue of tasks: what is asked for next depends on what has come."""
    waiting: asyncio.Queue[str | None]

    async def tasks() -> AsyncIterator[str]:
        while (task := await waiting.get()) is not None:
            yield task

    async def main() -> list[tuple[Any, list[int | None]]]:
        nonlocal waiting
        waiting, found = asyncio.Queue(), []
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="key") as client:

            async def agent(task: str) -> str:
                answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])
                return answer.choices[0].message.content or ""

            waiting.put_nowait("a")
            async with stream(agent, tasks(), samples=2, in_flight=1, output=tmp_path / "x.jsonl") as groups:
                async for group in groups:
                    found.append((group.id, [run.rollout_index for run in group.trajectories]))
                    waiting.put_nowait([None, "b", "a"][3 - len(found)] if len(found) < 4 else None)
        return found

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [("a", [0, 1]), ("a#2", [2, 3]), ("b", [0, 1])]
    assert len(rt.groups(rt.read(tmp_path / "x.jsonl"))) == 3


def test_the_consumer_sets_the_pace(client: openai.OpenAI) -> None:
    """While it takes nothing, the agents come to rest, though the tasks never end."""
    state, running, taken, most = threading.Condition(), 0, 0, 0

    def tasks() -> Iterator[int]:
        nonlocal most
        for number in itertools.count():
            most = max(most, number + 1 - taken)
            yield number

    def agent(task: int) -> str:
        nonlocal running
        with state:
            running += 1
        try:
            return ask(client, "a question")
        finally:
            with state:
                running -= 1
                state.notify_all()

    with stream(agent, tasks(), samples=2, in_flight=4) as groups:
        for group in itertools.islice(groups, 6):
            taken += 1
            assert len(group.trajectories) == 2
            with state:
                assert state.wait_for(lambda: not running, 60)
    # Two groups wait, four rollouts run at the most, each in a group of its own; one more task has been taken.
    assert most <= 2 + 4 + 1


def test_no_group_is_too_old_and_none_is_starved(tmp_path: Path, client: openai.OpenAI) -> None:
    """The slow task is too old; then only a group that was so more often is handed over before it."""
    version, moved, output = 0, threading.Condition(), tmp_path / "rollouts.jsonl"

    def tasks() -> Iterator[dict[str, str]]:
        yield {"id": "slow"}
        for number in itertools.count():
            yield {"id": f"t{number}"}

    def agent(task: Any, rollout: rt.Rollout) -> str:
        began = version
        if task["id"] == "slow":
            with moved:
                # The first attempt lasts for three versions, the second for as many as there are while it lasts.
                moved.wait_for(lambda: version >= began + 3, 60 if rollout.attempt == 1 else 1)
        return ask(client, task["id"])

    figures: list[dict[str, float]] = []
    options = {"in_flight": 3, "output": output, "max_lag": 2, "policy_version": lambda: version}
    with stream(agent, tasks(), **options, log=figures.append) as groups:
        for group in groups:
            for run in group.trajectories:
                assert 0 <= version - noted(run)["policy_version"] <= 2
                assert all(noted(run)["policy_version"] <= int(step.policy_version or 0) for step in run.steps)
            with moved:
                version += 1
                moved.notify_all()
            if group.id == "slow":
                assert group.trajectories[0].status == "completed"
                break
    assert figures[-1]["stale"] >= 1
    slow = {noted(one)["attempt"]: one for one in rt.read(output) if one.task is not None and one.task.id == "slow"}
    assert len(slow) > 1
    assert {at: noted(one).get("stale", False) for at, one in slow.items()} == {at: at < len(slow) for at in slow}
    assert {at: [step.trainable for step in one.steps] for at, one in slow.items()} == {
        at: [at == len(slow)] for at in slow
    }


def test_a_group_that_is_always_too_old_is_given_up(tmp_path: Path, client: openai.OpenAI) -> None:
    versions = itertools.count()
    options = {"output": tmp_path / "runs/", "max_lag": 0, "policy_version": lambda: next(versions)}
    figures: list[dict[str, float]] = []
    made = stream(partial(ask, client), ["a", "b"], **options, log=figures.append)
    assert list(made) == []
    assert [(one["dropped"], one["groups"]) for one in figures] == [(1, 0), (2, 0)]
    found = list(rt.read(tmp_path / "runs/"))
    assert Counter(one.task.id for one in found if one.task) == {"a": 4, "b": 4}
    assert all(noted(one)["stale"] and not one.steps[0].trainable for one in found)


def test_leaving_it_loses_what_runs_alone(tmp_path: Path, client: openai.OpenAI) -> None:
    """Taken groups do not come again, complete ones come from the file, and cut rollouts are made again."""
    output, go, made = tmp_path / "rollouts.jsonl", threading.Event(), Counter[str]()

    def agent(task: Any, rollout: rt.Rollout) -> str:
        made[f"{task['id']}/{rollout.index}"] += 1
        if task["id"] == "t3":
            go.wait(60)
        return ask(client, task["id"])

    options = {"samples": 2, "in_flight": 4, "output": output, "reward": graded}
    with stream(agent, tasks_of(4), **options) as groups:
        first = [next(groups).id, next(groups).id]
        go.set()
    second = list(stream(agent, tasks_of(4), **options))
    assert sorted(map(str, [*first, *(one.id for one in second)])) == ["t0", "t1", "t2", "t3"]
    written = list(rt.read(output))
    done = Counter((one.group_id, one.rollout_index) for one in written if one.status == "completed")
    assert set(done.values()) == {1}
    assert len(done) == 8
    assert {run.id for group in second for run in group.trajectories} <= {one.id for one in written}
    assert list(stream(agent, tasks_of(4), **options)) == []


@pytest.mark.parametrize("place", ["rollouts.jsonl", "memory://left/runs"])
def test_groups_that_were_taken_after_the_last_rollout_do_not_come_again(
    tmp_path: Path, client: openai.OpenAI, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Where the status of an address is.
    output = place if "://" in place else tmp_path / place
    options = {
        "output": output,
        "in_flight": 20,
        "recording": {"spool": tmp_path / "spool"} if "://" in place else None,
    }
    groups = stream(partial(ask, client), ["a", "b", "c"], **options)
    taken = [next(groups).id]
    while groups.summary is None:  # All are made.
        threading.Event().wait(0.01)
    taken.append(next(groups).id)
    if "://" not in place:  # Also after a kill.
        lines = (tmp_path / "rollouts.history.jsonl").read_text().splitlines()
        assert sum('"kind":"group"' in line for line in lines) == 2
    groups.close()
    again = [group.id for group in stream(partial(ask, client), ["a", "b", "c"], **options)]
    assert sorted(map(str, taken + again)) == ["a", "b", "c"]


def test_a_redact_function_that_fails_holds_nothing_up(tmp_path: Path, client: openai.OpenAI) -> None:
    def redact(text: str, place: str) -> str:
        raise ValueError("in redact")

    options = {"output": tmp_path / "x.jsonl", "recording": {"redact": redact}, "samples": 2}
    groups = list(stream(lambda task: ask(client, "?"), ["a", "b", "c"], **options, in_flight=2))
    assert sorted((str(group.id), len(group.trajectories)) for group in groups) == [("a", 2), ("b", 2), ("c", 2)]


def test_two_tasks_with_one_group_are_refused(client: openai.OpenAI) -> None:
    for tasks in (["x", "x", "x#2"], ["x#2", "x", "x"]):
        with pytest.raises(ValueError, match=r"the task 'x.*' would have the group 'x#2', which another task has"):
            list(stream(partial(ask, client), iter(tasks)))


def test_an_async_stream_that_is_left_ends(tmp_path: Path, server: ScriptedServer) -> None:
    output = tmp_path / "rollouts.jsonl"

    async def main() -> list[str]:
        http = httpx2.AsyncClient()
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="key", http_client=http) as client:

            async def agent(task: int) -> str:
                if task:
                    await asyncio.Event().wait()
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
                return "done"

            async for _ in stream(agent, range(3), output=output):
                break
            others = asyncio.all_tasks() - {asyncio.current_task()}
            while left := [one for one in others if not one.done() and "rollouts" in repr(one)]:
                await asyncio.wait(left, timeout=60)
        return sorted(one.status for one in rt.read(output))

    assert asyncio.run(asyncio.wait_for(main(), 60)) == ["aborted", "aborted", "completed"]


def test_what_the_tasks_raise_comes_after_their_groups(client: openai.OpenAI) -> None:
    def tasks() -> Iterator[str]:
        yield "a"
        raise OSError("the tasks are gone")

    groups = stream(partial(ask, client), tasks())
    assert next(groups).id == "a"
    with pytest.raises(OSError, match="the tasks are gone"):
        next(groups)
    with pytest.raises(ValueError, match="the stream of tasks is empty"):
        list(stream(partial(ask, client), iter([])))


def test_a_server_that_is_gone_is_said(client: openai.OpenAI) -> None:
    groups = stream(partial(ask, client), (f"refused {at}" for at in itertools.count()), limits={"failures": 3})
    with pytest.raises(RuntimeError, match="no more rollouts are made: 3 rollouts in a row failed"):
        list(groups)


def test_other_processes_hand_their_trajectories_over(tmp_path: Path, server: ScriptedServer) -> None:
    output = tmp_path / "rollouts.jsonl"
    tasks = executor_agents.tasks(server.base_url, 3)
    options: dict[str, Any] = {"executor": {"kind": "process", "processes": 1}, "policy_version": 5}
    groups = list(stream(executor_agents.solve, tasks, samples=2, output=output, **options))
    assert sorted(str(one.id) for one in groups) == ["t0", "t1", "t2"]
    runs = {run.id: run for group in groups for run in group.trajectories}
    assert {name: one.to_json() for name, one in runs.items()} == {one.id: one.to_json() for one in rt.read(output)}
    assert {step.policy_version for run in runs.values() for step in run.steps} == {5}


def test_who_asks_for_tasks_gets_their_groups(client: openai.OpenAI) -> None:
    """Of a trainer's adapter: in the order of the tasks, each time of as many samples as are asked for."""
    feed = Feed(partial(ask, client), in_flight=4, name="n")
    asked = [(["a", "b", "a"], 2), (["b"], 1), (["a", "c"], 3)]
    groups = [feed.make(*one) for one in asked]
    feed.close()
    with pytest.raises(RuntimeError, match="the rollouts have ended"):
        feed.make(["a"], 1)
    assert [[group.id for group in made] for made in groups] == [["n/a", "n/b", "n/a#2"], ["n/b#2"], ["n/a#3", "n/c"]]
    indexes = [[[run.rollout_index for run in group.trajectories] for group in made] for made in groups]
    assert indexes == [[[0, 1], [0, 1], [2, 3]], [[2]], [[4, 5, 6], [0, 1, 2]]]


def test_who_asks_is_told_of_a_group_that_is_given_up(client: openai.OpenAI) -> None:
    versions = itertools.count()
    feed = Feed(partial(ask, client), max_lag=0, policy_version=lambda: next(versions))
    with pytest.raises(RuntimeError, match=r"rollouts of 'a' have no trajectory: .* older than max_lag"):
        feed.make(["a"], 2)
    feed.close()


def test_an_async_stream_ends_once(client: openai.OpenAI) -> None:
    """By an exception of the tasks, and by a plain `with`."""

    def tasks() -> Iterator[str]:
        yield "a"
        raise OSError("the tasks are gone")

    async def main() -> None:
        groups = stream(partial(ask, client), tasks())
        await groups.__anext__()
        with pytest.raises(OSError, match="the tasks are gone"):
            await groups.__anext__()
        with pytest.raises(StopAsyncIteration):
            await groups.__anext__()
        with stream(partial(ask, client), map(str, itertools.count())) as left:
            await left.__anext__()
        while left.summary is None:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.processes
def test_a_group_whose_processes_were_lost_is_not_waited_for(tmp_path: Path, server: ScriptedServer) -> None:
    feed = Feed(executor_agents.die, executor={"kind": "process", "processes": 1}, output=tmp_path / "x.jsonl")
    tasks = executor_agents.tasks(server.base_url, 1, folder=str(tmp_path))
    try:
        with pytest.raises(RuntimeError, match="rollouts of 't0' have no trajectory"):
            feed.make(tasks, 1)
    finally:
        feed.close()


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"agent": 3}, TypeError, "the agent is 3"),
    ({"tasks": []}, ValueError, "there are no tasks in the list of tasks"),
    ({"tasks": iter([1]), "limits": {"task_ids": ["1"]}}, ValueError, "task_ids needs a list of tasks"),
    ({"in_flight": 0}, ValueError, "in_flight is 0"),
    ({"concurrency": 3}, TypeError, "no argument 'concurrency'; give in_flight="),
    ({"order": "random"}, ValueError, "order is 'random'"),
    ({"max_lag": 2}, ValueError, "max_lag is 2, but there is no policy_version"),
    ({"max_lag": 2, "policy_version": "v1"}, TypeError, "policy_version is 'v1' .*which max_lag is compared with"),
    ({"max_lag": -1, "policy_version": 1}, ValueError, "max_lag is -1"),
    ({"policy_version": lambda: 1.5}, TypeError, r"policy_version\(\) returned 1.5"),
    ({"log": 3}, TypeError, "log is 3"),
    ({"sample": 3}, TypeError, r"rollouts\(\) has no argument 'sample'. Did you mean samples"),
]


@pytest.mark.parametrize(("given", "kind", "text"), BAD)
def test_bad_input_is_said_before_any_rollout(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        rt.rollouts(given.pop("agent", len), given.pop("tasks", ["a"]), **given)


class Flaky:
    """An async agent, some of whose calls are refused; of the task ``slow`` it makes ten."""

    def __init__(self, address: str) -> None:
        http = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=64))
        self.client = openai.AsyncOpenAI(base_url=address, api_key="key", max_retries=0, http_client=http)

    async def rollout(self, task: Any, rollout: rt.Rollout) -> str:
        is_refused = hash((task["number"], rollout.index, rollout.attempt)) % 100 < 10
        text = "refused" if is_refused else "a question"
        for _ in range(10 if task["id"] == "slow" else 1):
            await self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return "done"


def test_each_rollout_is_once_in_the_file_and_in_a_group(tmp_path: Path, server: ScriptedServer) -> None:
    """With faults, retries, versions that move and a consumer that stops for a while. 2,000 in ``make kills``."""
    output, samples, version = tmp_path / "rollouts.jsonl", 4, 0
    tasks = [{"id": "slow" if at % 20 == 7 else f"t{at}", "number": at} for at in range(ROLLOUTS // samples)]
    seen: dict[str, list[str]] = {}
    handed: list[weakref.ref[rt.Trajectory]] = []

    async def main() -> dict[str, float]:
        nonlocal version
        agent = Flaky(server.base_url)
        figures: list[dict[str, float]] = []
        options = {"samples": samples, "in_flight": 32, "output": output, "reward": graded, "max_lag": 3}
        options |= {"retries": {"times": 1, "wait": 0.001}, "limits": {"failures": 0}, "log": figures.append}
        async with agent.client, stream(agent, iter(tasks), **options, policy_version=lambda: version) as groups:
            async for group in groups:
                assert str(group.id) not in seen
                seen[str(group.id)] = [run.id for run in group.trajectories]
                assert all(version - noted(run)["policy_version"] <= 3 for run in group.trajectories)
                handed.extend(map(weakref.ref, group.trajectories))
                version += len(seen) % 8 == 0
                if len(seen) == 20:
                    await asyncio.sleep(0.3)
        return figures[-1]

    figures = asyncio.run(asyncio.wait_for(main(), 300))
    gc.collect()
    assert sum(one() is not None for one in handed) <= 2 * samples
    assert len(seen) + figures["dropped"] == len(tasks)
    assert figures["dropped"] <= len(tasks) / 20
    assert sum(name.startswith("slow") for name in seen) == sum(task["id"] == "slow" for task in tasks)
    of_file = {str(group.id): [run.id for run in group.trajectories] for group in rt.groups(rt.read(output))}
    assert {name: sorted(of_file[name]) for name in seen} == {name: sorted(ids) for name, ids in seen.items()}
    attempts = Counter((one.group_id, one.rollout_index, noted(one)["attempt"]) for one in rt.read(output))
    assert set(attempts.values()) == {1}
    stale = [one for one in rt.read(output) if noted(one).get("stale")]
    assert len(stale) == figures["stale"]
    assert not any(step.trainable for one in stale for step in one.steps if step.status == "ok")
