"""OpenPipe ART's own models and tokenisation of histories: ids, logprobs and rewards come out as they went in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.report import ExportReport
from rollout_trace.testing import trajectories
from tests.consumers import recorded
from tests.consumers.modules import skip_init
from tests.strategies import PROFILE

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


@PROFILE
@given(trajectories(min_steps=1, with_ids=True, with_errors=False))
def test_what_it_trains_on_was_sampled_once(run: rt.Trajectory) -> None:
    """With drift, forks and several choices: whatever histories it finds, each sampled token is in one of them."""
    run.reward = 0.5
    for group in export.art(run, report=ExportReport()):
        (read,) = TrajectoryGroup.model_validate_json(json.dumps(group)).trajectories
        found = read.tokenize(multi_history=True, tokenizer=None)
        sampled = [
            (token, logprob)
            for history in found.histories
            for token, logprob, flag in zip(history.tokens, history.logprobs, history.flags, strict=True)
            if flag & TokenFlag.SAMPLED
        ]
        expected = [
            (token, logprob)
            for step in run.steps
            for token, logprob in zip(step.completion_token_ids.tolist(), step.logprobs.tolist(), strict=True)  # type: ignore[union-attr]
        ]
        assert sorted(sampled) == sorted(expected)


def test_the_block_of_the_page() -> None:
    names = {"art": art.trajectories, "export": export, "trajectories": recorded.tool_agent()}
    found = run_blocks("docs/train-others.md", "Rows for OpenPipe ART", **names)
    assert [len(group.trajectories) for group in found["groups"]] == [3, 3]
