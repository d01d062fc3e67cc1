"""``trainers.slime``: slime and Miles call it, and make training data of the samples, by their own code.

They are on no index: ``ROLLOUT_TRACE_CHECKOUTS`` names a folder with checkouts ``slime`` and ``miles``, or the tests
are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI, OpenAI
from page_blocks import blocks_below, run_block

import rollout_trace as rt
from rollout_trace.data.model import amend
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.trainers.slime import Generate, generate_function
from tests.trainers.torch.checkouts import checkout, functions_of, sample_of

GROUPS, SAMPLES = 2, 7

pytestmark = pytest.mark.filterwarnings("default")  # of the trainers themselves


def answered(request: Any) -> Reply:
    text = "".join(str(one["content"]) for one in request["messages"])
    number = int(text.rpartition("How much is ")[2].split()[0])
    return Reply(f"It is {number + 2}" + "." * (len(text) % 7))


async def solve(task: Any, rollout: rt.Rollout) -> str:
    """Some runs fail before or after a call, have a sub-agent, a second conversation, or are not scored."""
    assert (task["label"], task["sampling_params"], task["metadata"]) == ("2", {"temperature": 1.0}, {"source": "sums"})
    fate, messages = rollout.index, [{"role": "user", "content": task["prompt"]}]

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
    return None if trajectory.rollout_index == 5 else float(len(trajectory.steps))


def rows_of(run: rt.Trajectory) -> list[tuple[list[int], list[int], list[float]]]:
    """All ids of each row, the loss mask and the logprobs of what follows its first prompt, from the steps."""
    rows: list[Any] = []
    for step in run.steps:
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        prompt, said = step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()
        if not rows or prompt[: len(rows[-1][0])] != rows[-1][0]:
            rows.append((list(prompt), [], []))
        ids, mask, logprobs = rows[-1]
        new = len(prompt) - len(ids)
        ids += [*prompt[len(ids) :], *said]
        mask += [0] * new + [1] * len(said)
        logprobs += [0.0] * new + step.logprobs.tolist()
    return rows


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


def caller_of_slime(Sample: Any, generate: Any) -> Callable[..., Any]:
    """slime's ``generate_and_rm``, whose reward model must not be asked."""

    async def hooks(args: Any, sample: Any, evaluation: bool) -> Any:
        return sample

    async def rewards(args: Any, samples: list[Any]) -> list[float]:
        assert not samples
        return []

    state = SimpleNamespace(semaphore=asyncio.Semaphore(3), aborted=False, dp_rank_context=nothing)
    given: dict[str, Any] = {
        "GenerateState": lambda args: state,
        "load_function": lambda path: generate,
        "inspect": inspect,
    }
    given |= {"trace_span": lambda *_: nothing(), "batched_async_rm": rewards}
    path = checkout("slime") / "slime" / "rollout" / "sglang_rollout.py"
    made = functions_of(path, "generate_and_rm", Sample=Sample, apply_rollout_sample_hooks=hooks, **given)
    called: Callable[..., Any] = made["generate_and_rm"]
    return called


def caller_of_miles(Sample: Any, generate: Any) -> Callable[..., Any]:
    """Miles's adapter of such functions."""
    path = checkout("miles") / "miles" / "rollout" / "inference_rollout" / "compatibility.py"
    given = {"load_function": lambda path: generate, "GenerateFnOutput": SimpleNamespace, "inspect": inspect}
    made = functions_of(path, "load_generate_function", "_is_legacy_generate_fn", "LegacyGenerateFnAdapter", **given)
    adapted = made["load_generate_function"]("my_agent.generate")

    async def call(args: Any, sample: Any, params: Any) -> Any:
        asked = SimpleNamespace(args=args, sample=sample, sampling_params=params, evaluation=False)
        return (await adapted(asked)).samples

    return call


def training_data(trainer: str, Sample: Any, samples: list[Any]) -> Any:
    """What the trainer makes of samples, by its own function."""
    args = SimpleNamespace(
        advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=False, reward_key=None,
        n_samples_per_prompt=SAMPLES, rollout_batch_size=GROUPS, use_dynamic_global_batch_size=False,
    )  # fmt: skip
    if trainer == "slime":
        names: tuple[str, ...] = ("_convert_samples_to_train_data", "_post_process_rewards")
        made = functions_of(
            checkout("slime") / "slime" / "ray" / "rollout.py", *names, torch=torch, Sample=Sample, get_source=id
        )
        manager = SimpleNamespace(
            args=args, custom_reward_post_process_func=None, custom_convert_samples_to_train_data_func=None
        )
        manager._post_process_rewards = lambda samples: made["_post_process_rewards"](manager, samples)
        return made["_convert_samples_to_train_data"](manager, samples)
    path = checkout("miles") / "miles" / "ray" / "rollout" / "train_data_conversion.py"
    names = (
        "convert_samples_to_train_data", "_compute_rollout_mask_sums", "_reward_group_segments",
        "_normalize_rewards_by_rollout", "_post_process_rewards",
    )  # fmt: skip
    made = functions_of(path, *names, torch=torch, Sample=Sample)
    return made["convert_samples_to_train_data"](args, samples, {}, None, None)


def make(generate: Any, trainer: str, Sample: Any) -> list[list[Any]]:
    """The samples of each call, in the order of the calls."""
    call = (caller_of_slime if trainer == "slime" else caller_of_miles)(Sample, generate)

    async def main(args: Any) -> list[Any]:
        given = [
            Sample(index=at, group_index=at // SAMPLES, prompt=f"How much is {at // SAMPLES} + 2?", label="2",
                   metadata={"source": "sums"})
            for at in range(GROUPS * SAMPLES)
        ]  # fmt: skip
        found = await asyncio.gather(*(call(args, one, {"temperature": 1.0}) for one in given))
        await generate.aclose()
        return list(found)

    with ScriptedServer(answered) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        args = SimpleNamespace(
            sglang_router_ip=host, sglang_router_port=int(port), custom_generate_function_path="my_agent.generate",
            partial_rollout=False, group_rm=False,
        )  # fmt: skip
        made = asyncio.run(asyncio.wait_for(main(args), 300))
    return [one if isinstance(one, list) else [one] for one in made]


@pytest.mark.parametrize("trainer", ["slime", "miles"])
@pytest.mark.parametrize("several", ["longest", "all"])
def test_the_trainer_gets_what_was_sampled(trainer: str, several: Any, tmp_path: Path) -> None:
    """Failed runs, sub-agents, runs of several rows; ids, masks, logprobs, rewards, groups are those of steps."""
    Sample, output = sample_of(trainer), tmp_path / "runs.jsonl"
    generate: Any = generate_function(solve, reward=grade, output=output, several=several, engine="vllm")
    assert isinstance(generate, Generate)
    made = make(generate, trainer, Sample)
    runs = list(rt.read(output))
    outer = {one.metadata["slime"]["index"]: one for one in runs if one.parent_id is None and one.metadata}
    assert sorted(outer) == list(range(GROUPS * SAMPLES))
    left_out = 0
    for at, samples in enumerate(made):
        run, inner = outer[at], [one for one in runs if one.parent_id == outer[at].id]
        assert run.group_id == str(at // SAMPLES)
        is_lost = run.rollout_index in (1, 3, 5)
        rows = [row for one in (run, *(inner if several == "all" else ())) for row in rows_of(one)]
        if several == "longest" and rows:
            left_out += len(rows) - 1
            rows = [max(rows, key=lambda row: sum(row[1]))]
        for sample, (ids, mask, logprobs) in zip(samples, rows or [([0, 0], [0], [0.0])], strict=True):
            sample.validate() if hasattr(sample, "validate") else sample._validate_response_metadata_lengths()
            assert (sample.tokens, sample.loss_mask, sample.rollout_log_probs) == (ids, mask, logprobs)
            assert (sample.index, sample.group_index, sample.response_length) == (at, at // SAMPLES, len(mask))
            assert sample.rollout_id == (at if len(samples) > 1 else None)
            assert sample.remove_sample == is_lost
            assert sample.status.value == ("failed" if is_lost else "completed")
            assert sample.reward == (0.0 if is_lost else run.reward)
            assert sample.metadata["source"] == "sums"
            assert sample.metadata["trajectory_id"] in [run.id, *(one.id for one in inner)]
            if run.rollout_index != 1:
                completion = run.steps[-1].completion
                assert completion is not None
                assert sample.response == completion.content
    assert generate.report.noted["runs as samples that nothing is learnt from"] == GROUPS * 3
    assert generate.report.dropped.get("rows left out: of other sequences", 0) == left_out
    if several == "longest":
        assert left_out == generate.report.dropped["trajectories inside another"] == GROUPS
    flat = [sample for samples in made for sample in samples]
    assert len({id(sample.loss_mask) for sample in flat}) == len(flat)
    data = training_data(trainer, Sample, flat)
    assert data["tokens"] == [sample.tokens for sample in flat]
    assert [sum(mask) > 0 for mask in data["loss_masks"]] == [not sample.remove_sample for sample in flat]
    if several == "all" and trainer == "slime":
        return  # It takes the whole batch for a group where runs have several rows.
    for at, sample in zip(range(len(flat)), flat, strict=True):
        group = [run.reward or 0.0 for run in outer.values() if run.group_id == str(sample.group_index)]
        assert data["rewards"][at] == pytest.approx(sample.reward - sum(group) / len(group), abs=1e-5)


def test_a_row_without_logprobs_loses_only_itself(tmp_path: Path) -> None:
    with ScriptedServer(answered) as server, rt.recording(tmp_path / "runs.jsonl"):
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm")
        with rt.trajectory():
            for number in (1, 2):
                asked: Any = [{"role": "user", "content": f"How much is {number} + 2?"}]
                client.chat.completions.create(model="m", messages=asked)
    (run,) = rt.read(tmp_path / "runs.jsonl")
    amend(run.steps[0], logprobs=None)
    generate = generate_function(solve)
    (row,) = generate._rows(run, rt.Group(id="a", trajectories=(run,)))
    assert (row["tokens"], row["loss_mask"], row["rollout_log_probs"]) == rows_of(replace(run, steps=run.steps[1:]))[0]
    assert generate.report.dropped == {"rows without logprobs": 1}


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the agent is 3"):
        generate_function(3)
    with pytest.raises(ValueError, match="several is 'both'"):
        generate_function(len, several="both")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes no max_lag"):
        generate_function(len, max_lag=1)  # type: ignore[call-arg]
    (tmp_path / "runs.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError, match=r"runs\.jsonl is not empty"):
        generate_function(len, output=tmp_path / "runs.jsonl")


def test_the_page_gives_slime_its_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_below("docs/train-others.md", "slime and Miles")
    assert len([line for line in block.text.splitlines() if line.strip()]) < 20
    names: dict[str, Any] = {}
    run_block(block, names)
    made = make(names["generate"], "slime", sample_of("slime"))
    assert [sample.reward for (sample,) in made] == [1.0] * SAMPLES + [0.0] * SAMPLES
