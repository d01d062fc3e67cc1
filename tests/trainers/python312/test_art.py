"""OpenPipe ART's own models and tokenisation of histories: ids, logprobs and rewards come out as they went in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from page_blocks import run_blocks

from rollout_trace import export
from rollout_trace.report import ExportReport
from tests.consumers import recorded
from tests.consumers.modules import skip_init

skip_init("art")
import art.trajectories  # noqa: E402 - after its package is in place
from art.trajectories import TokenFlag, TrajectoryGroup  # noqa: E402 - after its package is in place

pytestmark = pytest.mark.filterwarnings("default")  # of ART itself


@pytest.mark.parametrize("made", [recorded.tool_agent, recorded.annotated, recorded.forked, recorded.two_agents,
                                  recorded.thinking, recorded.several_choices, recorded.responses_agent])  # fmt: skip
def test_its_models_take_every_group(made: Callable[[], Any]) -> None:
    groups = export.art(made(), report=ExportReport())
    read = [TrajectoryGroup.model_validate_json(json.dumps(group)) for group in groups]
    assert [[run.reward for run in group.trajectories] for group in read] == [
        [run["reward"] for run in group["trajectories"]] for group in groups
    ]


def test_its_tokens_are_the_sequences() -> None:
    """Without a tokenizer: no id is made anew."""
    runs = recorded.tool_agent()
    groups = [TrajectoryGroup.model_validate(group) for group in export.art(runs)]
    found = [run.tokenize(model="m", tokenizer=None) for group in groups for run in group.trajectories]
    for tokenized, run in zip(found, runs, strict=True):
        (row,) = run.sequences()
        assert row.logprobs is not None
        assert tokenized.tokens == row.token_ids.tolist()
        sampled = [bool(flag & TokenFlag.SAMPLED) for flag in tokenized.flags]
        assert sampled == [bool(one) for one in row.loss_mask]
        for logprob, own, is_sampled in zip(tokenized.logprobs, row.logprobs.tolist(), sampled, strict=True):
            assert logprob == own if is_sampled else math.isnan(logprob)


def test_the_block_of_the_page() -> None:
    found = run_blocks(
        "docs/export.md", "OpenPipe ART", art=art.trajectories, export=export, trajectories=recorded.tool_agent()
    )
    assert [len(group.trajectories) for group in found["groups"]] == [3, 3]
