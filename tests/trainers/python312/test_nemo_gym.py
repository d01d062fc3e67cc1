"""NeMo-Gym's own models, which its servers check rollouts with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from nemo_gym.base_resources_server import BaseVerifyResponse

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.report import ExportReport
from rollout_trace.testing import trajectories
from tests.consumers import recorded
from tests.strategies import PROFILE

pytestmark = pytest.mark.filterwarnings("default")  # of NeMo-Gym itself


@pytest.mark.parametrize("made", recorded.EVERY, ids=lambda made: made.__name__)
def test_it_takes_every_rollout(made: Callable[[], Any]) -> None:
    is_read_as_it_is(made())


@PROFILE
@given(trajectories(min_steps=1))
def test_it_takes_rollouts_of_every_kind_of_agent(run: rt.Trajectory) -> None:
    run.reward = 0.5
    is_read_as_it_is(run)


def is_read_as_it_is(runs: Any) -> None:
    for row in export.nemo_gym(runs, report=ExportReport()):
        read = BaseVerifyResponse.model_validate_json(json.dumps(row))
        assert read.reward == row["reward"]
        trained = [item for item in read.response.output if hasattr(item, "generation_token_ids")]
        own = [item for item in row["response"]["output"] if "generation_token_ids" in item]
        assert len(trained) == len(own) > 0
        for item, expected in zip(trained, own, strict=True):
            assert item.prompt_token_ids == expected["prompt_token_ids"]
            assert item.generation_token_ids == expected["generation_token_ids"]
            assert item.generation_log_probs == expected["generation_log_probs"]
