"""What we record passes OpenEnv's own checks of token capture, and its graph finds the same sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from openenv.core.harness.capture.graph import RolloutGraph, TrainingSequence, TurnNode
from openenv.core.harness.capture.validate import check_rollout, check_sequence, check_turn
from openenv.core.harness.training import TrainingTrace
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.report import ExportReport
from rollout_trace.train.selection import reason_left_out
from tests.consumers import recorded
from tests.consumers.traces import Trace, Turn, traces, trajectory_of
from tests.strategies import PROFILE


def turns_of(trajectory: rt.Trajectory) -> list[dict[str, Any]]:
    """The usable steps, as ``TrainingTurn`` takes them."""
    found = []
    for step in trajectory.steps:
        if reason_left_out(step) is None and step.logprobs is not None:
            prompt, completion, logprobs = step.prompt_token_ids, step.completion_token_ids, step.logprobs
            assert prompt is not None
            assert completion is not None
            found.append(
                {
                    "node_id": step.id,
                    "prompt_token_ids": prompt.tolist(),
                    "completion_token_ids": completion.tolist(),
                    "per_token_logps": logprobs.tolist(),
                    "loss_mask": [0] * len(prompt) + [1] * len(completion),
                }
            )
    return found


def graph_of(turns: list[dict[str, Any]]) -> RolloutGraph:
    graph = RolloutGraph()
    for turn in turns:
        ids = turn["prompt_token_ids"], turn["completion_token_ids"], turn["per_token_logps"]
        graph.add_turn(TurnNode(turn["node_id"], *ids))
    return graph


@pytest.mark.parametrize("make", recorded.EVERY, ids=lambda make: make.__name__)
def test_steps_pass_the_checks_of_capture(make: Callable[[], list[rt.Trajectory]]) -> None:
    """Every usable step is a valid training turn, and no check of a turn, a sequence or a rollout is fatal."""
    captured = 0
    for trajectory in make():
        turns = turns_of(trajectory)
        if not turns:
            continue
        captured += len(TrainingTrace.model_validate({"turns": turns}).turns)
        for turn in turns:
            ids = turn["prompt_token_ids"], turn["completion_token_ids"], turn["per_token_logps"]
            assert check_turn(*ids).ok
        assert check_rollout(graph_of(turns)).ok
        for row in trajectory.sequences(include=lambda step: step.logprobs is not None):
            assert row.logprobs is not None
            made = TrainingSequence(
                input_ids=row.token_ids.tolist(),
                loss_mask=row.loss_mask.tolist(),
                logprobs=row.logprobs.tolist(),
                node_ids=list(row.step_ids),
                prompt_len=row.prompt_length,
                root_id=row.step_ids[0],
                n_turns=len(row.step_ids),
            )
            assert check_sequence(made).ok, check_sequence(made).text()
    assert (captured == 0) == (make is recorded.without_ids)


def is_continued(turn: Turn, other: Turn) -> bool:
    """Whether the prompt of another turn begins with all ids of a turn."""
    whole = [*turn[0], *turn[1]]
    return list(other[0][: len(whole)]) == whole


@given(traces())
@PROFILE
def test_the_graph_has_the_same_sequences(trace: Trace) -> None:
    """OpenEnv's path to each leaf has the ids of one of our sequences; where paths share an answer, it is in each of
    theirs and trained on once in ours."""
    # OpenEnv's graph also has a turn continue one that was sampled after it.
    assume(not any(is_continued(later, earlier) for at, earlier in enumerate(trace) for later in trace[at + 1 :]))
    trajectory = trajectory_of(trace)
    rows = trajectory.sequences()
    found = graph_of(turns_of(trajectory)).sequences()
    assert sorted(path.input_ids for path in found) == sorted(row.token_ids.tolist() for row in rows)
    by_last = {path.node_ids[-1]: path for path in found}
    for row in rows:
        path = by_last[row.step_ids[-1]]
        begin = row.prompt_length
        assert row.logprobs is not None
        assert path.loss_mask[begin:] == row.loss_mask[begin:].tolist()
        assert path.logprobs[begin:] == row.logprobs[begin:].tolist()
    sampled = sum(len(completion) for _, completion, _ in trace)
    assert sum(int(row.loss_mask.sum()) for row in rows) == sampled


@pytest.mark.parametrize("make", recorded.EVERY, ids=lambda make: make.__name__)
def test_the_export_is_a_training_trace(make: Callable[[], list[rt.Trajectory]]) -> None:
    runs = make()
    by_id = {step.id: step for run in runs for step in run.steps}
    for row in export.openenv(runs, report=ExportReport()):
        trace = TrainingTrace.model_validate(row["trace"])
        assert trace.turns
        for turn in trace.turns:
            step = by_id[turn.node_id]
            assert turn.prompt_token_ids == step.prompt_token_ids.tolist()  # type: ignore[union-attr]
            assert turn.completion_token_ids == step.completion_token_ids.tolist()  # type: ignore[union-attr]
            assert turn.per_token_logps == step.logprobs.tolist()  # type: ignore[union-attr]
        again = TrainingTrace.from_entries(trace.to_trace_entries())
        assert [turn.per_token_logps for turn in again.turns] == [turn.per_token_logps for turn in trace.turns]


def test_the_block_of_the_page() -> None:
    names = {"export": export, "TrainingTrace": TrainingTrace, "trajectories": recorded.tool_agent()}
    found = run_blocks("docs/train-others.md", "Rows for OpenEnv", **names)
    assert (len(found["trace"].turns), found["reward"]) == (3, 1.0)
