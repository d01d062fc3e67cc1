"""Agent-lightning's own adapter makes verl's batches of the rollouts: calls as they are, or merged to sequences."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.episodes import episodes
from rollout_trace.report import ExportReport
from tests.consumers import recorded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from agentlightning.verl.agl_rollout_manager import CompletedRollout
    from agentlightning.verl.rollout_adapter import RolloutAdapter

pytestmark = pytest.mark.filterwarnings("default")  # of verl itself


def rollouts_of(runs: list[rt.Trajectory]) -> list[CompletedRollout]:
    rows = export.agent_lightning(runs, report=ExportReport())
    return [CompletedRollout.model_validate_json(json.dumps(row)) for row in rows]


def batch_of(rollouts: list[CompletedRollout], level: str) -> Any:
    calls = [one for rollout in rollouts for one in rollout.triplets or ()]
    longest = max(len(one.prompt["token_ids"]) + len(one.response["token_ids"]) for one in calls)
    adapter = RolloutAdapter(
        max_prompt_length=longest,
        max_response_length=longest,
        device=torch.device("cpu"),
        pad_token_id=0,
        trace_aggregator_level=level,
    )
    batch, _ = adapter.get_train_data_batch(rollouts)
    return batch


def rows_of(batch: Any) -> list[tuple[list[int], list[int], list[bool], list[float] | None]]:
    """Prompt, response, which of it was sampled, and its logprobs, without what is padded."""
    names, found = set(batch.batch.keys()), []
    for one in batch.batch:
        width = one["prompts"].shape[0]
        read = one["attention_mask"].bool()
        answered = read[width:]
        sampled = one["response_mask"][answered].bool().tolist() if "response_mask" in names else []
        logprobs = one["rollout_log_probs"][answered].tolist() if "rollout_log_probs" in names else None
        found.append((one["prompts"][read[:width]].tolist(), one["responses"][answered].tolist(), sampled, logprobs))
    return found


@pytest.mark.parametrize("made", recorded.EVERY, ids=lambda made: made.__name__)
def test_its_rows_are_the_calls(made: Callable[[], list[rt.Trajectory]]) -> None:
    rollouts = sorted(rollouts_of(made()), key=lambda one: one.sample_idx_in_step)
    if not rollouts:
        return
    calls = [one for rollout in rollouts for one in rollout.triplets or ()]
    batch = batch_of(rollouts, "transition")
    known = all(one.response["log_probs"] is not None for one in calls)
    # Images are for a processor, which there is none of.
    assert batch.batch["is_drop_mask"].tolist() == [bool(call.image_urls) for call in calls]
    for (prompt, response, _, logprobs), call in zip(rows_of(batch), calls, strict=True):
        assert (prompt, response) == (call.prompt["token_ids"], call.response["token_ids"])
        assert logprobs == (pytest.approx(call.response["log_probs"]) if known else None)
    rewards = [rollout.final_reward or 0.0 for rollout in rollouts for _ in rollout.triplets or ()]
    assert batch.batch["token_level_scores"].sum(-1).tolist() == rewards


def test_its_merged_rows_are_the_sequences() -> None:
    runs = recorded.tool_agent()
    assert rows_of(batch_of(rollouts_of(runs), "trajectory")) == [
        (
            row.token_ids[: row.prompt_length].tolist(),
            row.token_ids[row.prompt_length :].tolist(),
            row.loss_mask[row.prompt_length :].astype(bool).tolist(),
            pytest.approx(np.nan_to_num(row.logprobs[row.prompt_length :]).tolist()),  # type: ignore[index]
        )
        for run in runs
        for row in run.sequences()
    ]


@pytest.mark.parametrize("made", [recorded.forked, recorded.two_agents, recorded.interleaved])
def test_no_sampled_token_is_lost_or_doubled_where_calls_are_merged(made: Callable[[], list[rt.Trajectory]]) -> None:
    rollouts = rollouts_of(made())
    rows = rows_of(batch_of(rollouts, "trajectory"))
    sampled = [id_ for _, response, mask, _ in rows for id_, is_own in zip(response, mask, strict=True) if is_own]
    calls = [one for rollout in rollouts for one in rollout.triplets or ()]
    assert sorted(sampled) == sorted(id_ for call in calls for id_ in call.response["token_ids"])


def test_groups_are_those_that_it_compares() -> None:
    runs = recorded.tool_agent()
    batch = batch_of(rollouts_of(runs[::2] + runs[1::2]), "trajectory")
    names = list(zip(batch.non_tensor_batch["data_id_list"], batch.non_tensor_batch["rollout_id_list"], strict=True))
    assert sorted(names) == sorted((run.group_id, run.id) for run in runs)
    assert [name for name, _ in names] == sorted(name for name, _ in names)


def test_a_rollout_has_all_agents_of_a_run() -> None:
    runs = recorded.two_agents()
    rollouts = rollouts_of(runs)
    assert [one.rollout_id for one in rollouts] == [episode[0].id for episode in episodes(runs)]


def test_the_block_of_the_page() -> None:
    names = {"export": export, "CompletedRollout": CompletedRollout, "trajectories": recorded.tool_agent()}
    found = run_blocks("docs/train-others.md", "Rows for Agent-lightning", **names)
    assert [len(rollout.triplets) for rollout in found["rollouts"]] == [3] * 6
