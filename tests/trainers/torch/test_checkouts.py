"""slime, rLLM and NeMo-RL, which are on no index: against their own modules, where ``ROLLOUT_TRACE_CHECKOUTS`` names a
folder with checkouts ``slime``, ``rllm`` and ``nemo-rl``; the others are skipped."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.modules import skip_init
from tests.consumers.traces import trajectory_of
from tests.trainers.torch.checkouts import checkout, sample_of, stub

pytestmark = pytest.mark.filterwarnings("default")  # of the trainers themselves


@pytest.mark.parametrize("made", [recorded.tool_agent, recorded.annotated, recorded.forked, lambda: extras.run()])
def test_slime_takes_the_samples(made: Callable[[], Any]) -> None:
    Sample = sample_of("slime")
    rows = export.slime(made(), report=ExportReport())
    for row in rows:
        sample = Sample.from_dict(dict(row))
        sample.validate() if hasattr(sample, "validate") else sample._validate_response_metadata_lengths()
        back = sample.to_dict()
        for name in ("tokens", "loss_mask", "rollout_log_probs", "reward", "response_length", "status", "metadata"):
            assert back[name] == row[name], name
        assert back["weight_versions"] == row["weight_versions"]
        if "rollout_routed_experts" in row:
            assert np.array_equal(sample.rollout_routed_experts, row["rollout_routed_experts"])


def stub_rllm() -> None:
    """rLLM's types, without what runs agents and trains."""
    packages = ("engine", "engine.rollout", "tools", "workflows", "trainer", "trainer.verl")
    skip_init("rllm", *(f"rllm.{one}" for one in packages), root=checkout("rllm"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from rllm.engine.rollout.rollout_engine import ModelOutput
    sys.modules["rllm.engine.rollout"].ModelOutput = ModelOutput  # type: ignore[attr-defined]
    sys.modules["rllm.engine.rollout"].VerlEngine = None  # type: ignore[attr-defined]
    from enum import Enum

    reasons = ("env_done", "max_response_length_exceeded", "unknown", "error")
    # The module that has it imports environments and their engines.
    stub("rllm.workflows.workflow", TerminationReason=Enum("TerminationReason", {one.upper(): one for one in reasons}))
    stub("verl")
    stub("verl.protocol", DataProto=None)
    stub("verl.utils")
    stub("verl.utils.torch_functional", pad_sequence_to_length=None)


def without_logprobs(*missing: int) -> list[rt.Trajectory]:
    """Three calls, some of them without logprobs."""
    run = trajectory_of([([1], [2, 3], [-1.0, -2.0]), ([1, 2, 3, 4], [5], [-3.0]), ([1, 2, 3, 4, 5, 6], [7], [-4.0])])
    run.steps = [replace(step, logprobs=None) if at in missing else step for at, step in enumerate(run.steps)]
    return [run]


@pytest.mark.parametrize("made", [recorded.tool_agent, recorded.forked, recorded.drifting,
                                  lambda: without_logprobs(0), lambda: without_logprobs(1)])  # fmt: skip
def test_rllm_makes_the_sequences_of_its_episodes(made: Callable[[], Any]) -> None:
    """The rows that its verl backend trains on: it has no value for a logprob that is missing."""
    stub_rllm()
    from rllm.trainer.verl.dataclass import AccumulatedData
    from rllm.trainer.verl.transform import _process_trajectory
    from rllm.types import Episode

    runs = {run.id: run for run in made()}
    for row in export.rllm(list(runs.values()), report=ExportReport()):
        for trajectory in Episode.from_dict(row).trajectories:
            found = AccumulatedData()
            _process_trajectory(trajectory, "task", found)
            expected = runs[trajectory.uid].sequences(linear=True, include=lambda step: step.logprobs is not None)
            assert len(found.prompts) == len(found.rollout_logprobs) == len(expected)
            columns = zip(found.prompts, found.responses, found.traj_mask, found.rollout_logprobs, strict=True)
            for (prompt, response, mask, logprobs), own in zip(columns, expected, strict=True):
                at = own.prompt_length
                assert own.logprobs is not None
                assert [*prompt.tolist(), *response.tolist()] == own.token_ids.tolist()
                assert mask.tolist() == own.loss_mask[at:].tolist()
                assert logprobs.tolist() == own.logprobs[at:].tolist()


@pytest.mark.parametrize("made", [recorded.tool_agent, recorded.annotated, recorded.two_agents, recorded.failed_steps])
def test_rllm_takes_the_episodes(made: Callable[[], Any]) -> None:
    stub_rllm()
    from rllm.types import Episode

    for row in export.rllm(made(), report=ExportReport()):
        episode = Episode.from_dict(row)
        assert (episode.task_id, episode.rollout_idx) == tuple(row["id"].split(":"))
        for trajectory, run in zip(episode.trajectories, row["trajectories"], strict=True):
            assert trajectory.reward == run["reward"]
            for step, own in zip(trajectory.steps, run["steps"], strict=True):
                assert (step.prompt_ids, step.response_ids, step.logprobs) == (
                    own["prompt_ids"], own["response_ids"], own["logprobs"],
                )  # fmt: skip
                assert (step.reward, step.advantage) == (own["reward"], own["advantage"])
                assert step.model_output.completion_ids == own["response_ids"]
        back = episode.to_dict()
        assert [one["steps"] for one in back["trajectories"]] != []


def test_nemo_rl_flattens_the_logs() -> None:
    skip_init("nemo_rl", "nemo_rl.data", "nemo_rl.distributed", root=checkout("nemo-rl"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message

    runs = recorded.tool_agent()
    logs = [
        [{name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in one.items()}
         for one in row["message_log"]]
        for row in export.nemo_rl(runs)
    ]  # fmt: skip
    for log in logs:
        for message in log:
            mask = torch.full_like(message["token_ids"], message["role"] == "assistant")
            message["token_loss_mask"] = mask
            message.setdefault("generation_logprobs", torch.zeros(len(mask)))
    flat, lengths = batched_message_log_to_flat_message(logs, pad_value_dict={"token_ids": 0})
    for at, run in enumerate(runs):
        (row,) = run.sequences()
        length = len(row.token_ids)
        assert lengths[at] == length
        assert flat["token_ids"][at, :length].tolist() == row.token_ids.tolist()
        assert flat["token_loss_mask"][at, :length].tolist() == row.loss_mask.tolist()
        assert row.logprobs is not None
        assert torch.equal(flat["generation_logprobs"][at, :length], torch.from_numpy(row.logprobs.copy()))
