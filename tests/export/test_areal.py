"""AReaL's trajectories, without AReaL; with it: tests/trainers/torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given

from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE


def test_a_row_is_a_sequence() -> None:
    (row,) = export.areal(extras.run(versions=(7, "8")), report=ExportReport())
    assert {name: (array.dtype.name, array.tolist()) for name, array in row.items()} == {
        "input_ids": ("int64", [[1, 2, 3, 4, 5, 6, 7]]),
        "loss_mask": ("int64", [[0, 0, 1, 1, 0, 1, 1]]),
        "logprobs": ("float32", [[0.0, 0.0, -0.5, -0.25, 0.0, -1.0, -2.0]]),
        "versions": ("int64", [[-1, -1, 7, 8, -1, 7, 8]]),
        "attention_mask": ("bool", [[True] * 7]),
        "rewards": ("float32", [1.0]),
    }


@PROFILE
@given(traces())
def test_rows_of_any_trace(trace: Trace) -> None:
    run = trajectory_of(trace, 0.5)
    for row, sequence in zip(export.areal(run), run.sequences(), strict=True):
        assert np.array_equal(row["input_ids"][0], sequence.token_ids)
        assert np.array_equal(row["loss_mask"][0], sequence.loss_mask)
        assert np.array_equal(row["logprobs"][0], sequence.logprobs)  # type: ignore[arg-type]


def test_what_areal_would_take_for_zero_is_left_out() -> None:
    unscored, blind = trajectory_of(extras.TRACE, None), trajectory_of(extras.TRACE)
    blind.steps = [replace(step, logprobs=None) for step in blind.steps]
    report = ExportReport()
    assert export.areal([unscored, blind], report=report) == []
    assert report.dropped == {"trajectories without a reward": 1, "rows without logprobs": 1}
    report = ExportReport()
    (row,) = export.areal(extras.run(versions=("step-7",)), report=report)
    assert set(row["versions"][0].tolist()) == {-1}
    assert report.dropped["policy versions that are no whole numbers"] == 2
    assert "policy versions that are no whole numbers" in report.metadata
