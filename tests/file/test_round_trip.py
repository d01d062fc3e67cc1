"""What is written is what is read: every field, every value, missing told from empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.data.model import STEP_FIELDS, Attempt, Completion, Step, ToolCall, ToolRun, Usage, amend
from rollout_trace.data.tokens import TokenStore
from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, Trajectory
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.file.records import schema
from tests.strategies import PROFILE, trajectories

validator = jsonschema.Draft202012Validator(schema())


def there_and_back(trajectory: Trajectory) -> Trajectory:
    line = encode(trajectory)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    validator.validate(json.loads(line))
    return decode(line)


def assert_same(one: Trajectory, other: Trajectory) -> None:
    """Equality, with the field that differs in the message."""
    for name in TRAJECTORY_FIELDS:
        if name != "steps":
            assert getattr(one, name) == getattr(other, name), name
    for first, second in zip(one.steps, other.steps, strict=True):
        for name in STEP_FIELDS:
            mine, theirs = getattr(first, name), getattr(second, name)
            if isinstance(mine, np.ndarray):
                # Bit by bit: a logprob that is missing is NaN.
                assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
                assert mine.tobytes() == theirs.tobytes(), name
                assert not theirs.flags.writeable, name
            else:
                assert mine == theirs, name
    assert one == other


@PROFILE
@given(trajectories(live=False))
def test_a_trajectory_of_plain_arrays_is_read_as_it_was_written(trajectory: Trajectory) -> None:
    assert_same(there_and_back(trajectory), trajectory)


@PROFILE
@given(trajectories(live=True))
def test_a_trajectory_of_shared_segments_is_read_as_it_was_written(trajectory: Trajectory) -> None:
    assert_same(there_and_back(trajectory), trajectory)


@PROFILE
@given(trajectories())
def test_a_mixture_of_both_is_read_as_it_was_written_and_written_again(trajectory: Trajectory) -> None:
    back = there_and_back(trajectory)
    assert_same(back, trajectory)
    assert_same(there_and_back(back), trajectory)


@PROFILE
@given(trajectories(live=True))
def test_a_part_of_the_steps_is_written_without_the_rest(trajectory: Trajectory) -> None:
    """Segments hold only what the steps that are written use, and keep their order."""
    for part in (trajectory.steps[:1], trajectory.steps[1:], trajectory.steps[::-1]):
        assert_same(there_and_back(Trajectory(id="part", steps=part)), Trajectory(id="part", steps=part))


@PROFILE
@given(trajectories(live=True))
def test_steps_without_a_fact_that_their_segments_hold(trajectory: Trajectory) -> None:
    """A completion whose prompt was withheld stands in its segment behind ids that are not the step's."""
    for step in trajectory.steps:
        amend(step, prompt_token_ids=None)
    assert_same(there_and_back(trajectory), trajectory)


EMPTY_OR_MISSING: list[dict[str, Any]] = [
    {},
    {"messages": [], "tools": []},
    {"prompt_token_ids": [], "completion_token_ids": None},
    {"prompt_token_ids": None, "completion_token_ids": []},
    {"prompt_token_ids": [], "completion_token_ids": []},
    {"prompt_token_ids": [], "completion_token_ids": [], "logprobs": []},
    {"prompt_token_ids": [5], "completion_token_ids": []},
    {"prompt_token_ids": [5], "completion_token_ids": None},
    {"prompt_token_ids": [], "completion_token_ids": [5]},
    {"logprobs": []},
    {"logprobs": [-0.5]},
    {"prompt_token_ids": [5], "logprobs": [-0.5]},
    {"top_logprobs": []},
    {"usage": Usage(), "completion": Completion(), "attempts": (Attempt(),)},
    {"usage": Usage(extra={}), "completion": Completion(content="", extra={}), "metadata": {}, "sampling": {}},
    {"completion": Completion(content=[], tool_calls=(ToolCall(),)), "advantage": []},
    {"request_bytes": b"", "response_bytes": b"\xff"},
]


@pytest.mark.parametrize("facts", EMPTY_OR_MISSING, ids=str)
def test_missing_is_not_empty(facts: dict[str, Any]) -> None:
    step = Step(id="a.0", call_id="a", **facts)
    (back,) = there_and_back(Trajectory(steps=[step])).steps
    for name in STEP_FIELDS:
        mine, theirs = getattr(step, name), getattr(back, name)
        assert (mine is None) == (theirs is None), name
    assert back == step


def test_every_float32_is_read_as_it_was_written() -> None:
    """Also the one whose shortest text would be read as its neighbour, through the double in between."""
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 2**31, 50_000, np.uint32) | np.uint32(2**31)
    values = bits.view(np.float32)
    values = np.append(values[np.isfinite(values)], np.array([0x95AE43FD], np.uint32).view(np.float32))
    (back,) = there_and_back(Trajectory(steps=[Step(id="a", call_id="a", logprobs=values)])).steps
    assert back.logprobs is not None
    assert back.logprobs.dtype == np.float32
    assert (back.logprobs.view(np.uint32) == values.view(np.uint32)).all()


def test_durations_of_every_length_are_read_as_they_were_written() -> None:
    generator = np.random.default_rng(2)
    for seconds in (10.0 ** generator.uniform(-9, 6, 2000)).tolist():
        trajectory = Trajectory(tool_runs=[ToolRun(duration=seconds)])
        assert decode(encode(trajectory)).tool_runs[0].duration == trajectory.tool_runs[0].duration


def test_steps_of_a_row_share_their_memory() -> None:
    store, prompt = TokenStore(), np.arange(100, dtype=np.int32)
    steps = []
    for at in range(3):
        ids, answer = store.add(prompt, np.array([1000 + at], np.int32))
        steps.append(Step(id=str(at), call_id=str(at), prompt_token_ids=ids, completion_token_ids=answer))  # type: ignore[arg-type]
        prompt = np.append(prompt, [1000 + at, 7]).astype(np.int32)
    first, second, third = there_and_back(Trajectory(id="t", steps=steps)).steps
    assert first.prompt_token_ids is not None
    assert second.prompt_token_ids is not None
    assert third.prompt_token_ids is not None
    assert np.shares_memory(first.prompt_token_ids, third.prompt_token_ids)
    assert np.shares_memory(second.prompt_token_ids, third.prompt_token_ids)
    assert second.completion_token_ids is not None
    assert np.shares_memory(second.completion_token_ids, third.prompt_token_ids)
    assert not third.prompt_token_ids.flags.writeable


def test_messages_that_steps_share_are_one_object() -> None:
    asked = [{"role": "user", "content": str(number)} for number in range(4)]
    steps = [Step(id=str(n), call_id=str(n), messages=[dict(one) for one in asked[:n]]) for n in (2, 4)]
    first, second = there_and_back(Trajectory(steps=steps)).steps
    assert first.messages is not None
    assert second.messages is not None
    assert all(one is other for one, other in zip(first.messages, second.messages, strict=False))


def test_a_trajectory_of_a_live_recording_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with rt.recording(path):
        with rt.trajectory(name="solver", task="sum/1", group="sum/1", metadata={"seed": 3}) as trajectory:
            with rt.tool_run("calculator", arguments={"a": 1}) as run:
                run.result = 4
            trajectory.reward = 1.0
    (back,) = rt.read(path)
    assert back == trajectory
