"""NeMo-Gym's own models, which its servers check rollouts with, and its checks of a file of rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.failure_kinds import validate_failure_kind
from nemo_gym.rollout_health import run_health_checks

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


def test_runs_that_failed_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    runs = recorded.tool_agent()
    runs[0].status, runs[0].error = "failed", rt.ErrorInfo(type="ValueError", message="no such tool")
    runs[1].status = "aborted"
    read = [BaseVerifyResponse.model_validate(row) for row in export.nemo_gym(runs)]
    assert [one.mask_sample for one in read] == [True, True, False, False, False, False]
    assert [one.failure_reason for one in read[:3]] == ["ValueError: no such tool", "aborted", None]
    assert [validate_failure_kind(one.failure_kind) for one in read] == [one.failure_kind for one in read]
    assert not caplog.records  # It warns of names that it does not know.


def test_its_checks_read_the_file(tmp_path: Path) -> None:
    runs = recorded.tool_agent()
    path = tmp_path / "rollouts.jsonl"
    export.write_jsonl(path, export.iter_nemo_gym(runs))
    found = run_health_checks(path, workers=1)
    read = [(one.task_index, one.rollout_index) for one in found.rollouts]
    assert read == [(task, index) for task in range(2) for index in range(3)]
    # Calls of its own gateway are what it checks: there are none, and nothing is wrong with what there is.
    assert [(one.verdict, one.findings) for one in found.rollouts] == [("unobserved", [])] * len(runs)
