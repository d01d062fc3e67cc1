"""``trainers.trl``: the real GRPOTrainer takes steps on rollouts of an agent that is only a function."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from openai import OpenAI
from page_blocks import blocks_of

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.report import ExportReport
from rollout_trace.testing import ScriptedServer
from rollout_trace.trainers import trl
from tests.consumers import recorded
from tests.consumers.torch import example

STEPS = 3

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


def advantages_of(runs: list[rt.Trajectory]) -> tuple[list[rt.Trajectory], list[float | None]]:
    """The runs of a group with their advantages, by ``rt.groups``."""
    (group,) = rt.groups(runs)
    return list(group.trajectories), group.advantages()


Computed: TypeAlias = dict[tuple[int, ...], list[tuple[np.ndarray, np.ndarray]]]
"""Logprobs and entropies [completion length] of each pass of the loss over a row, by its ids."""


def reporting(rollouts: Any, computed: Computed) -> Any:
    """The trainer of docs/mismatch.md, which also keeps what it has computed; ``rollouts`` is as there."""
    (block,) = [one for one in blocks_of("docs/mismatch.md") if "class Reporting" in one.text]
    names: dict[str, Any] = {"rollouts": rollouts}
    exec(block.text, names)
    base: Any = names["Reporting"]

    class Watched(base):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, *args: Any, **options: Any
        ) -> Any:
            found = super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, *args, **options)
            if options.get("compute_entropy"):
                length = found[0].shape[1]
                for ids, mask, *values in zip(input_ids, attention_mask, *found[:2], strict=True):
                    kept = [one.detach().numpy()[mask[-length:].bool().numpy()] for one in values]
                    computed.setdefault(tuple(ids[mask.bool()].tolist()), []).append((kept[0], kept[1]))
            return found

    return Watched


def assert_came_back(path: Path, computed: Computed, options: Mapping[str, Any]) -> int:
    """What the file has of each row that was trained on is what the trainer computed. Returns the number of rows."""
    trained = 0
    for run in rt.read(path):
        rows = [] if run.parent_id is not None or run.status == "failed" else run.sequences(**options)
        row = max(rows, key=lambda one: int(one.loss_mask.sum()), default=None)
        steps = {step.id: step for step in run.steps}
        for name in set(steps) - set(() if row is None else row.step_ids):
            assert steps[name].trainer_logprobs is None
        if row is None:
            continue
        trained += 1
        passes = computed[tuple(row.token_ids.tolist())]
        # Of two runs with the same ids each has the numbers of one of the two rows.
        assert any(_are_on(row, steps, values) for values in passes)
    return trained


def _are_on(row: Any, steps: Mapping[str, rt.Step], values: tuple[np.ndarray, np.ndarray]) -> bool:
    for name, (begin, end) in zip(row.step_ids, row.spans, strict=True):
        for given, found in zip(values, (steps[name].trainer_logprobs, steps[name].entropy), strict=True):
            expected = given[begin - row.prompt_length : end - row.prompt_length]
            assert found is not None
            assert expected.dtype == found.dtype == np.float32
            if found[: len(expected)].tobytes() != expected.tobytes():
                return False
            # What was cut off the row is unknown.
            assert np.isnan(found[len(expected) :]).all()
    return True


def test_what_the_trainer_computed_of_cut_rows_comes_back(
    grpo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "ROLLOUTS", 2)
    path = tmp_path / "rollouts.jsonl"
    tokenizer = grpo.make_tokenizer()
    policy = grpo.Policy(grpo.make_model(tokenizer, 0), grpo.make_model(tokenizer, 0).eval())
    asked = [[{"role": "user", "content": f"drawer {drawer}"}] for drawer in grpo.DRAWERS for _ in range(2)]
    with grpo.serve(policy.served, tokenizer) as server, rt.recording(path):
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm")
        for at, prompt in enumerate(asked):
            with rt.trajectory(task=f"task {at}") as run:
                for turn in range(1 + at % 3):
                    # Two conversations, or three: several rows.
                    words: Any = [*prompt, {"role": "user", "content": "pen"}][-1 - turn % 2 :]
                    client.chat.completions.create(model="tiny", messages=words, max_tokens=9, seed=5 * at + turn)
                run.reward = float(at % 2)
    runs, numbers, computed = list(rt.read(path)), trl.TrainerNumbers(path), Computed()
    options: Any = {"max_response_length": 4}

    def replay(prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        columns = export.trl_rollout(runs, several="longest", **options)
        numbers.expect(columns)
        return columns

    monkeypatch.setattr(grpo, "GRPOTrainer", reporting(SimpleNamespace(trainer=numbers), computed))
    grpo.make_trainer(replay, policy, tokenizer, 1, 0, tmp_path).train()
    assert assert_came_back(path, computed, options) == len(asked)
    came = [step.trainer_logprobs for run in rt.read(path) for step in run.steps]
    assert any(np.isnan(one).any() for one in came if one is not None)
    assert {len(run.steps) for run in runs} == {1, 2, 3}
    # Both sides are this model's, in float32.
    assert [cause.code for cause in rt.mismatch(rt.read(path)).causes] == []


def test_the_trainer_takes_steps(grpo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs that fail, sub-agents, and runs of several rows: each row is what the server was asked and said.

    The output is a folder.
    """
    monkeypatch.setattr(grpo, "WARM_UP_STEPS", 30)
    monkeypatch.setattr(grpo, "ROLLOUTS", 4)
    tokenizer = grpo.make_tokenizer()
    model = grpo.make_model(tokenizer, 0)
    grpo.warm_up(model, tokenizer, 0)
    policy, drawers = grpo.Policy(model, deepcopy(model).eval()), dict(zip(grpo.DRAWERS, grpo.THINGS, strict=True))
    batches: list[dict[str, Any]] = []
    rewarded: list[dict[str, Any]] = []
    figures: list[dict[str, float]] = []

    computed, rollouts = Computed(), SimpleNamespace()

    class Watched(reporting(rollouts, computed)):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batches.append(super()._generate_and_score_completions(inputs))
            return batches[-1]

    def reward(**given: Any) -> list[float | None]:
        rewarded.append(given)
        return trl.recorded_reward(**given)

    monkeypatch.setattr(grpo, "GRPOTrainer", Watched)
    monkeypatch.setattr(grpo, "recorded_reward", reward)
    with grpo.serve(policy.served, tokenizer) as server, OpenAI(base_url=server.base_url, api_key="none") as client:

        def agent(prompt: Any, rollout: rt.Rollout) -> str:
            assert prompt[-1]["content"].startswith("drawer ")
            fate = random.Random(f"{rollout.group}/{rollout.index}").random()
            if fate < 0.1:
                raise RuntimeError("before its first call")
            with rt.trajectory("helper"):
                grpo.solve(client, prompt, drawers, 10**6 + rollout.index)
            answer, _ = grpo.solve(client, prompt, drawers, rollout.index)
            if fate < 0.2:
                raise RuntimeError("after its calls")
            if fate < 0.4:
                grpo.solve(client, [*prompt, {"role": "user", "content": "pen"}], drawers, rollout.index)
            return str(answer)

        def grade(task: Any, result: str, trajectory: rt.Trajectory) -> float:
            return float(result == drawers[task[-1]["content"][-1]]) + len(trajectory.steps) / 10

        func = trl.rollout_func(agent, reward=grade, output=tmp_path / "rollouts", log=figures.append)
        rollouts.trainer = func.trainer
        trainer = grpo.make_trainer(func, policy, tokenizer, STEPS, 0, tmp_path)
        trainer.train()
        func.close()
    runs = {run.id: run for run in rt.read(tmp_path / "rollouts")}
    outer = [run for run in runs.values() if run.parent_id is None]
    assert len(outer) == STEPS * 4 * len(grpo.DRAWERS)
    assert {"completed", "failed"} == {run.status for run in outer}
    assert [one["groups"] for one in figures] == list(range(1, 1 + STEPS * len(grpo.DRAWERS)))
    kinds = {len(run.sequences()) for run in outer}
    assert {0, 1, 2} <= kinds
    for step, (batch, given) in enumerate(zip(batches, rewarded, strict=True)):
        ids = given["trajectory_id"]
        assert len(set(ids)) == 4 * len(grpo.DRAWERS)
        groups = [ids[at : at + 4] for at in range(0, len(ids), 4)]
        assert all(len({runs[one].group_id for one in group}) == 1 for group in groups)
        for at, name in enumerate(ids):
            run = runs[name]
            assert run.task is not None
            assert given["prompts"][at] == run.task.data
            assert {one.policy_version for one in run.steps} <= {step}
            there = batch["completion_mask"][at].bool()
            completion = batch["completion_ids"][at][there].tolist()
            trained = batch["tool_mask"][at][there].bool().tolist()
            if run.status == "failed":
                assert (completion, trained, given["reward"][at]) == ([0], [False], None)
                assert batch["advantages"][at] == 0
                continue
            row = max(run.sequences(), key=lambda one: int(one.loss_mask.sum()))
            cut = row.prompt_length
            assert row.logprobs is not None
            assert completion == row.token_ids[cut:].tolist()
            assert trained == row.loss_mask[cut:].astype(bool).tolist()
            assert np.array_equal(batch["sampling_per_token_logps"][at][there].numpy(), row.logprobs[cut:])
            assert given["reward"][at] == run.reward
        for group in groups:
            for run, expected in zip(*advantages_of([runs[one] for one in group]), strict=True):
                assert batch["advantages"][ids.index(run.id)] == pytest.approx(expected or 0, abs=1e-3)
    for logs in trainer.state.log_history:
        if "reward" in logs:
            assert grpo.ratios(logs) == pytest.approx((1, 1), abs=1e-3)
    assert assert_came_back(tmp_path / "rollouts", computed, {}) == sum(run.status != "failed" for run in outer)
    assert func.report.noted["runs that failed, as rows that nothing is learnt from"] == sum(
        run.status == "failed" for run in outer
    )
    assert func.report.dropped["steps left out: of other sequences"] >= len(kinds) - 2


def test_an_evaluation_forgets_no_row_and_a_failure_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.jsonl"
    with ScriptedServer(["one", "another", "more"]) as server, rt.recording(path):
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm")
        for at in range(3):
            with rt.trajectory():
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(at)}])
    rows = [export.trl_rollout([run]) for run in rt.read(path)]
    numbers = trl.TrainerNumbers(path)
    for at, forget in enumerate((True, True, False)):
        numbers.expect(rows[at], forget=forget)

    def note(to: trl.TrainerNumbers) -> None:
        for row in rows:
            (prompt,), (said,) = row["prompt_ids"], row["completion_ids"]
            ids, values = torch.tensor([[*prompt, *said]]), torch.arange(len(said))[None] / 8
            to.note(ids, torch.ones_like(ids), -values, values)

    note(numbers)
    assert [run.steps[0].trainer_logprobs is not None for run in rt.read(path)] == [False, True, True]
    lost = trl.TrainerNumbers(tmp_path / "no.jsonl")
    lost.expect(rows[0])
    note(lost)
    assert "what the trainer computed for 1 rows was not noted: FileNotFoundError" in caplog.text


def test_failed_runs_are_rows_without_a_loss() -> None:
    runs = recorded.tool_agent()
    runs[0].status = "failed"
    report = ExportReport()
    found = export.trl_rollout(runs, failed="mask", report=report)
    kept = export.trl_rollout(runs, report=ExportReport())
    assert (found["completion_ids"][0], found["env_mask"][0], found["logprobs"][0]) == ([0], [0], [0.0])
    assert found["prompt_ids"][0] == kept["prompt_ids"][0]
    assert [one[1:] for one in found.values()] == [one[1:] for one in kept.values()]
    with pytest.raises(ValueError, match="failed='drop': expected 'keep' or 'mask'"):
        export.trl_rollout(runs, failed="drop")  # type: ignore[arg-type]


def test_what_is_wrong_is_said_at_once(tmp_path: Path, grpo: Any) -> None:
    with pytest.raises(TypeError, match="the agent is 3"):
        trl.rollout_func(3)
    (tmp_path / "rollouts.jsonl").write_text(json.dumps({}) + "\n")
    with pytest.raises(FileExistsError, match=r"rollouts\.jsonl is not empty"):
        trl.rollout_func(len, output=tmp_path / "rollouts.jsonl")

    class Trainer:
        num_generations = 2
        model = grpo.make_model(grpo.make_tokenizer(), 0)

        class state:
            global_step = 0

    with pytest.raises(ValueError, match="3 prompts, which do not form groups of 2"):
        trl.rollout_func(len)(["a", "a", "b"], Trainer)
    with pytest.raises(ValueError, match="4 prompts, which do not form groups of 2"):
        trl.rollout_func(len)(["a", "b", "b", "b"], Trainer)
