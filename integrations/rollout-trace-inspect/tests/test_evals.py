"""Evaluations: each epoch of each sample is a trajectory, joined to Inspect's log."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.event import ModelEvent, ToolEvent
from inspect_ai.scorer import includes, match, model_graded_qa
from inspect_ai.solver import generate
from oracle import Served, assert_all_served, assert_served

import rollout_trace as rt
from rollout_trace.testing import Reply, RequestRecord, ScriptedServer

from .harness import (
    Evals,
    add,
    adding,
    adding_task,
    children,
    facts,
    recorded_model,
    results,
    roots,
    samples_of,
)


@pytest.mark.sees("ids")
@pytest.mark.sees("one row")
def test_a_tool_loop_of_three_turns(evals: Evals) -> None:
    with ScriptedServer(adding()) as server:
        log = evals.run(adding_task(), recorded_model(server))
        (trajectory,) = evals.trajectories(log)
        assert_served(server, trajectory.steps)
    assert (trajectory.name, trajectory.status, trajectory.error) == ("react", "completed", None)
    assert [step.agent for step in trajectory.steps] == ["react"] * 3
    (row,) = trajectory.sequences()
    assert row.reward == trajectory.reward == 1.0
    assert [(run.name, run.arguments, run.result, run.error) for run in trajectory.tool_runs] == [
        ("add", {"a": 0, "b": 2}, "The sum is 2.", None),
        ("add", {"a": 1, "b": 2}, "The sum is 3.", None),
    ]
    assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]


def test_a_trajectory_has_its_task_group_and_scores(evals: Evals) -> None:
    with ScriptedServer(adding(0)) as server:
        log = evals.run(adding_task(2, epochs=2, scorer=[includes(), match()]), recorded_model(server))
        found = roots(evals.trajectories(log))
    assert [(one.task and one.task.id, one.rollout_index) for one in found] == [
        ("sums/s0", 0),
        ("sums/s0", 1),
        ("sums/s1", 0),
        ("sums/s1", 1),
    ]
    assert [one.group_id for one in found] == [f"{log.eval.task_id}/{name}" for name in ("s0", "s0", "s1", "s1")]
    first = found[0]
    assert first.task is not None
    assert first.task.data == {"id": "sums/s0", "input": "Question 0?", "target": "known"}
    # "known." ends with the target, but for the punctuation that `match` leaves out of account.
    assert (first.reward, first.rewards) == (1.0, {"includes": 1.0, "match": 1.0})
    assert len(rt.groups(found)) == 2


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_steps_and_events_are_joined_both_ways(evals: Evals, log_format: str) -> None:
    with ScriptedServer(adding()) as server:
        log = evals.run(adding_task(2, epochs=2), recorded_model(server), log_format=log_format)
        found = roots(list(rt.read(evals.folder.glob("*.rollouts.jsonl"))))
    samples = samples_of(log)
    assert len(found) == len(samples) == 4
    for trajectory in found:
        sample = samples[facts(trajectory)["sample_id"], facts(trajectory)["epoch"]]
        assert facts(trajectory)["sample_uuid"] == sample.uuid
        assert facts(trajectory)["eval_id"] == log.eval.eval_id
        assert log.location.endswith(facts(trajectory)["log"])
        calls = {event.uuid: event for event in sample.events if isinstance(event, ModelEvent)}
        steps = {(step.metadata or {})["inspect_event"]: step for step in trajectory.steps}
        assert calls.keys() == steps.keys()
        for uuid, step in steps.items():
            assert step.metadata is not None
            assert step.metadata["inspect_span"] == calls[uuid].span_id
            assert step.completion is not None
            assert calls[uuid].output.completion == (step.completion.content or "")
            # Releases before it was in the log have none.
            assert getattr(calls[uuid].output, "response_id", step.response_id) == step.response_id
        tools = [event.id for event in sample.events if isinstance(event, ToolEvent)]
        assert tools == [run.tool_call_id for run in trajectory.tool_runs]


def question(request: dict[str, Any]) -> str:
    return str(next(message["content"] for message in request["messages"] if message["role"] == "user"))


def test_twelve_samples_at_once(evals: Evals) -> None:
    together = threading.Barrier(12)

    def script(request: dict[str, Any]) -> Reply:
        done = len(results(request))
        # All wait for each other in every turn: no sample runs alone.
        together.wait(60)
        asked = question(request)
        if done == 2:
            return Reply(f"{asked} is known")
        return Reply(f"{asked} at {done}", tool_calls=[("add", json.dumps({"a": done, "b": len(asked)}))])

    with ScriptedServer(script) as server:
        model = recorded_model(server)
        log = evals.run(adding_task(6, epochs=2), model, max_samples=12, max_connections=12)
        found = evals.trajectories(log)
        assert_all_served(server, found)
    assert len(roots(found)) == len(found) == 12
    for trajectory in found:
        assert trajectory.task is not None
        assert isinstance(trajectory.task.data, dict)
        said = trajectory.task.data["input"]
        texts = [step.completion.content for step in trajectory.steps if step.completion]
        assert texts == [f"{said} at 0", f"{said} at 1", f"{said} is known"]
        assert len(trajectory.sequences()) == 1
        calls = [call.id for step in trajectory.steps if step.completion for call in step.completion.tool_calls]
        assert [run.tool_call_id for run in trajectory.tool_runs] == calls
        assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]


@pytest.mark.sees("at once", "12 samples; 8 threads outside of evaluations, of which Inspect has one a process")
def test_eight_threads_outside_of_evaluations() -> None:
    """Inspect's models keep their connections in one event loop, so each thread has a model of its own."""

    def script(request: dict[str, Any], record: RequestRecord) -> Reply:
        done = len(results(request))
        asked = question(request)
        if done == 0:
            together.wait(60)
            return Reply(f"{asked} at 0", tool_calls=[("add", json.dumps({"a": 1, "b": len(asked)}))])
        return Reply(f"{asked} is known")

    def rollout(number: int) -> rt.Trajectory:
        async def loop() -> None:
            async with recorded_model(server, memoize=False) as model:
                await model.generate_loop(f"task {number}", tools=[add()])

        with rt.trajectory(task=str(number)) as trajectory:
            asyncio.run(loop())
        return trajectory

    together = threading.Barrier(8)
    with ScriptedServer(script) as server, ThreadPoolExecutor(8) as threads:
        found = list(threads.map(rollout, range(8)))
        server.wait_idle()
        served = {Served(record).response_id: Served(record) for record in server.requests}
    assert len(served) == 16
    for trajectory in found:
        assert trajectory.task is not None
        assert [len(trajectory.steps), len(trajectory.tool_runs), len(trajectory.sequences())] == [2, 1, 1]
        for step in trajectory.steps:
            served.pop(step.response_id).assert_is(step)
            assert question({"messages": step.messages}) == f"task {trajectory.task.id}"
        (run,) = trajectory.tool_runs
        assert (run.result, run.error, run.step_id) == ("The sum is 7.", None, trajectory.steps[0].id)
    assert not served


def test_a_judge_is_a_trajectory_of_its_own_that_is_not_trained_on(evals: Evals) -> None:
    def script(request: dict[str, Any]) -> Reply:
        return Reply("GRADE: P" if "tools" not in request else "The sum is known.")

    scorers = [model_graded_qa(partial_credit=True), includes()]
    with ScriptedServer(script) as server:
        log = evals.run(adding_task(scorer=scorers), recorded_model(server))
        found = evals.trajectories(log)
        assert_all_served(server, found)
    (root,) = roots(found)
    assert (root.reward, root.rewards) == (0.5, {"model_graded_qa": 0.5, "includes": 1.0})
    (judge,) = children(found, root)
    assert (judge.name, judge.status, judge.metadata) == ("model_graded_qa", "completed", {"scorer": "model_graded_qa"})
    assert [step.trainable for step in judge.steps] == [False]
    assert (len(judge.sequences()), len(root.sequences())) == (0, 1)


def test_a_judge_of_an_agent_that_tries_again_is_not_trained_on(evals: Evals) -> None:
    def script(request: dict[str, Any]) -> Reply:
        if "tools" not in request:
            return Reply("GRADE: I")
        return Reply(None, tool_calls=[("submit", '{"answer": "unknown"}')])

    solver = react(tools=[add()], attempts=2)
    with ScriptedServer(script) as server:
        log = evals.run(adding_task(solver=solver, scorer=model_graded_qa()), recorded_model(server))
        found = evals.trajectories(log)
        assert_all_served(server, found)
    (root,) = roots(found)
    assert [step.trainable for step in root.steps] == [True, True]
    judges = children(found, root)
    # Of the first answer, and of the last one after the run.
    assert [(one.name, [step.trainable for step in one.steps]) for one in judges] == [("model_graded_qa", [False])] * 2
    assert [one.parent_step_id for one in judges] == [step.id for step in root.steps]
    assert [len(one.sequences()) for one in judges] == [0, 0]
    assert samples_of(log)["s0", 1].scores is not None
    assert root.rewards == {"model_graded_qa": 0.0}


def test_a_task_without_agents_and_tools(evals: Evals) -> None:
    task = Task(dataset=[Sample(input="Hello", target="Hi")], solver=generate(), scorer=match())
    with ScriptedServer("Hi") as server:
        log = evals.run(task, recorded_model(server))
        (trajectory,) = evals.trajectories(log)
        assert_served(server, trajectory.steps)
    assert trajectory.reward == 1.0
