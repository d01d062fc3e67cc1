"""A GeneratorOutput for SkyRL, without SkyRL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.export import skyrl
from rollout_trace.report import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE

TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]


def test_a_row_is_a_sequence() -> None:
    assert skyrl(trajectory_of(TRACE)) == {
        "prompt_token_ids": [[1, 2]],
        "response_ids": [[3, 4, 5, 6]],
        "rewards": [1.0],
        "loss_masks": [[1, 1, 0, 1]],
        "stop_reasons": ["stop"],
        "rollout_metrics": None,
        "rollout_logprobs": [[-0.5, -0.25, 0.0, -1.0]],
        "trajectory_ids": [{"instance_id": "task", "repetition_id": 0}],
        "is_last_step": [True],
    }


def test_or_a_step() -> None:
    assert skyrl(trajectory_of(TRACE), stepwise=True) == {
        "prompt_token_ids": [[1, 2], [1, 2, 3, 4, 5]],
        "response_ids": [[3, 4], [6]],
        "rewards": [0.0, 1.0],
        "loss_masks": [[1, 1], [1]],
        "stop_reasons": ["stop", "stop"],
        "rollout_metrics": None,
        "rollout_logprobs": [[-0.5, -0.25], [-1.0]],
        "trajectory_ids": [{"instance_id": "task", "repetition_id": 0}] * 2,
        "is_last_step": [False, True],
    }


@PROFILE
@given(traces())
def test_rows_of_steps_are_the_steps_in_order(trace: Trace) -> None:
    """Also those of sequences that take turns."""
    found = skyrl(trajectory_of(trace), stepwise=True)
    columns = ("prompt_token_ids", "response_ids", "rollout_logprobs")
    assert list(zip(*(found[name] for name in columns), strict=True)) == trace
    assert found["rewards"] == [0.0] * (len(trace) - 1) + [1.0] * bool(trace)


def test_the_reward_is_on_the_last_row_alone() -> None:
    found = skyrl(recorded.forked() + recorded.interleaved())
    assert found["rewards"] == [0.0, 0.0, 0.25, 0.0, 0.75]
    assert found["is_last_step"] == [False, False, True, False, True]
    with pytest.raises(ValueError, match="reward='copy'"):
        skyrl(recorded.forked(), reward="copy")


def test_names_are_the_groups_and_no_two_are_one() -> None:
    runs = recorded.tool_agent()
    again = [replace(run, id=f"{run.id}-again") for run in runs]
    named = [(one["instance_id"], one["repetition_id"]) for one in skyrl(runs + again)["trajectory_ids"]]
    assert named == [(group, number) for group in ("add/1", "add/2") for number in range(6)]


@pytest.mark.parametrize("order", [(0, 3, 1, 4, 2, 5), (5, 4, 3, 2, 1, 0)])
def test_rows_of_a_group_stand_together(order: tuple[int, ...]) -> None:
    """SkyRL's trainer refuses any other order, and a collector's file is in the order in which runs ended."""
    runs = recorded.tool_agent()
    output = skyrl([runs[at] for at in order])
    names = [one["instance_id"] for one in output["trajectory_ids"]]
    first = runs[order[0]].group_id
    assert names == [first] * 3 + [name for name in ("add/1", "add/2") if name != first] * 3
    rows = {tuple(row.token_ids): run.reward for run in runs for row in run.sequences()}
    pairs = zip(output["prompt_token_ids"], output["response_ids"], output["rewards"], strict=True)
    assert all(rows[tuple(prompt + response)] == reward for prompt, response, reward in pairs)


@pytest.mark.parametrize("backwards", [False, True])
def test_sub_agents_are_parts_of_their_run(backwards: bool) -> None:
    """The trainer takes as many instances as it asked for: a sub-agent can have none."""
    made = recorded.two_agents()
    outer = [run for run in made if run.parent_id is None]
    for at, run in enumerate(outer):
        run.reward = 1.0 + at
    made[1].reward = 0.5
    report = ExportReport()
    output = skyrl(made[::-1] if backwards else made, report=report)
    assert {one["instance_id"] for one in output["trajectory_ids"]} == {"pair/1"}
    for number, run in enumerate(outer):
        inside = [one for one in made if one.parent_id == run.id]
        rows = [at for at, one in enumerate(output["trajectory_ids"]) if one["repetition_id"] == number]
        assert len(rows) == sum(len(one.sequences()) for one in (run, *inside))
        assert [output["is_last_step"][at] for at in rows] == [at == rows[-1] for at in rows]
        assert [output["rewards"][at] for at in rows] == [0.0] * (len(rows) - 1) + [run.reward]
    assert report.dropped == {"rewards of sub-agents": 1}


def test_sub_agents_alone_are_runs() -> None:
    workers = [run for run in recorded.two_agents() if run.parent_id is not None]
    for worker in workers:
        worker.reward = 0.5
    names = [one["instance_id"] for one in skyrl(workers)["trajectory_ids"]]
    assert names == ["pair/1/worker"] * len(workers)


def test_runs_without_an_index_get_the_next_free_number() -> None:
    runs = [trajectory_of(TRACE) for _ in range(5)]
    for run, index in zip(runs, (None, 1, None, 3, None), strict=True):
        run.rollout_index = index
    assert [one["repetition_id"] for one in skyrl(runs)["trajectory_ids"]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("tool_calls", "stop"), ("length", "length"), ("content_filter", "content_filter"), (None, None)],
)
def test_stop_reasons_are_skyrls(reason: str | None, expected: str | None) -> None:
    trajectory = trajectory_of(TRACE)
    trajectory.steps[1] = replace(trajectory.steps[1], finish_reason=reason)
    assert skyrl(trajectory)["stop_reasons"] == [expected]
    assert skyrl(trajectory, stepwise=True)["stop_reasons"] == ["stop", expected]


def test_a_row_that_was_cut_says_length() -> None:
    cut: Any = {"max_length": 3, "report": ExportReport()}
    assert skyrl(trajectory_of(TRACE), **cut)["stop_reasons"] == ["length"]
    found = skyrl(trajectory_of(TRACE), stepwise=True, **cut)
    assert (found["response_ids"], found["stop_reasons"]) == ([[3]], ["length"])


def test_logprobs_are_for_all_rows_or_none() -> None:
    first, second = trajectory_of(TRACE), trajectory_of(TRACE)
    second.steps = [replace(step, logprobs=None) for step in second.steps]
    report = ExportReport()
    assert skyrl([first, second], report=report)["rollout_logprobs"] is None
    others = "rows whose logprobs are left out because other rows have none"
    assert report.dropped == {"rows without logprobs": 1, others: 1}
    report = ExportReport()
    assert skyrl(second, report=report)["rollout_logprobs"] is None
    assert report.dropped == {"rows without logprobs": 1}


def test_runs_that_were_not_scored_are_counted() -> None:
    report = ExportReport()
    found = skyrl(recorded.unscored(), report=report)
    assert found["rewards"] == [1.0, 0.5, 0.25, 1.0]
    assert report.dropped == {"trajectories without a reward": 2}
    with pytest.raises(rt.ExportError, match="without a reward"):
        skyrl(recorded.unscored(), strict=True)


def test_a_failed_run_is_a_masked_row() -> None:
    good, failed, empty = trajectory_of(extras.TRACE), trajectory_of(extras.TRACE, None), rt.Trajectory(group_id="task")
    good.id, failed.id, failed.status, failed.rollout_index = "good", "failed", "failed", 1
    other = trajectory_of(extras.TRACE, 0.5)
    other.group_id = "other"
    report = ExportReport()
    output = skyrl([good, failed, empty, other], failed="mask", report=report)
    assert output["prompt_token_ids"] == [[1, 2], [1, 2], [0], [1, 2]]
    assert [sum(mask) for mask in output["loss_masks"]] == [4, 0, 0, 4]
    assert output["response_ids"][1:3] == [[0], [0]]
    assert output["stop_reasons"] == ["stop", "error", "error", "stop"]
    assert output["rewards"] == [1.0, 0.0, 0.0, 0.5]
    assert output["is_last_step"] == [True] * 4
    assert [one["repetition_id"] for one in output["trajectory_ids"]] == [0, 1, 2, 0]
    assert report.noted == {"runs that are masked": 2}
    output = skyrl([good, failed, empty, other], failed="mask_group", report=ExportReport())
    assert [sum(mask) for mask in output["loss_masks"]] == [0, 0, 0, 4]
    assert output["rewards"] == [1.0, 0.0, 0.0, 0.5]
    assert skyrl([good, other], failed="mask") == skyrl([good, other])
    with pytest.raises(ValueError, match="failed='drop': expected 'keep'"):
        skyrl(good, failed="drop")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["max_prompt_length", "max_length"])
def test_a_masked_row_keeps_within_the_limits(limit: str) -> None:
    long = trajectory_of([(list(range(1, 50)), [3], [-1.0])])
    within: Any = {limit: 8, "report": ExportReport()}
    output = skyrl([long, trajectory_of(extras.TRACE)], failed="mask", **within)
    assert output["prompt_token_ids"] == [[0], [1, 2]]
    assert output["stop_reasons"] == ["error", "stop"]


@pytest.mark.parametrize("failed", ["mask", "mask_group"])
def test_sub_agents_that_failed_are_left_out(failed: Any) -> None:
    """And those of a run that is masked."""
    made = recorded.two_agents()
    outer = [run for run in made if run.parent_id is None]
    workers = [run for run in made if run.parent_id is not None]
    kept = skyrl(made)
    assert skyrl(made, failed=failed) == kept
    workers[0].status = "failed"
    report = ExportReport()
    output = skyrl(made, failed=failed, report=report)
    assert len(output["rewards"]) == len(kept["rewards"]) - 1
    assert report.dropped == {"rows of sub-agents that failed": 1}
    outer[1].status = "failed"
    report = ExportReport()
    output = skyrl(made, failed=failed, report=report)
    masked = [
        one["repetition_id"]
        for one, mask in zip(output["trajectory_ids"], output["loss_masks"], strict=True)
        if not any(mask)
    ]
    assert masked == ([0, 1] if failed == "mask_group" else [1])
    assert report.dropped["rows of sub-agents of runs that are masked"] == (3 if failed == "mask_group" else 2)


def test_masked_rows_keep_the_experts_of_the_others() -> None:
    failed = trajectory_of(extras.TRACE)
    failed.status = "failed"
    output = skyrl([extras.run(), failed], failed="mask", report=ExportReport())
    whole, zeros = output["rollout_expert_indices"]
    assert whole.shape == (6, extras.LAYERS, extras.K)
    # Of prompt and response but the last token, as in the other rows.
    assert zeros.shape == (2, extras.LAYERS, extras.K)
    assert not zeros.any()
