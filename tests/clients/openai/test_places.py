"""Which trajectory a call goes to: bound clients, threads, tasks, processes, and the orphans."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.clients.either import Kind, drive, shown

from .harness import CHAT, World, bare, both, chat, run, since, streamed, traffic, wrapped


def seeds(trajectory: rt.Trajectory) -> list[Any]:
    return [(step.sampling or {}).get("seed") for step in trajectory.steps]


def latest_orphan() -> rt.Step:
    return rt.orphans()[-1]


def alone(kind: Kind, script: Any, scenario: Callable[[World], Any]) -> tuple[rt.Stats, Any]:
    """Runs a scenario with a wrapped client outside every trajectory; gives what was counted and returned."""
    before = rt.stats()

    async def whole(world: World) -> Any:
        try:
            return await scenario(world)
        finally:
            await world.close()

    with ScriptedServer(script) as server:
        found = drive(kind, whole(World(kind, server, wrapped, {})))
    counted = since(before)
    assert counted.attempts == len(server.requests)
    assert counted.recorder_errors == 0
    return counted, found


def warnings_of(caplog: pytest.LogCaptureFixture, part: str) -> int:
    return sum(part in record.getMessage() for record in caplog.records if record.name == "rollout_trace")


def test_an_orphan(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """Calls outside every trajectory are kept, counted, and warned of once."""

    async def scenario(world: World) -> Any:
        return [await chat(world.client, seed=1), await streamed(world.client, seed=2)]

    counted, _ = alone(kind, "fine", scenario)
    assert (counted.calls, counted.orphans) == (2, 2)
    assert [((step.sampling or {})["seed"], step.status) for step in rt.orphans()[-2:]] == [(1, "ok"), (2, "ok")]
    assert latest_orphan().agent is None
    assert warnings_of(caplog, "outside every open trajectory") == 1


def test_orphans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound the oldest orphans go, and are counted."""
    from rollout_trace.record import scope as context
    from rollout_trace.record.log import StepLog

    monkeypatch.setattr(context, "ORPHANS_KEPT", 3)
    monkeypatch.setattr(context, "_orphans", StepLog(keep=3))

    async def scenario(world: World) -> Any:
        return [await chat(world.client, seed=number) for number in range(5)]

    counted, _ = alone("sync", "fine", scenario)
    assert (counted.orphans, counted.orphans_dropped) == (5, 2)
    assert [(step.sampling or {})["seed"] for step in rt.orphans()] == [2, 3, 4]


def test_bind(kind: Kind) -> None:
    """A bound client's calls go to its trajectory: outside every one, inside another, and from copies."""

    async def scenario(world: World) -> Any:
        with rt.trajectory("mine") as mine:
            pass_on = rt.bind(world.client, mine)
            with rt.trajectory("other") as other:
                await chat(pass_on, seed=0)
                await streamed(pass_on.with_options(timeout=9), seed=1)
                await chat(pass_on.copy().copy(), seed=2)
                await chat(world.client, seed=3)
            context = contextvars.Context()
            await chat(pass_on, seed=4)
            if world.kind == "sync":
                context.run(lambda: pass_on.chat.completions.create(**CHAT, seed=5))
            else:
                await in_context(context, chat(pass_on, seed=5))
        return mine, other, type(pass_on).__name__, type(pass_on) is type(world.client)

    counted, (mine, other, name, same) = alone(kind, "fine", scenario)
    assert (seeds(mine), seeds(other)) == ([0, 1, 2, 4, 5], [3])
    assert {step.agent for step in mine.steps} == {"mine"}
    assert name == ("OpenAI" if kind == "sync" else "AsyncOpenAI")
    assert not same
    assert (counted.calls, counted.orphans) == (6, 0)


async def in_context(context: contextvars.Context, coroutine: Any) -> Any:
    return await context.run(asyncio.ensure_future, coroutine)


def test_bind_looks_the_same(kind: Kind) -> None:
    """Requests of a bound client are those of the client itself, on the same connections."""

    async def scenario(world: World) -> Any:
        trajectory = rt.current()
        assert trajectory is not None
        client = world.client if world.wrap is not wrapped else rt.bind(world.client, trajectory)
        return [await chat(client), await chat(world.client, seed=1), client]

    both(kind, "fine", scenario)


def test_bind_a_client_that_is_not_wrapped(kind: Kind) -> None:
    """The copy records; the client itself stays as it was."""

    async def scenario(world: World) -> Any:
        client = world.new_client()
        with rt.trajectory() as mine:
            await chat(rt.bind(client, mine), seed=0)
            kept = type(client)
        return mine, kept.__mro__[1]

    counted, (mine, base) = alone(kind, "fine", scenario)
    assert seeds(mine) == [0]
    assert "SyncAPIClient" in base.__name__ or "AsyncAPIClient" in base.__name__
    assert counted.calls == 1


def test_bind_to_a_closed_trajectory(kind: Kind) -> None:
    """A call of a client bound to a trajectory that has closed, or is gone, is an orphan."""

    async def scenario(world: World) -> Any:
        with rt.trajectory("closed") as closed:
            bound = rt.bind(world.client, closed)
        with rt.trajectory("other") as other:
            await chat(bound, seed=7)
            kept = list(closed.steps)
            del closed
            gc.collect()
            await chat(bound, seed=8)
        return kept, other

    counted, (kept, other) = alone(kind, "fine", scenario)
    assert kept == other.steps == []
    assert counted.orphans == 2
    assert [(step.sampling or {})["seed"] for step in rt.orphans()[-2:]] == [7, 8]


def test_threads(caplog: pytest.LogCaptureFixture) -> None:
    """A thread's calls belong to nobody; with `propagate` they are its starter's."""

    async def scenario(world: World) -> Any:
        def call(seed: int) -> Any:
            return world.client.chat.completions.create(**CHAT, seed=seed)

        with rt.trajectory("one") as one, ThreadPoolExecutor(4) as pool:
            list(pool.map(rt.propagate(call), range(8)))
            with rt.trajectory("two") as two:
                list(pool.map(call, range(8, 12)))
                pool.submit(contextvars.copy_context().run, call, 12).result()
                pool.submit(rt.propagate(call), 13).result()
        return one, two

    counted, (one, two) = alone("sync", "fine", scenario)
    assert (sorted(seeds(one)), seeds(two)) == (list(range(8)), [12, 13])
    assert (counted.calls, counted.orphans) == (14, 4)
    assert warnings_of(caplog, "outside every open trajectory") == 1
    assert sorted((step.sampling or {})["seed"] for step in rt.orphans()[-4:]) == [8, 9, 10, 11]


def test_propagate_a_coroutine_function() -> None:
    """`propagate` carries the trajectory into a loop of another thread, and leaves that thread as it was."""

    async def scenario(world: World) -> Any:
        async def call() -> Any:
            async with world.wrap(world.new_client()) as client:
                await chat(client, seed=1)
            return rt.current()

        with rt.trajectory() as mine:
            carried = rt.propagate(call)

            def in_a_thread() -> Any:
                return asyncio.run(carried()), rt.current()

            seen = await asyncio.to_thread(contextvars.Context().run, in_a_thread)
        return mine, seen

    _, (mine, (inside, after)) = alone("async", "fine", scenario)
    assert seeds(mine) == [1]
    assert inside is mine
    assert after is None


def conversation(client: Any, number: int) -> Any:
    messages = [{"role": "user", "content": f"trajectory {number}"}]
    return {"messages": messages, "seed": number}


def assert_none_mixed(trajectories: list[rt.Trajectory]) -> None:
    for number, trajectory in enumerate(trajectories):
        assert seeds(trajectory) == [number] * 3
        for step in trajectory.steps:
            assert step.messages == [{"role": "user", "content": f"trajectory {number}"}]
            assert step.completion is not None
            assert step.completion.content == f"answer {number}"
            assert step.status == "ok"


def answer(request: Any) -> str:
    return f"answer {request['seed']}"


COUNT = 50


@pytest.mark.more
def test_fifty_trajectories_at_once() -> None:
    """Fifty tasks on one client, each with its own trajectory: none has a call of another's."""

    kept: dict[int, rt.Trajectory] = {}

    async def agent(world: World, number: int) -> Any:
        async with rt.trajectory(f"agent {number}") as trajectory:
            asked = conversation(world.client, number)
            seen = [await chat(world.client, **asked)]
            seen += await asyncio.gather(streamed(world.client, **asked), chat(world.client, **asked))
        kept[number] = trajectory
        return shown(seen)

    async def scenario(world: World) -> Any:
        assert world.client
        return await asyncio.gather(*(agent(world, number) for number in range(COUNT)))

    assert_concurrent("async", scenario, kept)


def test_fifty_threads_at_once() -> None:
    """The same with threads."""

    kept: dict[int, rt.Trajectory] = {}

    def agent(world: World, number: int) -> Any:
        asked = conversation(world.client, number)
        with rt.trajectory(f"agent {number}") as trajectory:
            create = world.client.chat.completions.create
            seen = [create(**CHAT | asked), [*create(**CHAT | asked, stream=True)], create(**CHAT | asked)]
        kept[number] = trajectory
        return shown(seen)

    async def scenario(world: World) -> Any:
        assert world.client
        with ThreadPoolExecutor(COUNT) as pool:
            return list(pool.map(lambda number: agent(world, number), range(COUNT)))

    assert_concurrent("sync", scenario, kept)


def assert_concurrent(kind: Kind, scenario: Any, kept: dict[int, rt.Trajectory]) -> None:
    plain, ours = run(kind, answer, scenario, wrap=bare), run(kind, answer, scenario)
    assert without_ids(ours.outcome) == without_ids(plain.outcome)
    assert traffic(ours.server, in_order=False) == traffic(plain.server, in_order=False)
    assert ours.stats == rt.Stats(calls=3 * COUNT, attempts=3 * COUNT)
    assert ours.steps == []
    assert len({step.id for trajectory in kept.values() for step in trajectory.steps}) == 3 * COUNT
    assert_none_mixed([kept[number] for number in range(COUNT)])


def without_ids(outcome: Any) -> str:
    """An outcome without the ids of its responses, which number the requests of all at once."""
    return re.sub(r"chatcmpl-\w+", "", json.dumps(outcome))
