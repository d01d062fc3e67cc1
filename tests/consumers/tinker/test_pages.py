"""docs/train-tinker.md, run as pasted on what the page Start records, with Tinker's SDK and a loopback service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from page_blocks import Block

import rollout_trace as rt
from tests.consumers.tinker.training import TrainingService
from tests.documentation.reader import read_page, record_start
from tests.documentation.stage import programs
from tests.documentation.table import place


def is_run_here(block: Block) -> bool:
    """Whether the tables name this file for a block."""
    return place(block) == "tests/consumers/tinker/test_pages.py"


def test_the_service_gets_what_start_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_start(tmp_path)
    service = TrainingService()
    service.start()
    try:
        monkeypatch.setenv("TINKER_BASE_URL", service.url)
        monkeypatch.setenv("TINKER_API_KEY", "tml-0")
        read_page("docs/train-tinker.md", tmp_path, programs, wanted=is_run_here)
    finally:
        service.stop()
    ((loss, sent),) = service.batches
    assert (loss, len(service.updates)) == ("importance_sampling", 1)
    runs = list(rt.read(tmp_path / "rollouts.jsonl"))
    for row, run in zip(sent, runs, strict=True):
        (sequence,) = run.sequences()
        assert sequence.logprobs is not None
        assert row["model_input"] == sequence.token_ids[:-1].tolist()
        assert row["target_tokens"] == sequence.token_ids[1:].tolist()
        assert row["logprobs"] == sequence.logprobs[1:].tolist()
        assert (
            np.sign(row["advantages"]).tolist() == (sequence.loss_mask[1:] * np.sign((run.reward or 0) - 0.5)).tolist()
        )
