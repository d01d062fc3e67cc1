"""The dataset of turns: Agent-lightning's columns, and which reward a turn has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import TURN_COLUMNS, ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import trajectory_of

COLUMNS = (
    "repo",
    "instance_id",
    "turn",
    "prompt_ids",
    "gold_completion_ids",
    "logprobs",
    "reward",
    "prompt",
    "messages",
)


def test_rows_are_the_calls() -> None:
    runs = recorded.tool_agent()
    report = ExportReport()
    rows = export.turns(runs, report=report, decode=lambda ids: bytes(one % 128 for one in ids).decode())
    pairs = [(run, step) for run in runs for step in run.steps]
    assert report.dropped == {}
    assert tuple(TURN_COLUMNS) == COLUMNS
    for row, (run, step) in zip(rows, pairs, strict=True):
        assert tuple(row) == COLUMNS
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert row["prompt_ids"] == step.prompt_token_ids.tolist()
        assert row["gold_completion_ids"] == step.completion_token_ids.tolist()
        assert row["logprobs"] == step.logprobs.tolist()
        assert (row["repo"], row["instance_id"], row["turn"], row["reward"]) == (
            "",
            run.group_id,
            step.index,
            run.reward,
        )
        assert row["prompt"] == bytes(one % 128 for one in row["prompt_ids"]).decode()
        assert all(isinstance(value, str) for message in row["messages"] for value in message.values())
    calls = rows[1]["messages"][2]
    assert json.loads(calls["tool_calls"])[0]["function"]["name"] == "add"


def test_the_repository_and_the_instance_are_the_tasks() -> None:
    run = trajectory_of(extras.TRACE)
    run.task = rt.Task(id="a", data={"repo": "django/django", "instance_id": "django__django-1"})
    assert {(row["repo"], row["instance_id"]) for row in export.turns(run)} == {("django/django", "django__django-1")}
    run.task = rt.Task(id="a", data={"repo": 3})
    assert {(row["repo"], row["instance_id"]) for row in export.turns(run)} == {("", "a")}
    run.task = None
    assert {row["instance_id"] for row in export.turns(run)} == {"trace"}


@pytest.mark.parametrize(
    ("own", "whole", "expected"),
    [
        ([None, None, None], 1.0, [1.0, 1.0, 1.0]),
        ([0.5, None, None], 1.0, [0.5, 1.0, 1.0]),
        ([None, 0.25, None], None, [0.25, 0.25, None]),
        ([None, None, 0.75], 0.0, [0.0, 0.0, 0.0]),
        ([None, None, None], None, [None, None, None]),
    ],
)
def test_a_turn_has_its_reward_or_the_next_one(own: list[Any], whole: Any, expected: list[Any]) -> None:
    run = trajectory_of([([1], [2], [-1.0]), ([1, 2, 3], [4], [-1.0]), ([1, 2, 3, 4, 5], [6], [-1.0])], whole)
    for step, reward in zip(run.steps, own, strict=True):
        step.reward = reward
    assert [row["reward"] for row in export.turns(run, report=ExportReport())] == expected


def test_images_are_json_and_parts_of_text_one_text() -> None:
    (row,) = export.turns(recorded.images())
    (part, image) = json.loads(row["messages"][0]["content"])
    assert (part["text"], image["image_url"]["url"]) == ("What is it?", recorded.IMAGE)


def test_a_file_has_the_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    runs = recorded.tool_agent()
    assert export.write_turns(tmp_path / "turns.parquet", runs) == 18
    table = parquet.read_table(tmp_path / "turns.parquet")
    rows = export.turns(runs)
    assert [str(kind) for kind in table.schema.types][3:6] == [
        "list<element: int32>",
        "list<element: int32>",
        "list<element: float>",
    ]
    assert table.column("prompt_ids").to_pylist() == [row["prompt_ids"] for row in rows]
    assert [np.float32(one).tolist() for one in table.column("logprobs").to_pylist()] == [
        row["logprobs"] for row in rows
    ]
    assert export.write_turns(tmp_path / "turns.jsonl.gz", runs) == 18


def test_what_cannot_be_trained_on_is_counted() -> None:
    report = ExportReport()
    rows = export.turns(recorded.failed_steps(), report=report)
    assert [row["turn"] for row in rows] == [0, 3, 7]
    assert report.dropped == {
        f"steps left out: {why}": 1 for why in ("error", "abandoned", "not_trainable", "superseded", "cached")
    }
    report = ExportReport()
    run = extras.run(versions=(7,))
    assert export.turns(run, policy_versions={8}, report=report) == []
    assert report.dropped == {"steps left out: policy_version": 2, "scored trajectories without a row": 1}
    with pytest.raises(TypeError, match=r"have no option linear; they have include, allow"):
        export.turns(run, linear=True)  # type: ignore[call-arg]


def test_a_step_without_logprobs_has_none() -> None:
    run = trajectory_of(extras.TRACE)
    run.steps = [replace(step, logprobs=None) for step in run.steps]
    assert [row["logprobs"] for row in export.turns(run)] == [None, None]
