"""Cases of pydantic_evals: a trajectory each, evaluators' results as rewards, judges' calls beside them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from openai import AsyncOpenAI
from oracle import Recorded, assert_all_served
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Evaluator, EvaluatorContext, LLMJudge, OutputConfig
from pydantic_evals.lifecycle import CaseLifecycle

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_pydantic_ai import record
from rollout_trace_pydantic_ai.evals import RolloutLifecycle

from .harness import call, results

QUESTIONS = ("What is 1 + 2?", "What is 3 + 4?")


@dataclass
class Length(Evaluator[str, str, Any]):
    """A score, without a model."""

    def evaluate(self, ctx: EvaluatorContext[str, str, Any]) -> Any:
        return len(ctx.output)


@dataclass
class Words(Evaluator[str, str, Any]):
    """Several results, of each kind."""

    def evaluate(self, ctx: EvaluatorContext[str, str, Any]) -> Any:
        return {"count": 0.5, "polite": False, "tone": "flat"}


@dataclass
class Broken(Evaluator[str, str, Any]):
    """One that fails."""

    def evaluate(self, ctx: EvaluatorContext[str, str, Any]) -> Any:
        raise ValueError("no scale")


def answers(request: dict[str, Any]) -> Reply | Fault:
    """The agent's model, which calls `add` and answers; the judge's; and one that refuses the second question."""
    text = json.dumps(request["messages"])
    if "GradingOutput" in json.dumps(request) or "<Rubric>" in text:
        judged = {"reason": "It is a number.", "pass": True, "score": 0.75}
        tools = request.get("tools")
        return Reply(tool_calls=[call(tools[0]["function"]["name"], **judged)]) if tools else Reply(json.dumps(judged))
    if "refused" in text:
        return Fault(status=400)
    return Reply("3" if results(request) else None, tool_calls=[] if results(request) else [call("add", a=1, b=2)])


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(answers) as server:
        yield server


def evaluate(server: ScriptedServer, make: Callable[[Any], Any], **options: Any) -> Any:
    """Evaluates the dataset that `make` gives for a model, by an agent of that model."""

    async def run() -> Any:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            model = OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=client))
            agent = record(Agent(model, tools=[add]), engine="vllm")

            async def task(inputs: str) -> str:
                return (await agent.run(inputs)).output

            return await make(model).evaluate(task, progress=False, **options)

    return asyncio.run(run())


def dataset_of(*evaluators: Any, cases: tuple[str, ...] = QUESTIONS) -> Dataset[Any, Any, Any]:
    return Dataset(
        name="sums", cases=[Case(name=text, inputs=text, expected_output="3") for text in cases], evaluators=evaluators
    )


def split(found: list[rt.Trajectory]) -> tuple[list[rt.Trajectory], list[rt.Trajectory]]:
    """The cases, and the evaluators' trajectories."""
    cases = [one for one in found if one.parent_id is None]
    return cases, [one for one in found if one.parent_id is not None]


def test_a_judges_calls_are_beside_the_case(server: ScriptedServer, recorded: Recorded) -> None:
    def make(model: Any) -> Dataset[Any, Any, Any]:
        score = OutputConfig(evaluation_name="good", include_reason=True)
        return dataset_of(LLMJudge(rubric="It is right.", model=model, score=score, assertion=False))

    # One after the other, for the order in the file.
    report = evaluate(server, make, lifecycle=RolloutLifecycle, max_concurrency=1)
    assert [one.scores["good"].value for one in report.cases] == [0.75, 0.75]
    cases, judges = split(recorded.all())
    assert [(one.task and one.task.id, one.reward, one.rewards) for one in cases] == [
        (text, 0.75, {"good": 0.75}) for text in QUESTIONS
    ]
    assert [(one.name, one.parent_id, len(one.steps)) for one in judges] == [
        ("evaluators", case.id, 1) for case in cases
    ]
    assert [len(one.steps) for one in cases] == [2, 2]
    assert [len(one.tool_runs) for one in cases] == [1, 1]
    assert {step.trainable for one in cases for step in one.steps} == {True}
    assert {step.trainable for one in judges for step in one.steps} == {False}
    assert [row.reward for one in cases for row in one.sequences()] == [0.75, 0.75]
    assert [row for one in judges for row in one.sequences()] == []
    assert [one.metadata and one.metadata["reasons"] for one in cases] == [{"good": "It is a number."}] * 2
    assert_all_served(server, [*cases, *judges])
    assert not rt.orphans()


def test_repeats_are_a_group(server: ScriptedServer, recorded: Recorded) -> None:
    evaluate(server, lambda model: dataset_of(Length()), lifecycle=RolloutLifecycle, repeat=3, max_concurrency=1)
    cases, judges = split(recorded.all())
    assert judges == []
    assert [(one.task and one.task.id, one.rollout_index) for one in cases] == [
        (text, index) for text in QUESTIONS for index in range(3)
    ]
    groups = list(rt.groups(cases))
    assert [len(group.trajectories) for group in groups] == [3, 3]
    assert {one.reward for one in cases} == {1.0}


def test_every_kind_of_result(server: ScriptedServer, recorded: Recorded) -> None:
    evaluate(server, lambda model: dataset_of(Words(), cases=QUESTIONS[:1]), lifecycle=RolloutLifecycle)
    (case,) = recorded.all()
    assert (case.reward, case.rewards) == (None, {"count": 0.5, "polite": 0.0})
    assert case.metadata is not None
    assert case.metadata["labels"] == {"tone": "flat"}


def test_which_result_is_the_reward_is_the_users_choice(server: ScriptedServer, recorded: Recorded) -> None:
    class Counted(RolloutLifecycle):
        def reward(self, result: Any) -> float | None:
            return float(result.scores["count"].value)

    evaluate(server, lambda model: dataset_of(Words(), cases=QUESTIONS[:1]), lifecycle=Counted)
    (case,) = recorded.all()
    assert case.reward == 0.5


def test_a_failed_evaluator_is_no_reward(server: ScriptedServer, recorded: Recorded) -> None:
    evaluate(server, lambda model: dataset_of(Length(), Broken(), cases=QUESTIONS[:1]), lifecycle=RolloutLifecycle)
    (case,) = recorded.all()
    assert (case.reward, case.rewards) == (None, {"Length": 1.0})
    assert case.metadata is not None
    assert case.metadata["reward_errors"] == ["Broken: ValueError: no scale"]


def test_a_failed_task(server: ScriptedServer, recorded: Recorded) -> None:
    dataset = dataset_of(Length(), cases=("refused", QUESTIONS[0]))
    report = evaluate(server, lambda model: dataset, lifecycle=RolloutLifecycle)
    assert len(report.failures) == 1
    by_task = {one.task.id: one for one in recorded.all() if one.task}
    failed, completed = by_task["refused"], by_task[QUESTIONS[0]]
    assert (failed.status, failed.error and failed.error.type.startswith("Model")) == ("failed", True)
    assert failed.task is not None
    assert (failed.reward, [step.status for step in failed.steps]) == (None, ["error"])
    assert (completed.status, completed.reward) == ("completed", 1.0)


def test_a_cancelled_evaluation(server: ScriptedServer, recorded: Recorded) -> None:
    async def run() -> None:
        started = asyncio.Event()

        async def task(inputs: str) -> str:
            started.set()
            await asyncio.Event().wait()
            return inputs

        running = asyncio.ensure_future(
            dataset_of(cases=QUESTIONS[:1]).evaluate(task, progress=False, lifecycle=RolloutLifecycle)
        )
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())
    (case,) = recorded.all()
    assert (case.status, case.error and case.error.type) == ("aborted", "CancelledError")
    assert case.task is not None
    assert case.task.id == QUESTIONS[0]


def test_inside_a_block_of_the_user(server: ScriptedServer, recorded: Recorded) -> None:
    with rt.trajectory("experiment") as experiment:
        evaluate(server, lambda model: dataset_of(Length()), lifecycle=RolloutLifecycle)
        assert rt.current() is experiment
    found = recorded.all()
    assert [one.parent_id for one in found if one.name != "experiment"] == [experiment.id] * 2
    assert len(experiment.steps) == 0


def test_with_the_hooks_of_the_process(server: ScriptedServer, recorded: Recorded) -> None:
    seen: list[str] = []

    class Mine(CaseLifecycle[Any, Any, Any]):
        async def setup(self) -> None:
            seen.append("setup")

        async def prepare_context(self, ctx: Any) -> Any:
            seen.append("context")
            ctx.metrics["mine"] = 1
            return ctx

        async def teardown(self, result: Any) -> None:
            seen.append(f"teardown {result.metrics['mine']}")

    def judged(model: Any) -> Dataset[Any, Any, Any]:
        return dataset_of(LLMJudge(rubric="It is right.", model=model), cases=QUESTIONS[:1])

    before = dict(vars(Dataset))
    with rt.instrument(engine="vllm", hooks=True):
        evaluate(server, judged)
        evaluate(server, judged, lifecycle=Mine)
        evaluate(server, judged, lifecycle=RolloutLifecycle)
    assert dict(vars(Dataset)) == before
    assert seen == ["setup", "context", "teardown 1"]
    cases, judges = split(recorded.all())
    assert [(one.reward, len(one.steps)) for one in cases] == [(1.0, 2)] * 3
    assert [one.parent_id for one in judges] == [one.id for one in cases]
    assert not [step for one in judges for step in one.steps if step.trainable]
    assert_all_served(server, [*cases, *judges])
