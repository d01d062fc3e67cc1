"""AReaL's own interactions give the tensors that the export has, and its own batching takes those."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace import export
from tests.consumers import recorded
from tests.consumers.traces import trajectory_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import areal  # noqa: F401 - before its modules, which import each other in a circle
    from areal.api import ModelResponse
    from areal.experimental.openai.types import InteractionWithTokenLogpReward
    from areal.utils.data import concat_padded_tensors

pytestmark = pytest.mark.filterwarnings("default")  # of AReaL itself
TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6, 7], [-1.0, -2.0])]


def tensors(row: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in row.items()}


def by_areal(run: rt.Trajectory) -> dict[str, Any]:
    """The calls of a run as AReaL records and joins them."""
    parent = None
    for step in run.steps:
        response = ModelResponse(
            input_tokens=step.prompt_token_ids.tolist(),  # type: ignore[union-attr]
            output_tokens=step.completion_token_ids.tolist(),  # type: ignore[union-attr]
            output_logprobs=step.logprobs.tolist(),  # type: ignore[union-attr]
            output_versions=[7] * len(step.completion_token_ids),  # type: ignore[arg-type]
        )
        parent = InteractionWithTokenLogpReward(
            model_response=response, reward=run.reward, parent=parent, chat_template_type="concat"
        )
    assert parent is not None
    found: dict[str, Any] = parent.to_tensor_dict()
    return found


@pytest.mark.parametrize("made", [lambda: [trajectory_of(TRACE, 0.5)], recorded.tool_agent])
def test_the_tensors_are_areals_own(made: Any) -> None:
    runs = made()
    for run in runs:
        for step in run.steps:
            step.policy_version = 7
    for row, run in zip(export.areal(runs), runs, strict=True):
        found, expected = tensors(row), by_areal(run)
        assert list(found) == ["input_ids", "loss_mask", "logprobs", "versions", "attention_mask", "rewards"]
        assert sorted(found) == sorted(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype, name
            assert torch.equal(found[name], tensor), name


def test_its_batching_takes_the_rows() -> None:
    rows = export.areal(recorded.tool_agent() + recorded.forked())
    batch = concat_padded_tensors([tensors(row) for row in rows])
    assert batch["input_ids"].shape[0] == len(rows) == 9
    for at, row in enumerate(rows):
        length = row["input_ids"].shape[1]
        assert torch.equal(batch["logprobs"][at, :length], torch.from_numpy(row["logprobs"][0]))
        assert not batch["attention_mask"][at, length:].any()


def test_the_block_of_the_page() -> None:
    names = {"torch": torch, "concat_padded_tensors": concat_padded_tensors, "trajectories": recorded.tool_agent()}
    found = run_blocks("docs/train-others.md", "Rows for AReaL", export=export, **names)
    assert found["batch"]["rewards"].shape == (6,)
