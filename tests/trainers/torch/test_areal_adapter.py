"""``trainers.areal``: AReaL's own executor runs an agent that is only a function, with a stand-in for its engine."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from page_blocks import blocks_below, run_block

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.trainers.areal import workflow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import areal  # noqa: F401 - before its modules, which import each other in a circle
    from areal.api.cli_args import InferenceEngineConfig
    from areal.infra.remote_inf_engine import GroupedRolloutWorkflow
    from areal.infra.workflow_executor import WorkflowExecutor

TASKS, SAMPLES = 2, 7

pytestmark = pytest.mark.filterwarnings("default")  # of AReaL itself


def answered(request: Any) -> Reply:
    text = "".join(str(one["content"]) for one in request["messages"])
    number = int(text.rpartition("How much is ")[2].split()[0])
    return Reply(f"It is {number + 2}" + "." * (len(text) % 7))


class Engine:
    """What a workflow and the executor use of AReaL's engine."""

    def __init__(self, server: ScriptedServer) -> None:
        self.addresses = [server.url.removeprefix("http://")]
        self.version = 3

    def get_version(self) -> int:
        return self.version


def batches(made: Any, engine: Engine, data: list[dict[str, Any]], samples: int) -> list[Any]:
    """What AReaL gets of each item, in the order of its own results: each is a group."""
    config = InferenceEngineConfig(
        experiment_name="e", trial_name="t", consumer_batch_size=len(data), max_head_offpolicyness=100,
        check_trajectory_format=True,
    )  # fmt: skip
    executor = WorkflowExecutor(config, engine)
    executor.initialize(train_data_parallel_size=1)
    try:
        grouped = GroupedRolloutWorkflow(made, samples, executor.logger)
        return list(executor.rollout_batch(data, grouped))
    finally:
        executor.destroy()


async def solve(task: Any, rollout: rt.Rollout) -> str:
    """Some runs fail before or after a call, have a sub-agent, a second conversation, or are not scored."""
    assert task["question"] == f"How much is {task['id']} + 2?"
    fate, messages = rollout.index, [{"role": "user", "content": task["question"]}]

    async def ask(*messages: Any) -> Any:
        message = (await client.chat.completions.create(model=task.model, messages=messages)).choices[0].message
        return {"role": "assistant", "content": message.content}

    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        if fate == 1:
            raise RuntimeError("before its first call")
        if fate == 2:
            with rt.trajectory("helper"):
                await ask({"role": "user", "content": "How much is 5 + 2?"})
        messages.append(await ask(*messages))
        if fate == 3:
            raise RuntimeError("after a call")
        for number in range(fate % 3):
            messages.append({"role": "user", "content": f"How much is {number} + 2?"})
            messages.append(await ask(*messages))
        if fate == 4:
            await ask({"role": "user", "content": "How much is 9 + 2, said again and at some length?"})
    return str(messages[-1]["content"])


def grade(task: Any, answer: str, trajectory: rt.Trajectory) -> float | None:
    return None if trajectory.rollout_index == 5 else len(trajectory.steps) + task["id"] / 10


def rows_of(run: rt.Trajectory) -> list[tuple[list[int], list[int], list[float], list[int]]]:
    """Ids, loss mask, logprobs and versions of each row, from the steps."""
    rows: list[Any] = []
    for step in run.steps:
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        prompt, said = step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()
        if not rows or prompt[: len(rows[-1][0])] != rows[-1][0]:
            rows.append(([], [], [], []))
        ids, mask, logprobs, versions = rows[-1]
        new = len(prompt) - len(ids)
        ids += [*prompt[len(ids) :], *said]
        mask += [0] * new + [1] * len(said)
        logprobs += [0.0] * new + step.logprobs.tolist()
        versions += [-1] * new + [int(step.policy_version or 0)] * len(said)
    return rows


@pytest.mark.parametrize("several", ["longest", "all"])
def test_areal_gets_what_was_sampled(tmp_path: Path, several: Any) -> None:
    """Failed runs, sub-agents, runs of several rows; ids, masks, logprobs, rewards, versions are those of steps."""
    made: Any = workflow(solve, reward=grade, output=tmp_path / "runs.jsonl", several=several)
    with ScriptedServer(answered) as server:
        data = [{"id": task, "question": f"How much is {task} + 2?"} for task in range(TASKS)]
        groups = batches(made, Engine(server), data, SAMPLES)
    assert len(groups) == TASKS
    rewards: dict[str | None, float] = {}
    runs = list(rt.read(tmp_path / "runs.jsonl"))
    outer = {run.id: run for run in runs if run.parent_id is None}
    expected: dict[str | None, list[Any]] = defaultdict(list)
    for run in runs:
        top = outer[run.parent_id or run.id]
        assert {step.policy_version for step in run.steps} <= {3}
        rows: list[Any] = rows_of(run)
        if top.rollout_index in (1, 3, 5):
            assert top.reward is None
            # A place in its group that nothing is learnt from.
            rows = [(ids, [0] * len(ids), *others) for ids, _, *others in rows] or [
                ([0, 0], [0, 0], [0.0, 0.0], [-1, -1])
            ]
        elif several == "longest":
            rows = [max(rows, key=lambda row: sum(row[1]))] if run is top else []
        rewards[top.id] = float(np.float32(top.reward or 0.0))
        expected[top.group_id] += [(*row, rewards[top.id]) for row in rows]
    assert {run.group_id: sorted(one.rollout_index or 0 for one in outer.values() if one.group_id == run.group_id)
            for run in outer.values()} == {str(at): list(range(SAMPLES)) for at in range(TASKS)}  # fmt: skip
    found = []
    for batch in groups:
        rows = []
        for at in range(len(batch["input_ids"])):
            there = batch["attention_mask"][at].bool()
            names = ("input_ids", "loss_mask", "logprobs", "versions")
            rows.append((*(batch[name][at][there].tolist() for name in names), float(batch["rewards"][at])))
        found.append(sorted(rows))
    assert sorted(found) == sorted(sorted(rows) for rows in expected.values())
    assert made.report.noted["runs as rows that nothing is learnt from"] == TASKS * 3
    assert several == "all" or {len(batch["input_ids"]) for batch in groups} == {SAMPLES}


def test_a_rejected_item_and_versions_that_move(tmp_path: Path) -> None:
    """All runs of an item fail: AReaL gets None. The version is that of the begin of each call."""
    with ScriptedServer(answered) as server:
        engine, first = Engine(server), threading.Event()

        async def moving(task: Any) -> str:
            if task["id"] == 1:
                raise RuntimeError("no")
            async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
                asked: Any = [{"role": "user", "content": "How much is 1 + 2?"}]
                for _ in range(2):
                    await client.chat.completions.create(model="m", messages=asked)
                    engine.version += 1
            first.set()
            return "done"

        made = workflow(moving, reward=lambda *_: 1.0, output=tmp_path / "runs.jsonl", several="all")
        groups = batches(made, engine, [{"id": 0}], 1)
        assert [sorted(set(row.tolist())) for row in groups[0]["versions"]] == [[-1, 3], [-1, 4]]
        (one,) = rt.read(tmp_path / "runs.jsonl")
        assert [step.policy_version for step in one.steps] == [3, 4]
        lost: Any = workflow(moving, reward=lambda *_: 1.0)

        async def episode() -> Any:
            try:
                return await GroupedRolloutWorkflow(lost, 2, logging.getLogger()).arun_episode(engine, {"id": 1})
            finally:
                await lost.aclose()

        assert asyncio.run(episode()) is None


def test_what_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="the agent is 3"):
        workflow(3, reward=grade)
    with pytest.raises(TypeError, match="takes no policy_version"):
        workflow(len, reward=grade, policy_version=3)  # type: ignore[call-arg]
    (tmp_path / "runs.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError, match=r"runs\.jsonl is not empty"):
        workflow(len, reward=grade, output=tmp_path / "runs.jsonl")
    monkeypatch.setitem(sys.modules, "areal.api.workflow_api", None)
    with pytest.raises(ImportError, match=r"needs AReaL 1\.0, which cannot be imported: "):
        workflow(len, reward=grade)


def test_the_page_gives_areal_its_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_below("docs/train-others.md", "AReaL")
    assert len([line for line in block.text.splitlines() if line.strip()]) < 20
    names: dict[str, Any] = {}
    run_block(block, names)
    with ScriptedServer(answered) as server:
        data = [{"question": "How much is 2 + 2?", "answer": "4"}]
        (batch,) = batches(names["made"], Engine(server), data, 2)
    assert batch["rewards"].tolist() == [1.0, 1.0]
    assert len(list(rt.read("areal.jsonl"))) == 2
