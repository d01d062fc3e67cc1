"""Harbor's own validator on our documents; where Harbor cannot be installed (Python 3.11), a port of its models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.export import atif, write_atif
from rollout_trace.report import ExportReport
from rollout_trace.train.selection import reason_left_out
from rollout_trace.wire import PROTOCOLS
from tests.consumers import recorded
from tests.strategies import PROFILE, trajectories

try:
    from harbor.models.trajectories import Trajectory as Document
    from harbor.utils.trajectory_validator import TrajectoryValidator
except ModuleNotFoundError:
    from atif import Trajectory as Document

    TrajectoryValidator = None

EVERY = (*recorded.EVERY, recorded.anthropic_agent)


def read_back(document: Any) -> Any:
    """What the validator reads from a document, or from a file of one."""
    if TrajectoryValidator is not None:
        validator = TrajectoryValidator()
        assert validator.validate(document), validator.errors
    return Document.model_validate(json.loads(document.read_bytes()) if isinstance(document, Path) else document)


def sampled(steps: list[Any]) -> list[Any]:
    """The ATIF steps that are answers of this trajectory's own calls."""
    return [step for step in steps if step.llm_call_count == 1 or (step.extra or {}).get("status") == "cached"]


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_documents_hold_what_was_recorded(make: Callable[[], list[rt.Trajectory]]) -> None:
    """Every kind of recording: each answer is a step; one to train on with the whole prompt's ids, its own ids and its
    logprobs."""
    made = make()
    by_id = {trajectory.id: trajectory for trajectory in made}
    documents = [read_back(document) for document in atif(made, report=ExportReport())]
    documents += [inner for document in documents for inner in document.subagent_trajectories or ()]
    assert sorted(document.trajectory_id for document in documents) == sorted(by_id)
    for document in documents:
        trajectory = by_id[document.trajectory_id]
        answered = [step for step in trajectory.steps if step.completion is not None]
        assert len(sampled(document.steps)) == len(answered)
        for found, step in zip(sampled(document.steps), answered, strict=True):
            names = ("prompt_token_ids", "completion_token_ids", "logprobs")
            arrays = [getattr(step, name) for name in names]
            if reason_left_out(step) is not None and not (arrays[0] is None and arrays[1] is None):
                arrays = [None, None, None]
            recorded_ones = [None if array is None else array.tolist() for array in arrays]
            assert [getattr(found.metrics, name, None) for name in names] == recorded_ones
            assert found.extra["step_id"] == step.id
            calls = () if step.completion is None else step.completion.tool_calls
            assert [call.function_name for call in found.tool_calls or ()] == [call.name for call in calls]
        assert document.final_metrics.total_prompt_tokens == trajectory.n_input_tokens
        assert document.final_metrics.total_completion_tokens == trajectory.n_output_tokens
        assert (document.final_metrics.extra or {}).get("reward") == trajectory.reward


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_files_are_valid(make: Callable[[], list[rt.Trajectory]], tmp_path: Path) -> None:
    """One file for each outermost trajectory; the validator finds the images that it names."""
    made = make()
    count = write_atif(tmp_path, made, report=ExportReport())
    files = sorted(tmp_path.glob("*.json"))
    outermost = sorted(trajectory.id for trajectory in made if trajectory.parent_id is None)
    assert [file.stem for file in files] == outermost
    assert len(files) == count
    for file in files:
        read_back(file)


@given(st.booleans().flatmap(lambda live: trajectories(live=live)), st.lists(st.sampled_from(PROTOCOLS), min_size=4))
@PROFILE
def test_anything_is_valid(trajectory: rt.Trajectory, protocols: list[str]) -> None:
    """Whatever a trajectory holds (requests of no known shape, half characters, calls of tools that nobody knows)."""
    steps = zip(trajectory.steps, protocols, strict=False)
    trajectory.steps = [replace(step, protocol=protocol) for step, protocol in steps]
    for document in atif(trajectory, report=ExportReport()):
        read_back(document)


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_what_its_models_write_is_imported(make: Callable[[], list[rt.Trajectory]], tmp_path: Path) -> None:
    """Through the models of Harbor, or of the port, and back: ids, logprobs, masks and rewards are the same."""
    made = make()
    for number, document in enumerate(atif(made, report=ExportReport())):
        text = read_back(document).model_dump_json(exclude_none=True)
        (tmp_path / f"{number}.json").write_text(text)
    found = {one.id: one for one in importing.atif(tmp_path)}
    assert sorted(found) == sorted(one.id for one in made)
    for one in made:
        rows, same = one.sequences(), found[one.id].sequences()
        names = ("token_ids", "loss_mask", "logprobs", "reward")
        # A step without logprobs is of no row that ATIF holds.
        assert [[str(getattr(row, name)) for name in names] for row in rows if row.logprobs is not None] == [
            [str(getattr(row, name)) for name in names] for row in same if row.logprobs is not None
        ]
        assert (found[one.id].reward, found[one.id].parent_id) == (one.reward, one.parent_id)


def test_our_fixture_is_valid() -> None:
    path = Path(__file__).parents[2] / "data" / "imports" / "atif" / "run.json"
    document = read_back(json.loads(path.read_text()))
    main, sub = importing.atif(path)
    assert document.trajectory_id == main.id
    assert [inner.trajectory_id for inner in document.subagent_trajectories] == [sub.id]
