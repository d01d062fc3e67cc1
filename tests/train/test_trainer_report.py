"""A trainer's numbers of rows come back to the steps, bit for bit; what does not fit is refused, and nothing noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import Step
from rollout_trace.data.trainer_tokens import TRAINER_VALUES
from rollout_trace.file.notes import notes_path
from rollout_trace.testing.strategies import trajectories
from tests.amount import examples


def step(at: int, prompt: list[int], completion: list[int]) -> Step:
    tokens: dict[str, Any] = {"prompt_token_ids": prompt, "completion_token_ids": completion}
    tokens["logprobs"] = [-1.0] * len(completion)
    return Step(id=f"s{at}", call_id=f"s{at}", index=at, token_source="engine", **tokens)


def run(name: str = "run") -> rt.Trajectory:
    """Two turns in a row, and a third that begins another."""
    steps = [step(0, [1, 2], [3, 4, 5]), step(1, [1, 2, 3, 4, 5, 6], [7, 8]), step(2, [9], [10, 11])]
    return rt.Trajectory(id=name, steps=steps)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "rollouts.jsonl"
    with rt.JSONLWriter(file) as writer:
        writer.write(run())
        writer.write(run("other"))
    return file


def numbers(row: rt.Sequence, seed: int) -> Any:
    return -np.random.default_rng(seed).random(len(row.token_ids)).astype(np.float32)


WAYS = {
    "each token": lambda row, values: values,
    "from the first sampled one on": lambda row, values: values[row.prompt_length :],
    "sampled ones": lambda row, values: values[row.loss_mask.astype(bool)],
    "a list": lambda row, values: values.tolist(),
}


@pytest.mark.parametrize("way", WAYS)
def test_numbers_of_rows_are_those_of_the_steps(path: Path, way: str) -> None:
    rows = [row for one in rt.read(path) for row in one.sequences()]
    given = {name: [numbers(row, seed + at) for at, row in enumerate(rows)] for seed, name in enumerate(TRAINER_VALUES)}
    sent = {
        name: [WAYS[way](row, one) for row, one in zip(rows, values, strict=True)] for name, values in given.items()
    }
    rt.trainer_report(path, rows, sent.pop("trainer_logprobs"), **sent)
    steps = {(one.id, step.id): step for one in rt.read(path) for step in one.steps}
    for at, row in enumerate(rows):
        for name, (begin, end) in zip(row.step_ids, row.spans, strict=True):
            for field, values in given.items():
                found = getattr(steps[row.trajectory_id or "", name], field)
                assert found.dtype == np.float32
                assert found.tobytes() == values[at][begin:end].tobytes()


@settings(max_examples=examples(15))
@given(trajectories(max_steps=5), st.integers(2, 60))
def test_rows_that_were_cut_leave_the_rest_unknown(
    tmp_path_factory: pytest.TempPathFactory, made: rt.Trajectory, length: int
) -> None:
    file = tmp_path_factory.mktemp("cut") / "rollouts.jsonl"
    with rt.JSONLWriter(file) as writer:
        writer.write(made)
    rows = made.sequences(max_length=length)
    if not rows:
        return
    rt.trainer_report(file, rows, [numbers(row, 0) for row in rows])
    (read,) = rt.read(file)
    expected = {}
    for row in rows:
        for name, (begin, end) in zip(row.step_ids, row.spans, strict=True):
            expected[name] = numbers(row, 0)[begin:end]
    for one in read.steps:
        found = one.trainer_logprobs
        if one.id not in expected:
            assert found is None
        else:
            assert found is not None
            assert one.completion_token_ids is not None
            assert len(found) == len(one.completion_token_ids)
            known = expected[one.id]
            assert np.array_equal(found[: len(known)], known)
            assert np.isnan(found[len(known) :]).all()


def test_a_merge_writes_them_into_the_line(path: Path, tmp_path: Path) -> None:
    rt.annotate(path, "run", steps={1: {"trainer_logprobs": [-0.5, -0.25], "reward": 1.0}})
    rt.annotate(path, "run", steps={"s1": {"entropy": np.array([1, 2])}})
    rt.merge([path], tmp_path / "whole.jsonl")
    merged, noted = [next(iter(rt.read(file))) for file in (tmp_path / "whole.jsonl", path)]
    assert merged.steps == noted.steps
    assert merged.steps[1].trainer_logprobs is not None
    assert merged.steps[1].trainer_logprobs.tolist() == [-0.5, -0.25]
    assert merged.steps[1].entropy is not None
    assert merged.steps[1].entropy.tolist() == [1, 2]


REFUSED = [
    (
        {1: {"trainer_logprobs": [-1.0]}},
        ValueError,
        r"\['trainer_logprobs'\] has 1 numbers, and the step has 2",
    ),
    ({1: {"entropy": [1.0, float("nan")]}}, ValueError, r"\['entropy'\]\[1\] is nan; give a finite number"),
    ({1: {"loss_weights": [1.0, 1e39]}}, ValueError, r"\[1\] is 1e\+39; give a finite number that float32 holds"),
    ({1: {"trainer_logprobs": [0.4, 0.6]}}, ValueError, "0.6; give natural logarithms"),
    ({1: {"entropy": [[1.0, 2.0]]}}, ValueError, r"the shape \[1, 2\]"),
    ({1: {"entropy": "ab"}}, TypeError, "give a list or an array"),
    ({1: {"entropy": ["a", "b"]}}, TypeError, "give one number for each token"),
    ({7: {"entropy": [1.0]}}, ValueError, r"steps\[7\]\['entropy'\]: trajectory 'run' has no such step"),
]


@pytest.mark.parametrize(("steps", "kind", "message"), REFUSED)
def test_what_does_not_fit_is_refused(path: Path, steps: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        rt.annotate(path, "run", steps=steps)
    assert not Path(notes_path(path)).exists()


def test_rows_and_numbers_that_do_not_belong_together(path: Path) -> None:
    rows = next(iter(rt.read(path))).sequences()
    for values, kind, message in (
        ([[-1.0] * 8], ValueError, "2 rows and trainer_logprobs of 1"),
        ([[-1.0] * 9, [-1.0] * 3], ValueError, r"rows\[0\] has 8 tokens, 6 from the first sampled one on, 5 sampled"),
        ([[[-1.0] * 8], [-1.0] * 3], ValueError, r"the shape \[1, 8\]"),
    ):
        with pytest.raises(kind, match=message):
            rt.trainer_report(path, rows, values)
    with pytest.raises(ValueError, match="no numbers"):
        rt.trainer_report(path, rows)
    with pytest.raises(TypeError, match=r"rows\[0\] \(dict\) has no trajectory_id"):
        rt.trainer_report(path, [{"input_ids": [1]}], [[-1.0]])
    assert not Path(notes_path(path)).exists()


def test_rows_of_another_file_are_refused(path: Path, tmp_path: Path) -> None:
    rows = [row for one in rt.read(path) for row in one.sequences()]
    given = [numbers(row, 0) for row in rows]
    short = run("other")
    short.steps[2] = step(2, [9], [10])
    for runs, message in (
        ([run()], "has no trajectory 'other': no note was written"),
        ([run(), rt.Trajectory(id="other", steps=run().steps[:2])], "trajectory 'other' has no such step"),
        ([run(), short], r"\['s2'\]\['trainer_logprobs'\] has 2 numbers, and the step has 1 completion tokens"),
    ):
        another = tmp_path / "another.jsonl"
        with rt.JSONLWriter(another) as writer:
            for one in runs:
                writer.write(one)
        with pytest.raises(ValueError, match=message):
            rt.trainer_report(another, rows, given)
        assert not Path(notes_path(another)).exists()
        another.unlink()
    with pytest.raises(FileNotFoundError, match="there is no file"):
        rt.trainer_report(tmp_path / "none.jsonl", rows, given)


def test_a_note_of_more_tokens_than_a_step_has_is_said_and_not_read(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rt.annotate(path, "run", steps={0: {"trainer_logprobs": [-1.0, -2.0, -3.0]}})
    notes = Path(notes_path(path))
    note = json.loads(notes.read_text())
    note["steps"][0]["index"] = 1
    notes.write_text(json.dumps(note) + "\n")
    (first, _) = rt.read(path)
    assert first.steps[1].trainer_logprobs is None
    assert "trainer_logprobs of step 1 (3 numbers, 2 tokens)" in caplog.text


def test_a_step_checks_what_is_set() -> None:
    one = step(0, [1], [2, 3])
    one.entropy = [0.5, 1.5]
    assert one.trainer is not None
    assert one.entropy is one.trainer.entropy
    with pytest.raises(ValueError, match=r"Step\.entropy has 1 numbers, and step s0 has 2 completion ids"):
        one.entropy = [0.5]
    with pytest.raises(ValueError, match="0 or less"):
        one.reference_logprobs = [0.5, 0.5]
