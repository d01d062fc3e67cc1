"""Samples that end otherwise: errors, attempts, limits, cancellation, and evaluations that are taken up again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tenacity
from inspect_ai import eval_async, eval_retry, eval_set
from inspect_ai.event import ModelEvent
from inspect_ai.log import EvalLog
from inspect_ai.model import GenerateConfig
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
from oracle import Served, assert_served

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_inspect import record_evals

from .harness import Evals, adding, adding_task, facts, plain_model, recorded_model, results, roots, samples_of

TASK = Path(__file__).parent / "task_file.py"


@pytest.mark.sees("error")
def test_an_http_error(evals: Evals) -> None:
    with ScriptedServer(adding(), faults={2: Fault(status=401)}) as server:
        log = evals.run(adding_task(), recorded_model(server), fail_on_error=False)
        (found,) = evals.trajectories(log)
        assert_served(server, found.steps)
    assert [step.status for step in found.steps] == ["ok", "error"]
    assert (found.status, found.reward) == ("failed", None)
    assert found.error is not None
    assert found.error.type != "error"
    assert log.samples is not None
    (sample,) = log.samples
    events = [event for event in sample.events if isinstance(event, ModelEvent)]
    assert [event.uuid for event in events] == [(step.metadata or {})["inspect_event"] for step in found.steps]
    assert len(found.sequences()) == 1


def test_what_the_client_tries_again_is_one_step(evals: Evals) -> None:
    with ScriptedServer("known", faults={1: Fault(status=500, headers={"retry-after-ms": "1"})}) as server:
        log = evals.run(adding_task(solver=generate()), recorded_model(server))
        (found,) = evals.trajectories(log)
        assert [record.status for record in server.requests] == [500, 200]
    (step,) = found.steps
    assert (step.status, len(step.attempts or ())) == ("ok", 2)


def test_what_inspect_tries_again_is_a_step_each(evals: Evals) -> None:
    """Each has an event of its own in the log."""
    with ScriptedServer("known", faults={1: Fault(status=503)}) as server:
        model = recorded_model(server, config=GenerateConfig(max_retries=2), max_retries=0)
        model.api.retry_wait = tenacity.wait_none  # type: ignore[method-assign]
        log = evals.run(adding_task(solver=generate()), model)
        (found,) = evals.trajectories(log)
        assert_served(server, found.steps)
    assert [step.status for step in found.steps] == ["error", "ok"]
    assert log.samples is not None
    (sample,) = log.samples
    events = [event for event in sample.events if isinstance(event, ModelEvent)]
    assert [event.uuid for event in events] == [(step.metadata or {})["inspect_event"] for step in found.steps]
    assert (found.status, found.reward) == ("completed", 1.0)


@solver
def failing_at_first(failures: int = 1) -> Solver:
    """Raises after the model's answer, so many times in all."""
    left = [failures]

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        if left[0] > 0:
            left[0] -= 1
            raise RuntimeError("not today")
        return state

    return solve


@pytest.mark.sees("superseded", "attempts at a sample that Inspect makes again (`retry_on_error`)")
def test_attempts_at_a_sample(evals: Evals) -> None:
    with ScriptedServer("known") as server:
        task = adding_task(solver=failing_at_first())
        log = evals.run(task, recorded_model(server), retry_on_error=2)
        first, second = roots(evals.trajectories(log))
        assert_served(server, [*first.steps, *second.steps])
    assert [facts(one)["attempt"] for one in (first, second)] == [1, 2]
    assert [one.rollout_index for one in (first, second)] == [0, 0]
    assert facts(first)["sample_uuid"] == facts(second)["sample_uuid"]
    assert (first.status, first.reward, first.rewards) == ("failed", None, None)
    assert first.error is not None
    assert (first.error.type, first.error.message) == ("RuntimeError", "not today")
    assert (second.status, second.error, second.reward) == ("completed", None, 1.0)
    assert [step.status for step in first.steps] == ["superseded"]
    assert (len(first.sequences()), len(second.sequences())) == (0, 1)


@pytest.mark.parametrize(
    ("limits", "reason", "steps"),
    [({"message_limit": 5}, "message_limit", 2), ({"token_limit": 1}, "token_limit", 1)],
)
def test_a_limit(evals: Evals, limits: dict[str, Any], reason: str, steps: int) -> None:
    with ScriptedServer(adding(9)) as server:
        log = evals.run(adding_task(), recorded_model(server), **limits)
        (found,) = evals.trajectories(log)
        assert_served(server, found.steps)
    assert (found.status, found.error, found.stop_reason) == ("completed", None, reason)
    assert len(found.steps) == steps
    assert found.rewards == {"includes": 0.0}


def test_a_time_limit_in_the_middle_of_an_answer(evals: Evals) -> None:
    with ScriptedServer(Fault("known", stall=True)) as server:
        (found,) = evals.trajectories(evals.run(adding_task(), recorded_model(server), time_limit=1))
    assert (found.status, found.stop_reason) == ("completed", "time_limit")
    assert [step.status for step in found.steps] == ["cancelled"]


def held_at(turn: int) -> Any:
    script = adding(5)

    def answer(request: dict[str, Any]) -> Reply | Fault:
        reply = script(request)
        return Fault(reply, hold=True) if len(results(request)) == turn else reply

    return answer


@pytest.mark.sees("cancelled", "by cancelling the evaluation, a time limit, or the error of another sample")
def test_a_cancelled_evaluation(evals: Evals) -> None:
    async def run(server: ScriptedServer) -> None:
        model = recorded_model(server)
        running = asyncio.ensure_future(
            eval_async(adding_task(2), model=model, log_dir=str(evals.folder), max_samples=2)
        )
        await asyncio.to_thread(server.wait_held, 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with ScriptedServer(held_at(1)) as server:
        asyncio.run(run(server))
        server.release()
    found = list(rt.read(evals.folder.glob("*.rollouts.jsonl")))
    assert [one.status for one in found] == ["aborted"] * 2
    served = {Served(record).response_id: Served(record) for record in server.requests}
    for trajectory in found:
        assert [step.status for step in trajectory.steps] == ["ok", "cancelled"]
        served[trajectory.steps[0].response_id].assert_is(trajectory.steps[0])
        assert (trajectory.reward, trajectory.rewards) == (None, None)


def failing_for(name: str, server: list[ScriptedServer]) -> Solver:
    """Raises for one sample, once another's call is held."""

    @solver
    def failing() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            if state.sample_id == name:
                await asyncio.to_thread(server[0].wait_held, 1)
                raise RuntimeError("not today")
            return await generate(state)

        return solve

    return failing()


def test_the_error_of_a_sample_ends_the_others(evals: Evals) -> None:
    with ScriptedServer(Fault("known", hold=True)) as server:
        model = recorded_model(server)
        log = evals.run(adding_task(2, solver=failing_for("s1", [server])), model, max_samples=2)
        server.release()
    assert log.status == "error"
    first, second = roots(evals.trajectories(log))
    assert [step.status for step in first.steps] == ["cancelled"]
    assert (first.status, second.status) == ("aborted", "failed")
    assert second.error is not None
    assert second.error.message == "not today"


def test_an_evaluation_that_is_retried(evals: Evals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished samples are in the file of the log that they ran for, the others in that of the new log."""
    # Inspect makes the task and the model anew from what is in the log, where no key is.
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ScriptedServer("known", faults={1: Fault(status=401)}) as server:
        with record_evals(engine="vllm"):
            first = evals.run(f"{TASK}@sums", plain_model(server), max_samples=1, fail_on_error=False)
            (log,) = eval_retry(first, display="none", log_dir=str(evals.folder))
            again = evals.read(log)
        before, after = roots(evals.trajectories(first)), roots(evals.trajectories(again))
        assert len(server.requests) == 4
    assert [(facts(one)["sample_id"], one.status) for one in before] == [
        ("s0", "failed"),
        ("s1", "completed"),
        ("s2", "completed"),
    ]
    assert [(facts(one)["sample_id"], one.status, one.reward) for one in after] == [("s0", "completed", 1.0)]
    # Each sample of the new log is found by its uuid, in one file or the other.
    known = {facts(one)["sample_uuid"]: one for one in [*before, *after]}
    for (name, _), sample in samples_of(again).items():
        assert facts(known[str(sample.uuid)])["sample_id"] == name
    assert after[0].group_id == before[0].group_id


def test_an_eval_set(evals: Evals) -> None:
    with ScriptedServer("known") as server:
        tasks = [adding_task(2, name="one", solver=generate()), adding_task(2, name="two", solver=generate())]
        model = recorded_model(server)
        _, logs = eval_set(tasks, model=model, log_dir=str(evals.folder), display="none", max_tasks=2)
        server.wait_idle()
        assert len(server.requests) == 4
    names = {}
    for log in logs:
        found = list(rt.read(evals.file(EvalLog.model_validate(log))))
        names[log.eval.task] = [one.task and one.task.id for one in roots(found)]
    assert names == {"one": ["one/s0", "one/s1"], "two": ["two/s0", "two/s1"]}
