"""``trainers.verifiers``: verifiers' own environments run an agent that is only a function, by its own clients."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import verifiers.v1 as vf
from openai import AsyncOpenAI, OpenAI
from page_blocks import ROOT, blocks_of
from verifiers.v1.clients import ModelContext
from verifiers.v1.envs.single_agent import SingleAgentEnvConfig
from verifiers.v1.utils.loaders import load_environment

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.trainers.verifiers import harness

TOKENIZER = str(ROOT / "tests" / "data" / "tiny-model")
TASKS, SAMPLES = 2, 6

pytestmark = pytest.mark.filterwarnings("default")  # of verifiers itself


def answered(request: Any, messages: Any) -> Reply:
    """The sum of the last question, in a text whose length depends on all that was asked."""
    text = "".join(str(one["content"]) for one in messages)
    number = int(text.rpartition("How much is ")[2].split()[0])
    return Reply(f"It is {number + 2}" + "." * (len(text) % 7))


class Engine(ScriptedServer):
    """Keeps what it sampled for each trace: ids of the prompt, ids, and logprobs."""

    def __init__(self) -> None:
        super().__init__(answered, tokenizer=TOKENIZER, scale_out=True)
        self.sampled: dict[str, list[tuple[list[int], list[int], list[float]]]] = defaultdict(list)

    def answer(self, record: Any) -> Any:
        response = super().answer(record)
        if not record.path.endswith("/inference/v1/generate"):
            return response
        body = json.loads(b"".join(response.parts))  # type: ignore[arg-type]
        (choice,) = body["choices"]
        for entry in choice["logprobs"]["content"]:
            entry["token"] = f"token_id:{entry['token_id']}"  # As renderers 0.1.12 wants it.
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        call = (record.json["token_ids"], choice["token_ids"], logprobs)
        self.sampled[record.headers["x-session-id"]].append(call)
        return replace(response, parts=[json.dumps(body).encode()])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


class Data(vf.TaskData):  # type: ignore[misc]
    answer: str


class Sum(vf.Task[Data, vf.State]):  # type: ignore[misc]
    @vf.reward  # type: ignore[untyped-decorator]
    async def stopped(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Sums(vf.Taskset[Sum]):  # type: ignore[misc]
    def load(self) -> list[Sum]:
        prompts: list[Any] = ["How much is 0 + 2?", [vf.UserMessage(content="How much is 1 + 2?")]]
        return [Sum(Data(prompt=prompt, system_prompt="Add.", answer=str(n + 2))) for n, prompt in enumerate(prompts)]


def run(made: Any, engine: Engine, *, client: str = "train", samples: int = 1, **agent: Any) -> list[vf.Trace]:
    """The traces of episodes of each task, all at once, by verifiers' own environment."""
    module: Any = ModuleType("sums_of_test")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    module.Solver, module.Sums, module.__all__ = made, Sums, ["Solver", "Sums"]
    sys.modules[module.__name__] = module
    settings = {"taskset": {"id": module.__name__}, "agent": {"runtime": {"type": "subprocess"}, **agent}}
    return asyncio.run(asyncio.wait_for(episodes(settings, engine, client, samples), 120))


async def episodes(settings: Any, engine: Engine, client: str, samples: int) -> list[vf.Trace]:
    env = load_environment(SingleAgentEnvConfig.model_validate(settings))
    common: Any = {"base_url": engine.base_url, "api_key_var": "NO_SUCH_KEY"}
    if client == "train":
        given: Any = vf.TrainClientConfig(renderer_model_name=TOKENIZER, **common)
    else:
        given = vf.EvalClientConfig(**common)
    context = ModelContext(model="tiny", client=given)
    async with env.serving():
        found = await asyncio.gather(*(env.run_episode(task, context) for task in env.taskset for _ in range(samples)))
    return [episode.traces[0] for episode in found]


async def ask(client: AsyncOpenAI, *messages: Any) -> Any:
    message = (await client.chat.completions.create(model="tiny", messages=messages)).choices[0].message
    return {"role": "assistant", "content": message.content}


async def solve(task: Any, rollout: rt.Rollout) -> str:
    """Some runs fail before or after a call, have a sub-agent, or a second conversation."""
    system, asked = task["messages"]
    assert system == {"role": "system", "content": "Add."}
    assert (asked["role"], task["answer"]) == ("user", str(task["idx"] + 2))
    fate = rollout.index
    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        if fate == 1:
            raise RuntimeError("before its first call")
        if fate == 2:
            with rt.trajectory("helper"):
                await ask(client, {"role": "user", "content": "How much is 5 + 2?"})
        messages = [*task["messages"], await ask(client, *task["messages"])]
        if fate == 3:
            raise RuntimeError("after a call")
        for number in range(fate % 3):
            messages.append({"role": "user", "content": f"How much is {number} + 2?"})
            messages.append(await ask(client, *messages))
        if fate == 4:
            await ask(client, {"role": "user", "content": "How much is 9 + 2, said again?"})
    return str(messages[-1]["content"])


def grade(task: Any, answer: str, trajectory: rt.Trajectory) -> float:
    rt.reward(len(answer), name="length")
    return len(trajectory.steps) + int(task["answer"]) / 10


def rows_of(sampled: Any) -> list[tuple[list[int], list[bool], list[float]]]:
    """The rows of some calls, from what the server was sent and said: one goes on where its prompt repeats another."""
    rows: list[Any] = []
    for prompt, ids, logprobs in sampled:
        row: Any = next((one for one in rows if prompt[: len(one[0])] == one[0]), None)
        if row is None:
            row = ([], [], [])
            rows.append(row)
        new = len(prompt) - len(row[0])
        row[0].extend([*prompt[len(row[0]) :], *ids])
        row[1].extend([False] * new + [True] * len(ids))
        row[2].extend([0.0] * new + logprobs)
    return sorted(rows)


def test_what_is_trained_on_is_what_was_sampled(tmp_path: Path, engine: Engine) -> None:
    """With prime-rl's client: runs that fail, sub-agents, several conversations, and our record beside the traces."""
    output = tmp_path / "runs.jsonl"
    traces = {one.id: one for one in run(harness(solve, reward=grade, output=output), engine, samples=SAMPLES)}
    runs = list(rt.read(output))
    outer = [one for one in runs if one.parent_id is None]
    assert len(traces) == len(outer) == TASKS * SAMPLES
    for one in outer:
        assert one.metadata is not None
        trace = traces[one.metadata["verifiers"]["trace_id"]]
        assert trace.info["rollout_trace"] == {"trajectory_id": one.id}
        branches = [branch for branch in trace.branches if branch.token_ids]
        rows = rows_of(engine.sampled[trace.id])
        assert sorted((branch.token_ids, branch.sampled_mask, branch.logprobs) for branch in branches) == rows
        calls = [step for part in runs if one.id in (part.id, part.parent_id) for step in part.steps]
        assert sorted(str(step.completion.content) for step in calls if step.completion) == sorted(
            node.message.content for node in trace.nodes if node.sampled
        )
        assert one.task is not None
        assert one.group_id == str(trace.task.data.idx)
        assert "api_key" not in one.task.data
        fate = one.rollout_index
        assert len(rows) == {1: 0, 2: 2, 4: 2}.get(fate or 0, 1)
        if fate in (1, 3):
            assert (one.status, trace.ok, trace.rewards) == ("failed", False, {})
            assert trace.errors[0].type == "HarnessError"
            assert "RuntimeError: " in trace.errors[0].message
            continue
        assert trace.ok
        assert {name: (part.score, part.weight) for name, part in trace.rewards.items() if part is not None} == {
            "reward": (one.reward, 1.0),
            "length": ((one.rewards or {})["length"], 0.0),
            "stopped": (trace.num_turns, 1.0),
        }
        assert trace.reward == (one.reward or 0.0) + trace.num_turns
    assert {one.group_id: sorted(run.rollout_index or 0 for run in outer if run.group_id == one.group_id)
            for one in outer} == {str(at): list(range(SAMPLES)) for at in range(TASKS)}  # fmt: skip


def test_a_plain_agent_and_ids_of_a_server_that_is_evaluated(tmp_path: Path, engine: Engine) -> None:
    def plain(task: Any) -> str:
        with OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
            done = client.chat.completions.create(model=task.model, messages=task["messages"])
        return str(done.choices[0].message.content)

    output = tmp_path / "runs.jsonl"
    traces = run(harness(plain, output=output, engine="vllm"), engine, client="eval")
    assert [trace.ok for trace in traces] == [True] * TASKS
    for one in rt.read(output):
        (step,) = one.steps
        assert step.completion is not None
        assert step.token_source == "engine"
        assert step.completion_token_ids is not None
        said = engine.tokenizer.decode(step.completion_token_ids.tolist())
        assert said.startswith(str(step.completion.content))
        assert one.reward is None


def test_verifiers_ends_a_run(tmp_path: Path, engine: Engine) -> None:
    """At ``max_turns`` the trace is good, and scored by verifiers; where the time is over, the agent is cut."""

    async def endless(task: Any) -> None:
        async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            while True:
                await ask(client, *task["messages"])

    for trace in run(harness(endless, output=tmp_path / "turns.jsonl"), engine, max_turns=2):
        assert (trace.ok, trace.stop_condition, trace.num_turns, trace.reward) == (True, "max_turns", 2, 2.0)
    cut = []

    async def waiting(task: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.append(task["idx"])

    traces = run(harness(waiting, output=tmp_path / "late.jsonl"), engine, timeout={"rollout": 0.2})
    assert [trace.is_timeout for trace in traces] == [True] * TASKS
    assert sorted(cut) == [0, 1]
    for name, error in (("turns", "BadRequestError"), ("late", "CancelledError")):
        found = list(rt.read(tmp_path / f"{name}.jsonl"))
        assert [one.status for one in found] == ["failed"] * TASKS
        assert {one.error.type for one in found if one.error} == {error}


def test_what_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="the agent is 3"):
        harness(3)
    with pytest.raises(TypeError, match="takes no executor, retries: verifiers decides"):
        harness(len, retries=1, executor="process")
    (tmp_path / "runs.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError, match=r"runs\.jsonl is not empty"):
        harness(len, output=tmp_path / "runs.jsonl")
    monkeypatch.setitem(sys.modules, "verifiers.v1.harness", None)
    with pytest.raises(ImportError, match=r"needs verifiers 0\.4"):
        harness(len)


def test_the_page_gives_prime_rl_its_harness(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tomllib = importlib.import_module("tomllib")
    blocks = [one for one in blocks_of("docs/train-prime-rl.md") if "An agent in the trainer" in one.headings]
    module, config = [one.text for one in blocks]
    assert len([line for line in module.splitlines() if line.strip()]) < 20
    (tmp_path / "sums.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (trace,) = asyncio.run(asyncio.wait_for(episodes(tomllib.loads(config), engine, "train", 1), 60))
    assert (trace.ok, trace.reward) == (True, 1.0)
    (one,) = rt.read(f"runs-{os.getpid()}.jsonl")
    assert one.reward == 1.0
