"""Exports of single calls, grouped by run: Agent-lightning, ART, rLLM, OpenEnv; without their consumers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import trajectory_of

NAMES = ("agent_lightning", "art", "openenv", "rllm")


def calls(name: str, runs: Any) -> list[tuple[list[int], list[int], list[float]]]:
    """Prompt ids, completion ids and logprobs of each call, in the order of the export."""
    rows = getattr(export, name)(runs, report=ExportReport())
    if name == "agent_lightning":
        parts = [(one["prompt"]["token_ids"], one["response"]) for row in rows for one in row["triplets"]]
        return [(prompt, answer["token_ids"], answer["log_probs"]) for prompt, answer in parts]
    if name == "art":
        runs_ = [run for group in rows for run in group["trajectories"]]
        answers = [one["response"] for run in runs_ for one in run["exchanges"]["chat_completions"]]
        return [
            (one["prompt_token_ids"], choice["token_ids"], [item["logprob"] for item in choice["logprobs"]["content"]])
            for one in answers
            for choice in one["choices"]
        ]
    if name == "openenv":
        turns = [turn for row in rows for turn in row["trace"]["turns"]]
        return [(turn["prompt_token_ids"], turn["completion_token_ids"], turn["per_token_logps"]) for turn in turns]
    steps = [step for row in rows for run in row["trajectories"] for step in run["steps"]]
    return [(step["prompt_ids"], step["response_ids"], step["logprobs"]) for step in steps]


@pytest.mark.parametrize("name", NAMES)
def test_the_calls_are_the_steps(name: str) -> None:
    runs = recorded.tool_agent()
    expected = [
        (step.prompt_token_ids.tolist(), step.completion_token_ids.tolist(), step.logprobs.tolist())  # type: ignore[union-attr]
        for run in runs
        for step in run.steps
    ]
    assert calls(name, runs) == expected


@pytest.mark.parametrize("name", ["agent_lightning", "art"])
def test_calls_of_sub_agents_stand_where_they_were_made(name: str) -> None:
    runs = recorded.two_agents()
    in_order = sorted((step for run in runs for step in run.steps), key=lambda step: step.started_at)  # type: ignore[arg-type,return-value]
    assert [prompt for prompt, _, _ in calls(name, runs)] == [step.prompt_token_ids.tolist() for step in in_order]  # type: ignore[union-attr]
    assert len(export.agent_lightning(runs)) == 2


def test_rewards_of_triplets() -> None:
    run = trajectory_of(extras.TRACE, 0.75)
    run.steps[0].reward = 0.25
    (row,) = export.agent_lightning(run)
    assert [triplet["reward"] for triplet in row["triplets"]] == [0.25, 0.75]
    assert row["final_reward"] == 0.75
    assert export.agent_lightning(trajectory_of(extras.TRACE, None))[0]["final_reward"] is None


def test_a_run_without_a_call_is_counted() -> None:
    for name in ("agent_lightning", "art", "openenv", "rllm"):
        report = ExportReport()
        assert getattr(export, name)(recorded.without_ids(), report=report) == []
        assert report.dropped["steps left out: ids_missing"] == 18
        assert len(report.dropped) == 2


def test_groups_of_art() -> None:
    groups = export.art(recorded.tool_agent())
    assert [len(group["trajectories"]) for group in groups] == [3, 3]
    assert [group["metadata"]["group_id"] for group in groups] == list(recorded.GROUPS)
    assert [[run["reward"] for run in group["trajectories"]] for group in groups] == [
        list(rewards) for _, rewards in recorded.GROUPS.values()
    ]
    report = ExportReport()
    assert sum(len(group["trajectories"]) for group in export.art(recorded.unscored(), report=report)) == 4
    assert report.dropped == {"runs without a reward": 2}
    (group,) = export.art(extras.run(versions=("7",)), report=ExportReport())
    run = group["trajectories"][0]
    assert (run["initial_policy_version"], run["final_policy_version"]) == (7, 7)
    assert run["exchanges"]["chat_completions"][0]["start_time"] == "1970-01-01T00:00:00+00:00"


def inside(name: str, parent: str, reward: float | None = None) -> rt.Trajectory:
    return replace(trajectory_of(extras.TRACE, reward), id=name, episode_id="e", parent_id=parent)


def test_the_run_of_a_part_of_an_episode_is_its_outermost_agent() -> None:
    """Where the outermost trajectory is not among those given, and the lines of inner ones come first."""
    runs = [inside("inner", "middle"), inside("middle", "missing", 0.5)]
    runs[1].task = rt.Task(id="asked", data={"answer": 3})
    (rollout,) = export.agent_lightning(runs, report=ExportReport())
    assert rollout["final_reward"] == rollout["triplets"][-1]["reward"] == 0.5
    (group,) = export.art(runs, report=ExportReport())
    assert [run["reward"] for run in group["trajectories"]] == [0.5]
    (episode,) = export.rllm(runs, report=ExportReport())
    assert (episode["id"], episode["is_correct"]) == ("task/agent:0", True)
    (whole,) = export.verifiers(runs, report=ExportReport())
    assert "asked" in str(whole["task"])


def test_art_has_whole_runs_however_far_apart() -> None:
    others = [replace(trajectory_of(extras.TRACE), id=f"{at}", episode_id=f"{at}") for at in range(300)]
    run = replace(trajectory_of(extras.TRACE), id="e", episode_id="e")
    report = ExportReport()
    (group,) = export.art([inside("inner", "e"), *others, run], report=report)
    assert report.dropped == {}
    assert len(group["trajectories"]) == 301


def test_choices_are_exchanges_of_their_own_for_art() -> None:
    (group,) = export.art(recorded.several_choices())
    answers = [one["response"] for one in group["trajectories"][0]["exchanges"]["chat_completions"]]
    assert [[choice["index"] for choice in one["choices"]] for one in answers] == [[0], [0], [0]]
    assert all(one["usage"]["completion_tokens"] == len(one["choices"][0]["token_ids"]) for one in answers)


def test_episodes_of_rllm() -> None:
    runs = recorded.tool_agent()
    episodes = export.rllm(runs)
    assert [one["id"] for one in episodes] == [f"{run.group_id}:{run.rollout_index}" for run in runs]
    assert [one["is_correct"] for one in episodes] == [(run.reward or 0) > 0 for run in runs]
    assert {one["termination_reason"] for one in episodes} == {"env_done"}
    step = episodes[0]["trajectories"][0]["steps"][0]
    assert step["model_output"]["tool_calls"] == [{"name": "add", "arguments": {"a": 1, "b": 2}}]
    assert step["chat_completions"][-1]["role"] == "assistant"
    assert [step["done"] for step in episodes[0]["trajectories"][0]["steps"]] == [False, False, True]
    run = trajectory_of(extras.TRACE)
    run.group_id = "gsm8k:17"
    assert export.rllm(run, correct=lambda _: False)[0]["id"] == "gsm8k_17:0"
    assert export.rllm(run, correct=lambda _: False)[0]["is_correct"] is False


def test_rllm_gets_no_reward_that_was_not_given() -> None:
    run = trajectory_of(extras.TRACE, None)
    report = ExportReport()
    assert export.rllm(run, report=report) == []
    assert report.dropped == {"trajectories without a reward": 1}
    run.steps[-1].reward = 0.5
    (episode,) = export.rllm(run)
    # rLLM refuses a group in which some trajectories have a reward of their own and others have not.
    assert episode["trajectories"][0]["reward"] == 0.5
    assert [step["reward"] for step in episode["trajectories"][0]["steps"]] == [0.0, 0.5]
    (episode,) = export.rllm(recorded.bad_arguments(), report=(report := ExportReport()))
    assert report.dropped == {"tool arguments that are no JSON object, left as text": 2}


@pytest.mark.parametrize(
    ("finish", "status", "expected"),
    [("stop", "completed", "env_done"), ("length", "completed", "max_response_length_exceeded"),
     ("stop", "failed", "error"), ("stop", "aborted", "unknown"), ("stop", "odd", "unknown")],
)  # fmt: skip
def test_why_an_episode_of_rllm_ended(finish: str, status: Any, expected: str) -> None:
    run = trajectory_of(extras.TRACE)
    run.steps = [*run.steps[:-1], replace(run.steps[-1], finish_reason=finish)]
    run.status = status
    assert export.rllm(run)[0]["termination_reason"] == expected


def test_openenv_gets_no_call_that_it_refuses() -> None:
    report = ExportReport()
    assert export.openenv(trajectory_of([([], [3], [-0.5])]), report=report) == []
    assert report.dropped == {"sampled tokens with no token before them": 1, "scored trajectories without a row": 1}
    run = trajectory_of(extras.TRACE)
    run.steps = [replace(run.steps[0], logprobs=None), run.steps[1]]
    report = ExportReport()
    (row,) = export.openenv(run, report=report)
    assert [turn["node_id"] for turn in row["trace"]["turns"]] == ["step1"]
    assert report.dropped == {"steps left out: logprobs_missing": 1}
    with pytest.raises(rt.ExportError, match="logprobs_missing"):
        export.openenv(run, strict=True)


def test_rllm_gets_no_step_whose_logprobs_are_missing() -> None:
    """It would shift those of the steps that follow: tests/trainers/torch/test_checkouts.py."""
    run = trajectory_of(extras.TRACE)
    run.steps = [replace(run.steps[0], logprobs=None), run.steps[1]]
    report = ExportReport()
    (episode,) = export.rllm(run, report=report)
    assert [step["info"]["step_id"] for step in episode["trajectories"][0]["steps"]] == ["step1"]
    assert report.dropped == {"steps left out: logprobs_missing": 1}
