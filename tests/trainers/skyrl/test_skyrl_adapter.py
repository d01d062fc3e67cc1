"""``trainers.skyrl``: SkyRL's own trainer makes its training input of rollouts of an agent that is only a function."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from page_blocks import blocks_below, run_block
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.train.evaluate import evaluate
from skyrl.train.generators.base import BatchMetadata
from skyrl.train.generators.utils import prepare_generator_input

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.trainers.skyrl import Generator
from tests.trainers.skyrl.trainer import make_trainer

PROMPTS, SAMPLES = 3, 6
ROWS = [
    {"prompt": [{"role": "user", "content": f"How much is {n} + 2?"}], "env_class": None, "uid": str(n)}
    | {"env_extras": {"answer": str(n + 2), "data_source": "sums"}}
    for n in range(PROMPTS)
]

pytestmark = pytest.mark.filterwarnings("default")  # of SkyRL itself


def answered(request: Any) -> Reply:
    """The sum of the last question, in a text whose length depends on all that was asked."""
    text = str(request["messages"])
    return Reply(f"It is {int(request['messages'][-1]['content'].split()[3]) + 2}" + "." * (len(text) % 7))


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(answered) as server:
        yield server


def input_of(trainer: Any, step: int, phase: Any = "train") -> Any:
    """As the trainer's loop makes it."""
    samples = trainer.cfg.generator.n_samples_per_prompt
    params = get_sampling_params_for_backend("vllm", trainer.cfg.generator.sampling_params)
    return prepare_generator_input(ROWS, samples, params, "gsm8k", phase, step)


async def batch_of(trainer: Any, step: int) -> tuple[Any, Any]:
    """What a step of the trainer's loop trains on, and the generator's output."""
    given, uids = input_of(trainer, step)
    output = await trainer.generate(given)
    assert list(dict.fromkeys(map(str, output["trajectory_ids"]))) == list(map(str, given["trajectory_ids"]))
    if trainer.cfg.generator.step_wise_trajectories:
        uids = [one.instance_id for one in output["trajectory_ids"]]
    processed, uids = trainer.postprocess_generator_output(dict(output), uids)
    batch = trainer.convert_to_training_input(processed, uids)
    batch["values"] = None
    return trainer.compute_advantages_and_returns(batch), output


def rows_of(run: rt.Trajectory) -> list[tuple[list[int], list[int], list[float], int]]:
    """Ids, loss mask, logprobs and length of the prompt of each row, from the steps."""
    rows: list[Any] = []
    for step in run.steps:
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        prompt, said = list(step.prompt_token_ids), list(step.completion_token_ids)
        if not rows or prompt[: len(rows[-1][0])] != rows[-1][0]:
            rows.append((prompt, [0] * len(prompt), [0.0] * len(prompt), len(prompt)))
        ids, mask, logprobs, cut = rows[-1]
        between = len(prompt) - len(ids)
        mask, logprobs = mask + [0] * between + [1] * len(said), logprobs + [0.0] * between
        rows[-1] = ([*prompt, *said], mask, [*logprobs, *step.logprobs], cut)
    return rows


def make_agent(client: AsyncOpenAI) -> Any:
    """Some runs fail before or after a call, some have a sub-agent, some a second conversation, or are not scored."""

    async def ask(*messages: Any) -> Any:
        return (await client.chat.completions.create(model="m", messages=messages)).choices[0].message

    async def agent(task: Any, rollout: rt.Rollout) -> str:
        (first,) = task["prompt"]
        assert first["content"] == f"How much is {int(task['answer']) - 2} + 2?"
        assert (task["env_class"], task["sampling_params"]["temperature"]) == ("gsm8k", 1.0)
        if rollout.index % SAMPLES == 1:
            raise RuntimeError("before its first call")
        if rollout.index % SAMPLES in (2, 3):
            with rt.trajectory("helper"):
                await ask({"role": "user", "content": "How much is 5 + 2?"})
        answer = await ask(first)
        if rollout.index % SAMPLES == 4:
            raise RuntimeError("after a call")
        for number in range(random.Random(f"{rollout.group}/{rollout.index}").randrange(3)):
            await ask(
                first,
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": f"And how is {number} + 2?"},
            )
        if rollout.index % SAMPLES == 3:
            await ask({"role": "user", "content": "How much is 9 + 2, said again and at some length?"})
        return str(answer.content)

    return agent


def grade(task: Any, answer: str, trajectory: rt.Trajectory) -> float | None:
    return None if len(trajectory.steps) == 2 else len(trajectory.steps) + int(task["answer"]) / 10


@pytest.mark.parametrize("stepwise", [False, True])
def test_the_trainer_trains_on_what_the_agent_did(stepwise: bool, tmp_path: Path, server: ScriptedServer) -> None:
    """Two steps, against rows and GRPO's advantages made here from the recorded steps."""
    trainer, output = make_trainer(PROMPTS, stepwise=stepwise, per_prompt=SAMPLES), tmp_path / "rollouts.jsonl"

    async def steps() -> list[Any]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            options: dict[str, Any] = {"reward": grade, "step_wise_trajectories": stepwise, "timeout": 60}
            trainer.generator = Generator(make_agent(client), output=output, **options)
            made = [await batch_of(trainer, step) for step in (1, 2)]
            await trainer.generator.aclose()
            return made

    made = asyncio.run(steps())
    inner: dict[str | None, list[rt.Trajectory]] = {}
    runs: dict[Any, rt.Trajectory] = {}
    for one in rt.read(output):
        inner.setdefault(one.parent_id, []).append(one)
        if one.parent_id is None:
            runs[one.group_id, one.rollout_index] = one
    assert len(runs) == 2 * PROMPTS * SAMPLES
    lengths = {len(rows_of(run)) for run in runs.values()}
    assert lengths >= {0, 1, 2}
    left_out = 0
    for step, (batch, found) in enumerate(made):
        assert len(found["rewards"]) == len(batch["sequences"])
        at = 0
        for prompt in range(PROMPTS):
            name = str(prompt) if step == 0 else f"{prompt}#2"
            group = [runs[name, step * SAMPLES + sample] for sample in range(SAMPLES)]
            rewards = np.array([run.reward or 0.0 for run in group])
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            for run, reward, advantage in zip(group, rewards, advantages, strict=True):
                assert {one.policy_version for one in run.steps} <= {step}
                rows = rows_of(run)
                if run.status == "failed" or run.reward is None:
                    prompt_ids = rows[0][0][: rows[0][3]] if rows else [0]
                    rows = [([*prompt_ids, 0], [0] * (len(prompt_ids) + 1), [0.0] * 99, len(prompt_ids))]
                elif stepwise:
                    rows = [row for one in inner.get(run.id, ()) for row in rows_of(one)] + rows
                else:
                    left_out += len(rows) - 1
                    rows = [max(rows, key=lambda row: sum(row[1]))]
                for number, (ids, mask, logprobs, cut) in enumerate(rows):
                    assert found["trajectory_ids"][at].instance_id == str(prompt)
                    assert batch["sequences"][at][batch["attention_mask"][at].bool()].tolist() == ids
                    there = batch["response_mask"][at].bool()
                    assert batch["loss_mask"][at][there].tolist() == mask[cut:]
                    assert batch["rollout_logprobs"][at][there].tolist() == pytest.approx(logprobs[cut : len(ids)])
                    is_last = number == len(rows) - 1
                    assert float(batch["rewards"][at].sum()) == pytest.approx(reward if is_last else 0.0)
                    assert batch["advantages"][at][there].tolist() == pytest.approx(
                        [advantage] * len(ids[cut:]), abs=1e-4
                    )
                    at += 1
        assert at == len(found["rewards"])
    report = trainer.generator.report
    assert report.dropped.get("rows left out: of other sequences", 0) == left_out
    inside = sum(map(len, inner.values())) - len(runs)
    assert report.dropped.get("trajectories inside another", 0) == (0 if stepwise else inside)
    assert left_out > 0 or stepwise


def test_calls_of_generate_do_not_wait_for_each_other(tmp_path: Path, server: ScriptedServer) -> None:
    """As the fully asynchronous trainer calls it; and one that is cancelled keeps nothing from the others."""
    trainer = make_trainer(1, per_prompt=2)

    async def main() -> list[Any]:
        may_end = asyncio.Event()

        async def agent(task: Any) -> str:
            if task["prompt"][0]["content"] == "How much is 0 + 2?":
                await may_end.wait()
            return str((await client.chat.completions.create(model="m", messages=task["prompt"])).choices[0].message)

        def given(at: int, step: int) -> Any:
            params = get_sampling_params_for_backend("vllm", trainer.cfg.generator.sampling_params)
            return prepare_generator_input([ROWS[at]], 2, params, "gsm8k", "train", step)[0]

        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            generator = Generator(agent, reward=lambda *_: 1.0, policy_version=7)
            slow, cancelled = (asyncio.ensure_future(generator.generate(given(0, 1))) for _ in range(2))
            await asyncio.sleep(0)
            cancelled.cancel()
            others = await asyncio.gather(*(generator.generate(given(at, 2)) for at in (1, 2)))
            assert not slow.done()
            may_end.set()
            outputs = [await slow, *others]
            await generator.aclose()
            with pytest.raises(RuntimeError, match="nothing more can be asked for"):
                await generator.generate(given(1, 3))
        return outputs

    outputs = asyncio.run(asyncio.wait_for(main(), 60))
    assert [[str(one) for one in output["trajectory_ids"]] for output in outputs] == [
        [f"TrajectoryID(instance_id='{at}', repetition_id={sample})" for sample in range(2)] for at in range(3)
    ]


def test_the_page_gives_the_trainer_its_generator(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SkyRL's own client, for a step and an evaluation of other samples, whose runs are told apart."""
    monkeypatch.chdir(tmp_path)
    (block,) = [one for one in blocks_below("docs/train-skyrl.md", "An agent in the trainer") if one.kind == "python"]
    assert len([line for line in block.text.splitlines() if line.strip()]) < 20
    names: dict[str, Any] = {}
    run_block(block, names)
    trainer = make_trainer(PROMPTS, per_prompt=2)
    trainer.cfg.generator.eval_n_samples_per_prompt = 1
    trainer.cfg.trainer.dump_eval_results, trainer.cfg.trainer.print_example_interval = False, 0
    engine = RemoteInferenceClient(proxy_url=server.url, server_urls=[server.url], data_parallel_size=1)

    async def main() -> Any:
        experiment = object.__new__(names["Experiment"])  # Its constructor starts Ray.
        trainer.generator = experiment.get_generator(trainer.cfg, None, engine)
        batch, _ = await batch_of(trainer, 1)
        metrics = await evaluate([ROWS], trainer.generator, trainer.cfg, 1, trainer.tokenizer)
        return batch, metrics

    batch, metrics = asyncio.run(main())
    assert batch["rewards"].sum() == PROMPTS * 2
    assert batch.metadata["uids"] == [str(at) for at in range(PROMPTS) for _ in range(2)]
    assert metrics["eval/all/avg_score"] == 1.0
    found = {(one.group_id, one.rollout_index): one.steps[0].policy_version for one in rt.read("skyrl.jsonl")}
    assert found == {
        **{(str(at), sample): 0 for at in range(PROMPTS) for sample in range(2)},
        **{(f"eval/{at}", 0): 1 for at in range(PROMPTS)},
    }


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the agent is 3"):
        Generator(3)
    with pytest.raises(ValueError, match="failed='keep': expected 'mask' or 'mask_group'"):
        Generator(len, failed="keep")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Generator\(\) takes no order, samples: SkyRL decides which rollouts"):
        Generator(len, samples=2, order="tasks")  # type: ignore[call-arg]
    (tmp_path / "rollouts.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError, match=r"rollouts\.jsonl is not empty"):
        Generator(len, output=tmp_path / "rollouts.jsonl")
    given = {"prompts": ["a"], "trajectory_ids": None, "batch_metadata": BatchMetadata(1, "train")}
    with pytest.raises(ValueError, match="has no trajectory_ids"):
        asyncio.run(Generator(len).generate(given))
