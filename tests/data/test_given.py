"""What a user sets on a trajectory or a step: taken as what it is, or refused where it is set."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pydantic import BaseModel

import rollout_trace as rt
from rollout_trace.data.model import Step


class Answer(str, Enum):
    RIGHT = "right"


class Score(IntEnum):
    GOOD = 2


class Grade(BaseModel):
    answer: Answer
    at: datetime
    folder: Path


@dataclass
class Problem:
    id: int
    grade: Grade


class TorchScalar:
    """As a tensor without dimensions: `shape`, `item`, and no number otherwise."""

    shape = ()

    def item(self) -> float:
        return 0.25


ZERO = UUID(int=0)
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
GRADE = Grade(answer=Answer.RIGHT, at=NOON, folder=Path("runs/1"))
WRITTEN = {"answer": "right", "at": "2026-01-01T12:00:00Z", "folder": "runs/1"}


def step(**facts: Any) -> Step:
    return Step(id="s", call_id="c", **facts)


def written(trajectory: rt.Trajectory, path: Path) -> rt.Trajectory:
    with rt.JSONLWriter(path / "rollouts.jsonl") as out:
        out.write(trajectory)
    (back,) = rt.read(path / "rollouts.jsonl")
    return back


@pytest.fixture
def trajectory() -> Iterator[rt.Trajectory]:
    with rt.trajectory() as opened:
        yield opened


Setter = Callable[[rt.Trajectory, Any], object]
SETTERS: dict[str, Setter] = {
    "Trajectory.reward": lambda run, value: setattr(run, "reward", value),
    "rt.reward": lambda run, value: rt.reward(value),
    "rt.reward(name)": lambda run, value: rt.reward(value, name="x"),
    "rewards": lambda run, value: setattr(run, "rewards", {"x": value}),
    "metrics": lambda run, value: setattr(run, "metrics", {"x": value}),
    "rewards[]": lambda run, value: (run.rewards or {}).__setitem__("x", value),
    "metrics.update": lambda run, value: (run.metrics or {}).update(x=value),
    "rewards |=": lambda run, value: (run.rewards or {}).__ior__({"x": value}),
    "rewards.setdefault": lambda run, value: (run.rewards or {}).setdefault("x", value),
    "Step.reward": lambda run, value: setattr(step(), "reward", value),
    "Step(reward=)": lambda run, value: step(reward=value),
    "Trajectory(reward=)": lambda run, value: rt.Trajectory(reward=value),
    "Step.advantage": lambda run, value: setattr(step(), "advantage", value),
    "Step.advantage[]": lambda run, value: setattr(step(), "advantage", [0.5, value]),
}
ARRAYS: list[Any] = [np.array([1.0, 2.0]), np.array([1.0]), [1.0]]
NO_NUMBERS: list[Any] = ["abc", "1.0", {"a": 1}, 1j, np.complex64(1), object(), *ARRAYS]
NOT_FINITE: list[Any] = [math.nan, math.inf, np.float32("-inf"), Decimal("NaN"), 10**400]


@pytest.mark.parametrize("setter", SETTERS.values(), ids=SETTERS)
def test_what_is_no_finite_number_is_refused_where_it_is_set(setter: Setter, trajectory: rt.Trajectory) -> None:
    trajectory.rewards, trajectory.metrics = {"before": 1.0}, {"before": 1.0}
    # One advantage for each token is as good as one for all.
    for value in NO_NUMBERS[: -len(ARRAYS) if setter is SETTERS["Step.advantage"] else None]:
        with pytest.raises(TypeError, match=r"give one finite number|give a dict|give names"):
            setter(trajectory, value)
    for value in NOT_FINITE:
        with pytest.raises(ValueError, match=r" is .*; give a finite number, or None where there is none\."):
            setter(trajectory, value)
    assert (trajectory.reward, trajectory.rewards, trajectory.metrics) == (None, {"before": 1.0}, {"before": 1.0})


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (0.5, 0.5),
        (True, 1.0),
        (False, 0.0),
        (np.bool_(True), 1.0),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.array(0.5), 0.5),
        (TorchScalar(), 0.25),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (Score.GOOD, 2),
        (2**53 + 1, 2**53 + 1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_numbers_of_any_kind_become_pythons_own(value: Any, number: float, trajectory: rt.Trajectory) -> None:
    rt.reward(value)
    rt.reward(value, name="x")
    trajectory.metrics = {"x": value}
    one = step(reward=value, advantage=value)
    found = [trajectory.reward, (trajectory.rewards or {})["x"], trajectory.metrics["x"], one.reward, one.advantage]
    assert found == [number] * 5
    assert {type(item) for item in found} == {type(number)}


def test_the_name_of_a_reward_is_a_text(trajectory: rt.Trajectory) -> None:
    with pytest.raises(TypeError, match=r"^rewards has the name 1 \(int\); give names as text\.$"):
        trajectory.rewards = {1: 0.5}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"^metrics is 0\.5 \(float\); give a dict"):
        trajectory.metrics = 0.5  # type: ignore[assignment]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_advantages_of_a_copy_are_checked_too(again: Callable[[rt.Step], rt.Step]) -> None:
    """They are changed by assigning others, not in place."""
    copied = again(rt.Step(id="a", call_id="a", advantage=[0.5, 1.0]))
    assert copied.advantage == [0.5, 1.0]
    with pytest.raises(TypeError, match="cannot be changed"):
        copied.advantage[0] = "abc"


def test_rewards_of_one_trajectory_given_to_another_are_copied() -> None:
    one, other = rt.Trajectory(rewards={"a": 1.0}, metrics={"b": 2.0}), rt.Trajectory()
    other.rewards, other.metrics = one.rewards, one.metrics
    for numbers in (other.rewards, other.metrics):
        assert numbers is not None
        numbers["c"] = 3.0
    assert (one.rewards, one.metrics) == ({"a": 1.0}, {"b": 2.0})


def test_rewards_are_a_dict_in_everything_else(trajectory: rt.Trajectory, tmp_path: Path) -> None:
    given = {"a": 1.0, "b": None}
    trajectory.rewards = given  # type: ignore[assignment]
    assert trajectory.rewards == given
    assert repr(trajectory.rewards) == repr(given)
    assert json.dumps(trajectory.rewards) == json.dumps(given)
    for again in (
        copy.copy(trajectory.rewards),
        copy.deepcopy(trajectory.rewards),
        pickle.loads(pickle.dumps(trajectory.rewards)),
    ):
        assert again == given
        with pytest.raises(TypeError):
            again["c"] = "abc"  # type: ignore[assignment]
    closed = rt.Trajectory(rewards=trajectory.rewards)
    back = written(closed, tmp_path)
    assert back == closed
    with pytest.raises(TypeError, match=r"^rewards\['a'\] is 'abc' \(str\)"):
        back.rewards["a"] = "abc"  # type: ignore[index, assignment]
    assert replace(back).rewards == given


def test_advantages_of_each_token_are_a_list_that_cannot_be_changed(tmp_path: Path) -> None:
    for value in ([0.5, -1], (0.5, -1), np.array([0.5, -1.0]), iter([0.5, -1.0])):
        one = step(advantage=value)
        assert one.advantage == [0.5, -1.0]
        with pytest.raises(TypeError):
            one.advantage[0] = math.nan
        assert written(rt.Trajectory(steps=[one]), tmp_path / str(id(value))).steps[0].advantage == [0.5, -1.0]
    with pytest.raises(TypeError, match=r"^Step\.advantage\[1\] is None"):
        one.advantage = [1.0, None]  # type: ignore[list-item]


@pytest.mark.parametrize("value", ["text", 1, [1, 2], object()])
def test_metadata_are_names_and_values(value: Any, trajectory: rt.Trajectory) -> None:
    for refused in (
        lambda: rt.trajectory(metadata=value),
        lambda: setattr(trajectory, "metadata", value),
        lambda: rt.Trajectory(metadata=value),
        lambda: step(metadata=value),
    ):
        with pytest.raises(TypeError, match=r'etadata is .*; give a dict, \{"name": value\}\.'):
            refused()


@pytest.mark.parametrize("value", [[1], object(), True, {"id": ["a"]}, b"a"])
def test_a_task_has_a_name(value: Any, trajectory: rt.Trajectory) -> None:
    for refused in (lambda: rt.trajectory(task=value), lambda: setattr(trajectory, "task", value)):
        with pytest.raises(TypeError, match=r'^task(\["id"\])? is .*; give its id as text\.'):
            refused()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (17, "17"),
        (np.int64(17), "17"),
        (Answer.RIGHT, "right"),
        (Path("a"), "a"),
        (ZERO, str(ZERO)),
    ],
)
def test_ids_of_tasks_and_groups_are_texts(value: Any, text: str) -> None:
    with rt.trajectory(task=value, group=value) as trajectory:
        assert (trajectory.task, trajectory.group_id) == (rt.Task(id=text), text)
    assert rt.Trajectory(task=rt.Task(id=value)).task == rt.Task(id=text)
    with pytest.raises(TypeError, match=r"^group is \['a'\] \(list\); give its id as text"):
        rt.trajectory(group=["a"])  # type: ignore[call-overload]


def test_a_place_in_the_group_is_a_whole_number() -> None:
    assert rt.Trajectory(rollout_index=np.int64(3)).rollout_index == 3
    for value in ("1", 1.0, True):
        with pytest.raises(TypeError, match=r"rollout_index is .*; give a whole number, counted from 0"):
            rt.trajectory(rollout_index=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rollout_index is -1; give a whole number, counted from 0"):
        rt.trajectory(rollout_index=-1)


def test_prices_are_a_table(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^prices is \{'m': 1\}; give rt\.PriceTable\("):
        rt.recording(tmp_path / "a.jsonl", prices={"m": 1})  # type: ignore[arg-type]


def test_objects_are_stored_as_what_they_hold(tmp_path: Path) -> None:
    """Pydantic objects, dataclasses, paths, enums and times: alone, and at any depth of another."""
    path = tmp_path / "rollouts.jsonl"
    with rt.recording(path):
        with rt.trajectory(task=Problem(17, GRADE), metadata={"deep": [{"grade": GRADE}], "to": Path("a")}):
            with rt.tool_run("grade", arguments={"grade": GRADE}) as run:
                run.result = [GRADE, Path("a"), Answer.RIGHT, NOON]
        with rt.trajectory(task=GRADE, metadata=GRADE):  # type: ignore[call-overload]
            pass
    first, second = rt.read(path)
    assert first.task == rt.Task(id="17", data={"id": 17, "grade": WRITTEN})
    assert first.metadata == {"deep": [{"grade": WRITTEN}], "to": "a"}
    assert first.tool_runs[0].arguments == {"grade": WRITTEN}
    assert first.tool_runs[0].result == [WRITTEN, "a", "right", "2026-01-01T12:00:00Z"]
    assert (second.task, second.metadata) == (rt.Task(data=WRITTEN), WRITTEN)


class Unserializable(BaseModel):
    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise RuntimeError("no")


class Nowhere(os.PathLike[str]):
    def __fspath__(self) -> str:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "Nowhere()"


@pytest.mark.parametrize("value", [Unserializable(), Nowhere()], ids=repr)
def test_an_object_that_cannot_say_what_it_holds_is_its_repr(value: Any, tmp_path: Path) -> None:
    """It costs no trajectory."""
    back = written(rt.Trajectory(metadata={"x": [value, Path("a")]}), tmp_path)
    assert back.metadata == {"x": [repr(value), "a"]}
