"""A trajectory around calls: how it ends, what is inside what, and what it says about its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, ScriptedServer
from tests.clients.either import Kind, done, shown

from .harness import IDS, World, both, chat, inside, streamed


class AgentError(RuntimeError):
    """The agent's own."""


def test_the_agent_fails(kind: Kind) -> None:
    """An exception that leaves the block is recorded and raised on; the steps before it are kept."""
    kept: list[rt.Trajectory] = []

    async def scenario(world: World) -> Any:
        with rt.trajectory("own") as own:
            kept.append(own)
            await chat(world.client)
            raise AgentError("no idea")

    assert inside(kind, "fine", scenario).stats.calls == 1
    own = kept[-1]
    assert (own.status, [step.status for step in own.steps]) == ("failed", ["ok"])
    assert own.error is not None
    assert (own.error.type, own.error.message) == ("AgentError", "no idea")
    assert own.ended_at is not None
    assert own.started_at is not None
    assert own.ended_at >= own.started_at


def test_the_model_fails(kind: Kind) -> None:
    """So is an exception of the SDK's that the agent lets pass."""
    kept: list[rt.Trajectory] = []

    async def scenario(world: World) -> Any:
        with rt.trajectory() as own:
            kept.append(own)
            await chat(world.client)

    inside(kind, Fault(status=400), scenario)
    assert (kept[-1].status, kept[-1].steps[0].status) == ("failed", "error")
    assert kept[-1].error is not None
    assert kept[-1].error.type == "BadRequestError"


def test_the_agent_is_cancelled() -> None:
    """A cancelled agent's trajectory is aborted, its step cancelled."""
    kept: list[rt.Trajectory] = []

    async def scenario(world: World) -> Any:
        async def agent() -> Any:
            async with rt.trajectory() as own:
                kept.append(own)
                return await chat(world.client)

        task = asyncio.create_task(agent())
        await world.held()
        task.cancel()
        return [shown(error) for error in await asyncio.gather(task, return_exceptions=True)]

    inside("async", Fault(hold=True), scenario)
    assert (kept[-1].status, [step.status for step in kept[-1].steps]) == ("aborted", ["cancelled"])
    assert kept[-1].error is not None
    assert kept[-1].error.type == "CancelledError"


def test_interrupts_abort() -> None:
    """KeyboardInterrupt and SystemExit abort the trajectory and go on."""
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            with rt.trajectory() as own:
                raise error
        assert own.status == "aborted"


def test_a_status_of_the_users_own(kind: Kind) -> None:
    """A status that the agent sets stays."""
    kept: list[rt.Trajectory] = []

    async def scenario(world: World) -> Any:
        with rt.trajectory() as own:
            kept.append(own)
            own.status = "out of turns"
            return await chat(world.client)

    inside(kind, "fine", scenario)
    assert kept[-1].status == "out of turns"


def test_nested_trajectories(kind: Kind) -> None:
    """A trajectory opened inside another is its child, and names the parent's step at that moment."""
    kept: list[Any] = []

    async def scenario(world: World) -> Any:
        with rt.trajectory("outer") as outer:
            with rt.trajectory("early") as early:
                await chat(world.client, seed=0)
            await chat(world.client, seed=1)
            await streamed(world.client, seed=2)
            with rt.trajectory("inner") as inner:
                assert rt.current() is inner
                await chat(world.client, seed=3)
                with rt.trajectory("innermost") as innermost:
                    await chat(world.client, seed=4)
            assert rt.current() is outer
            await chat(world.client, seed=5)
        kept[:] = [outer, early, inner, innermost]
        return None

    assert inside(kind, "fine", scenario).stats.calls == 6
    outer, early, inner, innermost = kept
    seeds = [[(step.sampling or {})["seed"] for step in each_.steps] for each_ in kept]
    assert seeds == [[1, 2, 5], [0], [3], [4]]
    assert {each_.episode_id for each_ in kept} == {outer.episode_id}
    assert [each_.parent_id for each_ in kept[1:]] == [outer.id, outer.id, inner.id]
    assert (early.parent_step_id, inner.parent_step_id) == (None, outer.steps[1].id)
    assert innermost.parent_step_id == inner.steps[0].id
    assert {step.agent for step in outer.steps} == {"outer"}


def test_the_decorator(kind: Kind) -> None:
    """A decorated agent has a trajectory of its own for every run."""
    kept: list[Any] = []

    async def scenario(world: World) -> Any:
        if world.kind == "sync":

            @rt.trajectory("decorated", metadata={"a": 1})
            def agent(seed: int) -> Any:
                kept.append(rt.current())
                return world.client.chat.completions.create(**IDS, seed=seed)

            return [agent(0), agent(1)]

        @rt.trajectory("decorated", metadata={"a": 1})
        async def agent_async(seed: int) -> Any:
            kept.append(rt.current())
            return await chat(world.client, seed=seed)

        return [await agent_async(0), await agent_async(1)]

    inside(kind, "fine", scenario)
    first, second = kept[-2:]
    assert [[(step.sampling or {})["seed"] for step in each_.steps] for each_ in (first, second)] == [[0], [1]]
    assert first.id != second.id
    assert first.metadata is not second.metadata


@pytest.mark.parametrize("way", [streamed, chat])
def test_the_order_is_that_of_the_beginnings(way: Callable[..., Any]) -> None:
    """Steps come in the order their calls began, whichever ended first."""

    async def scenario(world: World) -> Any:
        slow = asyncio.create_task(way(world.client, seed=0))
        await world.held()
        quick = await chat(world.client, seed=1)
        world.server.release()
        return [await slow, quick]

    found = both("async", lambda request: Fault("slow", hold=True) if request["seed"] == 0 else "quick", scenario)
    assert [(step.sampling or {})["seed"] for step in found.steps] == [0, 1]
    assert [step.completion.content for step in found.steps if step.completion] == ["slow", "quick"]


def test_steps_without_ids_are_mentioned_once(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """Without `engine=` one line in the log says that there are no ids, and how to get them."""

    async def scenario(world: World) -> Any:
        for _ in range(2):
            with rt.trajectory("solver"):
                await done(world.client.chat.completions.create(model="m", messages=[]))
        return None

    inside(kind, "fine", scenario)
    lines = [record.getMessage() for record in caplog.records if "token ids" in record.getMessage()]
    assert len(lines) == 1
    assert "'solver'" in lines[0]
    assert 'engine="vllm"' in lines[0]


def test_steps_with_ids_are_not_mentioned(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said where the caller asks for ids itself, or the call failed."""

    async def scenario(world: World) -> Any:
        with rt.trajectory():
            return await chat(world.client)

    inside(kind, "fine", scenario)
    inside(kind, Fault(status=400), scenario)
    assert [record for record in caplog.records if record.name == "rollout_trace"] == []


def test_no_ids_issue() -> None:
    """A step without ids says why, and whether they were asked for."""
    with ScriptedServer("fine") as server, rt.trajectory() as own:
        import openai

        with rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none")) as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    (step,) = own.steps
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"
    assert "not asked" in step.token_issue.message
    assert (step.completion_token_ids, step.token_source, step.logprobs) == (None, None, None)
