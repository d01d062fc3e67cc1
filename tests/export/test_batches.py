"""Batches as arrays: every token of every row is in exactly one place, with its mask, logprob and position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE

INTS = ("input_ids", "labels", "attention_mask", "position_ids", "sequence_ids")
LONG = [([1, 2], [3, 4, 5], [-1.0, -2.0, -3.0])]
SHORT = [([7], [8], [-0.5])]


def rows_of(batch: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each sequence, and its part of each array."""
    for number in range(len(batch["trajectory_id"])):
        (at,), begin = (
            np.unique(np.nonzero(batch["sequence_ids"] == number)[0]),
            np.nonzero(batch["sequence_ids"] == number)[1],
        )
        assert begin.tolist() == list(range(begin[0], begin[0] + len(begin)))
        yield number, {name: batch[name][at, begin] for name in (*INTS, "loss_mask", "logprobs")}


@pytest.mark.parametrize("layout", ["padded", "packed"])
@PROFILE
@given(made=st.lists(traces(), max_size=4), size=st.integers(1, 3), left=st.booleans())
def test_every_token_is_in_one_place(layout: Any, made: list[Trace], size: int, left: bool) -> None:
    runs = [replace(trajectory_of(trace), id=str(at)) for at, trace in enumerate(made)]
    expected = [(run.id, row) for run in runs for row in run.sequences()]
    longest = max((len(row.token_ids) for _, row in expected), default=1)
    options: Any = {"length": longest + 3} if layout == "packed" else {"side": "left" if left else "right"}
    found = []
    for batch in export.batches(runs, batch_size=size, layout=layout, pad_id=9, report=ExportReport(), **options):
        shape = batch["input_ids"].shape
        assert shape[0] <= size
        padding = batch["attention_mask"] == 0
        assert np.array_equal(padding, batch["sequence_ids"] == -1)
        assert (batch["input_ids"][padding] == 9).all()
        assert (batch["labels"][padding] == -100).all()
        assert not batch["loss_mask"][padding].any()
        assert {batch[name].dtype.name for name in INTS} == {"int64"}
        assert {batch[name].dtype.name for name in ("loss_mask", "logprobs", "rewards")} == {"float32"}
        assert {batch[name].shape for name in (*INTS, "loss_mask", "logprobs")} == {shape}
        if layout == "packed":
            for at, edges in enumerate(batch["cu_seqlens"]):
                assert edges[-1] == (batch["sequence_ids"][at] >= 0).sum()
                assert np.array_equal(np.nonzero(batch["position_ids"][at][: edges[-1]] == 0)[0], edges[:-1])
        found += [(batch["trajectory_id"][number], part) for number, part in rows_of(batch)]
    if layout == "packed":
        # First fit may put a short row before a longer one that came earlier.
        order = {id(row): at for at, (_, row) in enumerate(expected)}
        assert len(order) == len(found)
        left_over = list(expected)
        for name, part in found:
            ids, mask = part["input_ids"].tolist(), part["loss_mask"].tolist()
            match = next(
                one
                for one in left_over
                if (one[0], one[1].token_ids.tolist(), one[1].loss_mask.tolist()) == (name, ids, mask)
            )
            left_over.remove(match)
            same(part, match[1])
        return
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, part), (_, row) in zip(found, expected, strict=True):
        same(part, row)


def same(part: dict[str, Any], row: rt.Sequence) -> None:
    assert np.array_equal(part["input_ids"], row.token_ids)
    assert np.array_equal(part["loss_mask"], row.loss_mask)
    assert np.array_equal(part["labels"], np.where(row.loss_mask, row.token_ids, -100))
    assert row.logprobs is not None
    assert np.array_equal(part["logprobs"], row.logprobs)
    assert np.array_equal(part["position_ids"], np.arange(len(row.token_ids)))


def test_a_batch_of_two_rows() -> None:
    runs = [trajectory_of(LONG, 0.5), replace(trajectory_of(SHORT, None), id="short")]
    (batch,) = export.batches(runs, batch_size=4, side="left", multiple_of=4)
    assert batch["input_ids"].tolist() == [[0, 0, 0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0, 7, 8]]
    assert batch["labels"].tolist() == [[-100] * 5 + [3, 4, 5], [-100] * 7 + [8]]
    assert batch["position_ids"].tolist() == [[0, 0, 0, 0, 1, 2, 3, 4], [0] * 7 + [1]]
    assert batch["sequence_ids"].tolist() == [[-1] * 3 + [0] * 5, [-1] * 6 + [1, 1]]
    assert np.array_equal(batch["rewards"], np.array([0.5, np.nan], np.float32), equal_nan=True)
    assert batch["trajectory_id"] == ["trace", "short"]


def test_rows_are_packed_by_first_fit() -> None:
    runs = [replace(trajectory_of(trace), id=name) for name, trace in (("a", LONG), ("b", LONG), ("c", SHORT))]
    (batch,) = export.batches(runs, batch_size=2, layout="packed", length=8)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 7, 8, 0], [1, 2, 3, 4, 5, 0, 0, 0]]
    assert batch["trajectory_id"] == ["a", "c", "b"]
    assert [one.tolist() for one in batch["cu_seqlens"]] == [[0, 5, 7], [0, 5]]
    assert len(list(export.batches(runs, batch_size=1, layout="packed", length=5))) == 3


def test_a_long_sequence_is_cut_and_counted_or_refused() -> None:
    with pytest.raises(ValueError, match=r"'trace' has a sequence of 5 tokens, more than length=4\. Give max_length=4"):
        list(export.batches(trajectory_of(LONG), batch_size=1, length=4))
    report = ExportReport()
    (batch,) = export.batches(trajectory_of(LONG), batch_size=1, length=4, max_length=4, report=report)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4]]
    assert batch["truncated"] == [True]
    assert report.dropped == {"tokens cut: max_length": 1}


def test_logprobs_that_are_not_known_are_nan() -> None:
    run = trajectory_of(SHORT)
    run.steps = [replace(step, logprobs=None) for step in run.steps]
    report = ExportReport()
    (batch,) = export.batches(run, batch_size=1, length=3, report=report)
    assert np.array_equal(batch["logprobs"], np.array([[0.0, np.nan, 0.0]], np.float32), equal_nan=True)
    assert report.dropped == {"rows without logprobs": 1}


def test_advantages_of_groups() -> None:
    runs = recorded.tool_agent()
    (batch,) = export.batches(runs, batch_size=6, advantages="grpo")
    for number, run in enumerate(runs):
        (value,) = set(batch["advantages"][number][batch["loss_mask"][number] == 1].tolist())
        assert value == np.float32(rt.run_advantages(runs, "grpo")[run.id])
    report = ExportReport()
    alone = trajectory_of(LONG)
    alone.group_id = None
    assert list(export.batches(alone, batch_size=1, advantages="grpo", report=report)) == []
    assert report.dropped == {"rows without an advantage": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected a whole number of at least 1"),
        ({"batch_size": 1.5}, "batch_size=1.5: expected a whole number of at least 1"),
        ({"batch_size": 1, "length": 8.0}, "length=8.0: expected a whole number of at least 1"),
        ({"batch_size": 1, "layout": "flat"}, "layout='flat': expected 'padded' or 'packed'"),
        ({"batch_size": 1, "layout": "packed"}, "layout='packed' needs length="),
        ({"batch_size": 1, "layout": "packed", "length": 4, "side": "left"}, "packed rows are padded on the right"),
        ({"batch_size": 1, "side": "both"}, "side='both'"),
        ({"batch_size": 1, "advantages": "ppo"}, "advantages='ppo'"),
        ({"batch_size": 1, "on_drift": "x"}, "on_drift='x'"),
    ],
)
def test_options_are_checked_at_once(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export.batches([], **options)


def test_a_missing_pad_id_raises_at_once() -> None:
    with pytest.raises(TypeError, match="pad_id=None: expected a token id"):
        export.batches([], batch_size=1, pad_id=None)  # type: ignore[arg-type]


def test_rewards_beyond_float32_are_not_infinite() -> None:
    report = ExportReport()
    (batch,) = export.batches(trajectory_of(SHORT, 1e300), batch_size=1, report=report)
    assert np.isnan(batch["rewards"]).all()
    assert report.dropped == {"rewards beyond the range of float32": 1}
    report = ExportReport()
    assert export.areal([trajectory_of(SHORT, -1e39), trajectory_of(SHORT, -3e38)], report=report)[0]["rewards"] == [
        np.float32(-3e38)
    ]
    assert report.dropped == {"rewards beyond the range of float32": 1}
