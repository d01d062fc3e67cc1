"""NeMo-Gym's own models, which its servers check rollouts with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from nemo_gym.base_resources_server import BaseVerifyResponse

from rollout_trace import export
from rollout_trace.report import ExportReport
from tests.consumers import recorded

pytestmark = pytest.mark.filterwarnings("default")  # of NeMo-Gym itself


@pytest.mark.parametrize("made", recorded.EVERY, ids=lambda made: made.__name__)
def test_it_takes_every_rollout(made: Callable[[], Any]) -> None:
    for row in export.nemo_gym(made(), report=ExportReport()):
        read = BaseVerifyResponse.model_validate_json(json.dumps(row))
        assert read.reward == row["reward"]
        trained = [item for item in read.response.output if hasattr(item, "generation_token_ids")]
        own = [item for item in row["response"]["output"] if "generation_token_ids" in item]
        assert len(trained) == len(own) > 0
        for item, expected in zip(trained, own, strict=True):
            assert item.prompt_token_ids == expected["prompt_token_ids"]
            assert item.generation_token_ids == expected["generation_token_ids"]
            assert item.generation_log_probs == expected["generation_log_probs"]
