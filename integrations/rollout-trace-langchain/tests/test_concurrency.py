"""Rollouts that share one model object, at the same time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply
from rollout_trace_langchain import RolloutCallbackHandler, runs

from .agents import adder, chat, first_user, question, serving, three_turns, written
from .oracle import served


def all_at_once(count: int) -> Any:
    """The first turn of each rollout waits for those of all others."""

    def script(request: Any) -> Any:
        reply = three_turns(request)
        return Fault(reply, hold=True) if len(request["messages"]) == 1 else reply

    return script


def assert_unmixed(rollouts: list[rt.Trajectory], server: Any) -> None:
    log = {call.response_id: call for call in served(server)}
    assert len(log) == 3 * len(rollouts)
    for number, own in enumerate(
        sorted(rollouts, key=lambda one: int(first_user({"messages": one.steps[0].messages})))
    ):
        assert len(own.steps) == 3
        for turn, step in enumerate(own.steps):
            call = log.pop(step.response_id)
            assert step.messages == call.request["messages"]
            assert step.messages is not None
            assert (step.messages[0]["content"], len(step.messages)) == (str(number), 1 + 2 * turn)
            assert step.completion_token_ids is not None
            assert step.completion_token_ids.tolist() == call.ids
        assert [run.step_id for run in own.tool_runs] == [step.id for step in own.steps[:2]]
        assert len(own.sequences()) == 1
    assert not log


@pytest.mark.sees("at once")
@pytest.mark.parametrize("is_own", [False, True], ids=["in trajectories", "alone"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_twenty_tasks(is_own: bool, is_streamed: bool, tmp_path: Path) -> None:
    handled: Any = {"callbacks": [RolloutCallbackHandler()]} if is_own else {}

    async def rollout(agent: Any, number: int) -> None:
        if is_own:
            await agent.ainvoke(question(str(number)), handled)
            return
        with rt.trajectory(group="g", rollout_index=number):
            await agent.ainvoke(question(str(number)))

    async def main(server: Any) -> None:
        agent = adder(chat(server, streaming=is_streamed))
        tasks = [asyncio.create_task(rollout(agent, number)) for number in range(20)]
        await asyncio.to_thread(server.wait_held, 20)
        server.release()
        await asyncio.gather(*tasks)

    with serving(all_at_once(20)) as server, rt.recording(tmp_path / "runs.jsonl"):
        asyncio.run(main(server))
        assert_unmixed(list(written(tmp_path / "runs.jsonl")), server)
    assert not runs._runs


@pytest.mark.parametrize("is_own", [False, True], ids=["in trajectories", "alone"])
def test_eight_threads(is_own: bool, tmp_path: Path) -> None:
    handled: Any = {"callbacks": [RolloutCallbackHandler()]} if is_own else {}
    with serving(all_at_once(8)) as server, rt.recording(tmp_path / "runs.jsonl"):
        agent = adder(chat(server))

        def rollout(number: int) -> None:
            if is_own:
                agent.invoke(question(str(number)), handled)
                return
            with rt.trajectory(group="g", rollout_index=number):
                agent.invoke(question(str(number)))

        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(rt.propagate(rollout), number) for number in range(8)]
            server.wait_held(8)
            server.release()
            for one in running:
                one.result()
        assert_unmixed(list(written(tmp_path / "runs.jsonl")), server)
    assert not runs._runs


def test_a_batch_of_agents(tmp_path: Path) -> None:
    """``agent.batch`` begins all its runs at once: outside a trajectory each is one."""
    with serving(all_at_once(2)) as server, rt.recording(tmp_path / "runs.jsonl"):
        server.release()
        handled: Any = {"callbacks": [RolloutCallbackHandler()]}
        adder(chat(server)).batch([question(str(number)) for number in range(5)], handled)
        assert_unmixed(list(written(tmp_path / "runs.jsonl")), server)


def test_streams_that_take_turns(tmp_path: Path) -> None:
    """Of two agents that stream in turn in one context, neither is inside the other."""
    with serving(three_turns) as server, rt.recording(tmp_path / "runs.jsonl"):
        agent = adder(chat(server))
        handled: Any = {"callbacks": [RolloutCallbackHandler()]}
        for _ in zip(agent.stream(question("0"), handled), agent.stream(question("1"), handled), strict=True):
            pass
        rollouts = list(written(tmp_path / "runs.jsonl"))
        assert_unmixed(rollouts, server)
    assert [own.parent_id for own in rollouts] == [None, None]


def test_models_that_stream_in_turns(tmp_path: Path) -> None:
    with serving(lambda request: Reply("Hello")) as server, rt.recording(tmp_path / "runs.jsonl"):
        llm = chat(server)
        handled: Any = {"callbacks": [RolloutCallbackHandler()]}
        for _ in zip(llm.stream("0", handled), llm.stream("1", handled), strict=True):
            pass
        assert [len(own.steps) for own in written(tmp_path / "runs.jsonl")] == [1, 1]
