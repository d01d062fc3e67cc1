"""TRL's GRPOTrainer trains on what was recorded of an agent, in fewer steps than the example runs by itself."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from page_blocks import blocks_below

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.trainers import trl
from tests.consumers.torch import example

STEPS = 12

pytestmark = [  # of the trainer itself
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def settings_of_torch() -> Iterator[None]:
    with example.settings_of_torch():
        yield


@pytest.fixture(scope="module")
def grpo() -> Any:
    return example.load("grpo_trl")


@pytest.fixture
def small(grpo: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script with less training beforehand and smaller groups, for runs of a few steps."""
    monkeypatch.setattr(grpo, "WARM_UP_STEPS", 30)
    monkeypatch.setattr(grpo, "ROLLOUTS", 4)
    return grpo


@dataclass
class Run:
    """What a run of the script recorded and printed, and what TRL made of it."""

    trajectories: list[rt.Trajectory] = field(default_factory=list)
    printed: str = ""
    batches: list[dict[str, Any]] = field(default_factory=list)
    rewarded: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def learned(grpo: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    made, out, folder = Run(), io.StringIO(), tmp_path_factory.mktemp("rollouts")

    class Watched(grpo.GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made.batches.append(super()._generate_and_score_completions(inputs))
            return made.batches[-1]

    def reward(reward: list[float], **others: Any) -> list[float]:
        made.rewarded.append({**others, "reward": reward})
        return reward

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(grpo, "GRPOTrainer", Watched)
        patch.setattr(grpo, "recorded_reward", reward)
        grpo.main(["--steps", str(STEPS), "--out", str(folder)])
    made.trajectories, made.printed = list(rt.read(folder / "rollouts.jsonl")), out.getvalue()
    return made


def step_of(run: rt.Trajectory) -> int:
    """The trainer's step: each prompt comes once in each."""
    return int((run.group_id or "").partition("#")[2] or 1) - 1


def test_the_reward_rises(learned: Run) -> None:
    rewards = [float(value) for value in re.findall(r"^ +\d+ +(\d\.\d+) ", learned.printed, re.MULTILINE)]
    assert len(rewards) == STEPS
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.07, rewards
    assert learned.printed.endswith("rollouts.jsonl\n")


def test_trl_measures_ratios_of_one(learned: Run) -> None:
    """At the first step, and wherever the server got the new weights in time."""
    ratios = [float(value) for pair in re.findall(r"(\d\.\d{6}) to (\d\.\d{6})", learned.printed) for value in pair]
    assert len(ratios) == 2 * STEPS
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-3)


def test_the_file_holds_groups_of_the_runs(learned: Run, grpo: Any) -> None:
    """One row a run, with all that was sampled; runs with and without the tool, and answers that were cut."""
    trajectories = learned.trajectories
    groups = rt.groups(trajectories)
    assert {len(group.trajectories) for group in groups} == {grpo.ROLLOUTS}
    assert len(groups) == STEPS * len(grpo.DRAWERS)
    for run in trajectories:
        (row,) = run.sequences()
        assert row.loss_mask.sum() == run.n_output_tokens
        assert {step.policy_version for step in run.steps} == {step_of(run)}
    assert {len(run.steps) for run in trajectories} >= {1, 2}
    assert {step.finish_reason for run in trajectories for step in run.steps} == {"stop", "length", "tool_calls"}
    first, last = (
        np.mean([run.reward for run in trajectories if step_of(run) in steps])
        for steps in (range(5), range(STEPS - 5, STEPS))
    )
    line = f"mean reward: {first:.3f} in the first five steps, {last:.3f} in the last five\n"
    assert line in learned.printed


def test_the_batch_of_the_trainer_is_what_was_recorded(learned: Run, grpo: Any) -> None:
    """Ids token for token, the mask, logprobs and rewards; no token of a tool's result is trained on."""
    batch, given = learned.batches[0], learned.rewarded[0]
    recorded = {run.id: run for run in learned.trajectories if step_of(run) == 0}
    assert sorted(given["trajectory_id"]) == sorted(recorded)
    tokenizer, results = grpo.make_tokenizer(), 0
    for at, name in enumerate(given["trajectory_id"]):
        run = recorded[name]
        (row,) = run.sequences()
        prompt = batch["prompt_ids"][at][batch["prompt_mask"][at].bool()].tolist()
        there = batch["completion_mask"][at].bool()
        completion, trained = batch["completion_ids"][at][there], batch["tool_mask"][at][there].bool()
        assert prompt + completion.tolist() == row.token_ids.tolist()
        assert prompt == list(
            tokenizer.apply_chat_template(given["prompts"][at], add_generation_prompt=True)["input_ids"]
        )
        assert trained.tolist() == row.loss_mask[len(prompt) :].astype(bool).tolist()
        assert row.logprobs is not None
        assert np.array_equal(batch["sampling_per_token_logps"][at][there].numpy(), row.logprobs[len(prompt) :])
        said = np.concatenate([step.completion_token_ids for step in run.steps])
        assert completion[trained].tolist() == said.tolist()
        tools = [message["content"] for message in run.steps[-1].messages or () if message["role"] == "tool"]
        between = tokenizer.decode(completion[~trained]).replace("<|end|>", "")
        assert between.split() == [word for tool in tools for word in ("<|tool|>", tool, "<|assistant|>")]
        results += len(tools)
        assert given["reward"][at] == run.reward
    assert results > len(recorded) // 2
    assert batch["num_items_in_batch"] == sum(run.n_output_tokens or 0 for run in recorded.values())
    advantages = {
        run.id: value or 0.0
        for group in rt.groups(recorded.values())
        for run, value in zip(group.trajectories, group.advantages(), strict=True)
    }
    assert batch["advantages"].tolist() == pytest.approx(
        [advantages[name] for name in given["trajectory_id"]], abs=1e-3
    )


def test_the_page_shows_lines_as_they_are_printed(learned: Run) -> None:
    example.assert_shown("docs/train-trl.md", "importance ratios", learned.printed)


def test_the_page_trains(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its block, with the script's agent, model and server for a user's own; without vLLM, which takes a GPU."""
    tokenizer = small.make_tokenizer()
    policy = small.Policy(small.make_model(tokenizer, 0), small.make_model(tokenizer, 0).eval())
    drawers = dict(zip(small.DRAWERS, small.THINGS, strict=True))

    def solve(client: Any, prompt: Any) -> float:
        return float(len(small.solve(client, prompt, drawers, next(seeds))[0]))

    def trainer(model: Any, reward: Any, *, args: Any, rollout_func: Any, train_dataset: Any) -> Any:
        assert args == {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url, "beta": 0.0}
        monkeypatch.setattr(small, "recorded_reward", reward)
        made.append(small.make_trainer(rollout_func, policy, tokenizer, 1, 0, tmp_path))
        return made[0]

    (block,) = [one.text for one in blocks_below("docs/train-trl.md", "A whole loop") if "GRPOConfig(" in one.text]
    made: list[Any] = []
    seeds = itertools.count()
    names: dict[str, Any] = {"rt": rt, "export": export, "OpenAI": OpenAI, "ThreadPoolExecutor": ThreadPoolExecutor}
    names |= {"GRPOConfig": dict, "GRPOTrainer": trainer, "settings": {"beta": 0.0}, "solve": solve}
    path = tmp_path / "rollouts.jsonl"
    with small.serve(policy.served, tokenizer) as server:
        code = block.replace("http://localhost:8000", server.url).replace('"rollouts.jsonl"', repr(str(path)))
        exec(code, names | {"model": policy.trained, "dataset": None})
    runs = list(rt.read(path))
    assert len(runs) == small.ROLLOUTS * len(small.DRAWERS)
    assert {len(group.trajectories) for group in rt.groups(runs)} == {small.ROLLOUTS}
    assert {step.logprobs_mode for run in runs for step in run.steps} == {"processed"}
    (logs,) = [logs for logs in made[0].state.log_history if "reward" in logs]
    assert small.ratios(logs) == pytest.approx((1, 1), abs=1e-3)
    assert logs["reward"] == pytest.approx(np.mean([run.reward for run in runs]))


def stale_weights(grpo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on with the weights of the first step."""
    monkeypatch.setattr(grpo.Policy, "sync_weights", lambda self: None)


def foreign_logprobs(grpo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends the logprobs of another temperature than it samples at."""
    sample = grpo.sample

    def hotter(*arguments: Any) -> tuple[list[int], list[float]]:
        ids, logprobs = sample(*arguments)
        return ids, [0.99 * value for value in logprobs]

    monkeypatch.setattr(grpo, "sample", hotter)


def results_trained_on(grpo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask lets results of the tool in."""
    rollout = export.trl_rollout

    def unmasked(trajectories: Any, **options: Any) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = rollout(trajectories, **options)
        return {**columns, "env_mask": [[1] * len(mask) for mask in columns["env_mask"]]}

    monkeypatch.setattr(trl, "trl_rollout", unmasked)


@pytest.mark.parametrize(("wrong", "steps"), [(stale_weights, 3), (foreign_logprobs, 1), (results_trained_on, 1)])
def test_a_ratio_shows_what_is_wrong(
    small: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: Any,
    steps: int,
) -> None:
    """The rate of the first step is 0: weights that were not sent are wrong from the third on."""
    wrong(small, monkeypatch)
    with pytest.raises(SystemExit, match=r"an importance ratio before an update was off by .*: the logprobs are not"):
        small.main(["--steps", str(steps), "--out", str(tmp_path)])
    first = [float(one) for one in re.findall(r"^ +1 .* (\S+) to (\S+)$", capsys.readouterr().out, re.MULTILINE)[0]]
    assert (first == pytest.approx([1, 1], abs=1e-3)) == (wrong is stale_weights)


def test_a_seed_decides_everything(small: Any, tmp_path: Path) -> None:
    """Whatever the threads do."""
    runs = [
        small.run(steps, seed, tmp_path / f"{at}.jsonl") for at, (steps, seed) in enumerate([(3, 7), (1, 8), (3, 7)])
    ]
    rewards = [[logs["reward"] for logs in lines] for lines in runs]
    grads = [[logs["grad_norm"] for logs in lines] for lines in runs]
    assert (rewards[0], grads[0]) == (rewards[2], grads[2])
    assert grads[0][:1] != grads[1]


def test_no_rise_is_a_failure(small: Any, tmp_path: Path) -> None:
    """A single step has nothing to rise from."""
    with pytest.raises(SystemExit, match="the reward did not rise"):
        small.main(["--steps", "1", "--out", str(tmp_path)])


def test_recorded_rollouts_are_not_added_to(small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rollouts.jsonl").touch()
    with pytest.raises(SystemExit) as caught:
        small.main(["--steps", "1", "--out", str(tmp_path)])
    assert caught.value.code == 2
    assert "rollouts.jsonl exists: name another folder" in capsys.readouterr().err
