"""Message logs for NeMo-RL, without NeMo-RL: it needs Python 3.13 and is on no index. The shapes are its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE


def flat(log: list[dict[str, Any]], name: str, filler: Any) -> Any:
    """Messages joined as NeMo-RL joins them, after it filled in what some lack: arrays of one type, one row a token."""
    parts = [
        message[name]
        if name in message
        else np.full((len(message["token_ids"]), *filler.shape[1:]), filler, filler.dtype)
        for message in log
    ]
    assert len({(part.dtype, part.shape[1:]) for part in parts}) == 1
    assert all(len(part) == len(message["token_ids"]) for part, message in zip(parts, log, strict=True))
    return np.concatenate(parts)


def sampled(log: list[dict[str, Any]]) -> list[int]:
    """NeMo-RL's mask: it trains on the messages of an assistant that have logprobs."""
    return [
        int(message["role"] == "assistant" and "generation_logprobs" in message)
        for message in log
        for _ in message["token_ids"]
    ]


def test_a_log_is_a_sequence() -> None:
    (row,) = export.nemo_rl(trajectory_of(extras.TRACE))
    log = row.pop("message_log")
    assert [(message["role"], message["content"]) for message in log] == [("user", ""), ("assistant", "")] * 2
    assert flat(log, "token_ids", np.zeros(1)).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert log[0]["token_ids"].dtype == np.int64
    assert sampled(log) == [0, 0, 1, 1, 0, 1, 1]
    assert flat(log, "generation_logprobs", np.zeros(1, np.float32)).tolist() == [0, 0, -0.5, -0.25, 0, -1.0, -2.0]
    assert row == {
        "length": 7,
        "loss_multiplier": 1.0,
        "idx": 0,
        "extra_env_info": None,
        "total_reward": 1.0,
        "weight_version": None,
        "trajectory_id": "trace",
        "group_id": "task",
        "rollout_index": 0,
        "rewards": None,
        "temperature": None,
        "logprobs_mode": None,
    }


@PROFILE
@given(traces())
def test_logs_of_any_trace(trace: Trace) -> None:
    made = trajectory_of(trace)
    for data, row in zip(export.nemo_rl(made), made.sequences(), strict=True):
        log = data["message_log"]
        assert flat(log, "token_ids", np.zeros(1, np.int64)).tolist() == row.token_ids.tolist()
        assert sampled(log) == row.loss_mask.tolist()
        assert row.logprobs is not None
        assert np.array_equal(flat(log, "generation_logprobs", np.zeros(1, np.float32)), row.logprobs)
        assert data["length"] == len(row.token_ids)
        assert all(len(message["token_ids"]) for message in log)


@pytest.mark.parametrize(("dtype", "expected"), [(np.uint8, np.int16), (np.uint16, np.int32), (np.int32, np.int32)])
def test_experts_that_are_missing_are_minus_one(dtype: Any, expected: Any) -> None:
    whole, gap = export.nemo_rl([extras.run(dtype=dtype), extras.gap()], report=ExportReport())
    for data, missing in ((whole, [6]), (gap, [3, 4, 6])):
        found = flat(data["message_log"], "routed_experts", np.zeros(1))
        wanted = extras.experts(0, 7, expected)
        wanted[missing] = -1
        assert found.dtype == expected
        assert np.array_equal(found, wanted)


def test_masks_are_as_wide_as_the_widest() -> None:
    (data,) = export.nemo_rl(extras.run(), report=ExportReport())
    log = data["message_log"]
    assert [name in message for message in log for name in ("sampling_mask_token_ids", "sampling_mask_sizes")] == [
        False, False, True, True, False, False, True, True,
    ]  # fmt: skip
    ids = flat(log, "sampling_mask_token_ids", np.zeros((1, 2), np.int32))
    sizes = flat(log, "sampling_mask_sizes", np.zeros(1, np.int32))
    assert sizes.tolist() == [0, 0, 1, 2, 0, 1, 2]
    assert ids.tolist() == [[0, 0], [0, 0], [3, 0], [4, 14], [0, 0], [6, 0], [7, 17]]
    (data,) = export.nemo_rl(extras.run(), mask_width=5, report=ExportReport())
    assert flat(data["message_log"], "sampling_mask_token_ids", np.zeros((1, 5), np.int32)).shape == (7, 5)
    with pytest.raises(ValueError, match=r"mask_width=1: a sampling mask has 2 ids at one token; give at least"):
        export.nemo_rl(extras.run(), mask_width=1)


@pytest.mark.parametrize(("versions", "expected"), [((7,), 7), (("7",), 7), ((7, "7"), 7), ((7, 8), None)])
def test_the_version_is_one_number(versions: Any, expected: int | None) -> None:
    report = ExportReport()
    (data,) = export.nemo_rl(extras.run(versions=versions), report=report)
    assert data["weight_version"] == expected
    assert report.dropped.get("policy versions of rows with several", 0) == (0 if expected else 2)


def test_a_cut_row_ends_with_what_was_read() -> None:
    (data,) = export.nemo_rl(extras.run(), max_length=5, report=ExportReport())
    log = data["message_log"]
    assert [(message["role"], message["token_ids"].tolist()) for message in log] == [
        ("user", [1, 2]),
        ("assistant", [3, 4]),
        ("user", [5]),
    ]
    assert (flat(log, "routed_experts", np.zeros(1)) >= 0).all(axis=(1, 2)).tolist() == [True] * 3 + [False] * 2


def test_an_answer_that_is_gone_on_with_is_two_messages() -> None:
    """A partial rollout: nothing is read between them."""
    made = trajectory_of([([1, 2], [3], [-0.5]), ([1, 2, 3], [4], [-1.0])])
    (data,) = export.nemo_rl(made)
    assert [message["role"] for message in data["message_log"]] == ["user", "assistant", "assistant"]


def test_rows_without_logprobs_are_left_out() -> None:
    first, second = trajectory_of(extras.TRACE), trajectory_of(extras.TRACE)
    second.steps = [replace(step, logprobs=None) for step in second.steps]
    report = ExportReport()
    assert [row["idx"] for row in export.nemo_rl([second, first], report=report)] == [0]
    assert report.dropped == {"rows without logprobs": 1}


def test_what_the_user_set_is_beside_the_log() -> None:
    for row in export.nemo_rl(recorded.annotated(), report=ExportReport()):
        assert (row["weight_version"], row["rewards"]) == (7, {"correct": 1.0, "short": 0.125})
