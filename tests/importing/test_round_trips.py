"""What our own exports hold comes back: ids, logprobs, masks, rewards, sub-agents, groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace import export, importing
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from tests.consumers import exact_runs, recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE, trajectories

from .files import ids

EVERY = (*recorded.EVERY, recorded.anthropic_agent)
FACTS = ("name", "reward", "rewards", "metrics", "group_id", "rollout_index", "parent_id", "status", "started_at")


def write(kind: str, folder: Path, made: Any) -> Path:
    """Writes an export; what it leaves out is not the point here."""
    if kind == "atif":
        export.write_atif(folder, made, report=ExportReport())
    else:
        export.write_verifiers(folder / "traces.jsonl", made, report=ExportReport())
    return folder


def rows_of(trajectory: rt.Trajectory) -> list[Any]:
    """The rows that can be trained on, with every digit."""
    rows = [row for row in trajectory.sequences() if row.logprobs is not None]
    return sorted((ids(row.token_ids), ids(row.loss_mask), ids(row.logprobs), row.reward) for row in rows)


def facts_of(trajectory: rt.Trajectory) -> dict[str, Any]:
    return {name: getattr(trajectory, name) for name in FACTS}


@pytest.mark.parametrize("kind", ["atif", "verifiers"])
@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_what_was_exported_comes_back(kind: str, make: Callable[[], list[rt.Trajectory]], tmp_path: Path) -> None:
    made = make()
    found = {one.id: one for one in importing.SOURCES[kind].importer(write(kind, tmp_path, made))}
    assert sorted(found) == sorted(one.id for one in made)
    for one in made:
        back = found[one.id]
        assert rows_of(back) == rows_of(one)
        assert {step.id for step in back.steps} >= {step.id for step in one.steps}
        assert len(back.steps) == len(one.steps)
        assert facts_of(back) == {**facts_of(one), "started_at": back.started_at}
        by_id = {step.id: step for step in back.steps}
        for step in one.steps:
            same = by_id[step.id]
            names = ("status", "finish_reason", "trainable", "reward", "policy_version", "call_id")
            assert [getattr(same, name) for name in names] == [getattr(step, name) for name in names]
            # verifiers' graph has the answers of the rows alone, where there are any.
            is_there = kind == "atif" or same.completion_token_ids is not None
            is_text = step.completion is not None and isinstance(step.completion.content, str)
            if is_there and step.status == "ok" and is_text and step.completion is not None:
                assert same.completion is not None
                assert (same.completion.content or "") == step.completion.content


@pytest.mark.parametrize("kind", ["atif", "verifiers"])
def test_what_became_of_exact_turns_comes_back(kind: str, tmp_path: Path) -> None:
    made, _ = exact_runs.record()
    found = {one.id: one for one in importing.SOURCES[kind].importer(write(kind, tmp_path, made))}
    for one in made:
        turns = {step.id: step.exact_turn for step in found[one.id].steps}
        assert turns == {step.id: step.exact_turn for step in one.steps}
        assert rows_of(found[one.id]) == rows_of(one)


@given(traces())
@PROFILE
def test_any_tokens_come_back(trace: Trace) -> None:
    """Prompts that go on, fork, drift and repeat."""
    trajectory = trajectory_of(trace)
    # A step of an ATIF document is its text.
    trajectory.steps = [replace(step, completion=rt.Completion(content="x")) for step in trajectory.steps]
    for kind, made in (("atif", export.atif), ("verifiers", export.verifiers)):
        documents: Any = made(trajectory, report=ExportReport())
        (back,) = importing.SOURCES[kind].importer(BytesIO(dumps(documents)))
        assert rows_of(back) == rows_of(trajectory)


@given(trajectories())
@PROFILE
def test_every_export_is_read(trajectory: rt.Trajectory) -> None:
    """Whatever a trajectory holds, its export is read, if not all of it: nothing is refused."""
    for step in trajectory.steps:
        step.advantage = None  # One that float32 does not hold is refused where rows are made.
    exports = {"atif": export.atif(trajectory, report=ExportReport())}
    exports["verifiers"] = export.verifiers(trajectory, advantages=None, report=ExportReport())
    for kind, documents in exports.items():
        list(importing.SOURCES[kind].importer(BytesIO(dumps(documents)), on_error="skip"))


ROLLOUTS = (recorded.tool_agent, recorded.annotated, recorded.forked, recorded.several_choices)


@pytest.mark.parametrize("kind", ["agent_lightning", "art"])
@pytest.mark.parametrize("make", ROLLOUTS, ids=lambda make: make.__name__)
def test_rollouts_of_one_agent_come_back(kind: str, make: Callable[[], list[rt.Trajectory]]) -> None:
    """Formats that hold the calls of a run in one list."""
    pytest.importorskip(f"rollout_trace.export._{kind}")
    made = {one.id: one for one in make()}
    rows = getattr(export, kind)(made.values(), report=ExportReport())
    found = list(importing.SOURCES[kind].importer(BytesIO(dumps(rows))))
    assert found
    for back in found:
        one = made[back.id]
        assert rows_of(back) == rows_of(one)
        names = ("reward", "group_id", "rollout_index")
        assert [getattr(back, name) for name in names] == [getattr(one, name) for name in names]
        assert back.task is None or (one.task is not None and back.task.id == one.task.id)


def test_a_rollout_of_agent_lightning_that_failed_is_failed() -> None:
    made = recorded.tool_agent()
    made[1].status, made[1].error = "failed", rt.ErrorInfo(type="ValueError", message="no such tool")
    rows = export.agent_lightning(made, report=ExportReport())
    assert [row["error_message"] for row in rows[:2]] == [None, "ValueError: no such tool"]
    found = importing.agent_lightning(BytesIO(dumps(rows)))
    assert [one.status for one in found] == [one.status for one in made]
