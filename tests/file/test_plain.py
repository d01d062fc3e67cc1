"""Values that JSON cannot hold never cost a trajectory."""

from __future__ import annotations

import logging
from collections import UserDict, namedtuple
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, RootModel

from rollout_trace.data.model import Cost, Step, Task, TokenIssue, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from tests.unchecked import unchecked


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log."""
    caplog.set_level(logging.WARNING, "rollout_trace")
    return caplog


class Color(Enum):
    RED = "red"


class Folder(Enum):
    HERE = Path("here")


class Settings(BaseModel):
    out: Path
    color: Color
    inner: Any = None


class Names(RootModel[list[str]]):
    pass


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Plain:
    def __repr__(self) -> str:
        return "Plain()"


@dataclass
class Point:
    x: int


@dataclass
class Run:
    out: Path
    folders: list[Folder]


Pair = namedtuple("Pair", "a b")
LOOP: dict[str, Any] = {}
LOOP["a"] = LOOP["b"] = LOOP
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


def kept(value: Any) -> Any:
    back = decode(encode(Trajectory(metadata={"value": value, "beside": "\ud83d"})))
    assert back.metadata is not None
    assert back.metadata["beside"] == "\ud83d"
    assert decode(encode(Trajectory(metadata={"value": value}))).metadata == {"value": back.metadata["value"]}
    return back.metadata["value"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), [1, 2]),
        (Pair(1, 2), [1, 2]),
        ({3}, [3]),
        (UserDict({"a": 1}), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (
            {1: "a", None: "b", False: "c", 0.5: "d", (1,): "e"},
            {"1": "a", "null": "b", "false": "c", "0.5": "d", "(1,)": "e"},
        ),
        ({"\ud83d": {"\udc0d": "🐍"}}, {"\ud83d": {"\udc0d": "🐍"}}),
        (2**63, 2**63),
        (-(10**40), -(10**40)),
        (10**5000, hex(10**5000)),
        (Color.RED, "red"),
        (Point(1), {"x": 1}),
        (Path("a"), "a"),
        (Folder.HERE, "here"),
        (Run(Path("a"), [Folder.HERE]), {"out": "a", "folders": ["here"]}),
        ([Settings(out=Path("a"), color=Color.RED, inner=Point(1))], [{"out": "a", "color": "red", "inner": {"x": 1}}]),
        (Names(["a"]), ["a"]),
        (datetime(2026, 1, 1, tzinfo=timezone.utc), "2026-01-01T00:00:00Z"),
        (np.float32(0.5), 0.5),
        (np.arange(4)[::2], [0, 2]),
        (np.array(["a"]), ["a"]),
        (float("nan"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_a_plain_form_is_written_in_it(value: Any, expected: Any, warnings: pytest.LogCaptureFixture) -> None:
    assert kept(value) == expected
    assert warnings.messages == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Plain(), "Plain()"),
        (b"\xff", "b'\\xff'"),
        (Decimal("0.1"), "Decimal('0.1')"),
        (range(2), "range(0, 2)"),
        (Broken(), "<Broken: its repr() raised RuntimeError>"),
        ([Plain(), 1], ["Plain()", 1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_rest_is_written_as_its_repr_with_one_warning(
    value: Any, expected: Any, warnings: pytest.LogCaptureFixture
) -> None:
    assert kept(value) == expected
    (warning,) = warnings.messages
    assert "cannot be written as JSON. The file gets its repr()" in warning


@pytest.mark.parametrize("value", [LOOP, DEEP], ids=["loop", "deep"])
def test_what_has_no_end_is_cut(value: Any) -> None:
    assert kept(value) is not None


def test_values_everywhere_are_kept() -> None:
    step = Step(
        id="a",
        call_id="a",
        messages=[{"content": Plain()}, {"content": "\ud83d"}, {1: 2}],
        tools=[Plain()],
        sampling=MappingProxyType({"stop": {"a"}}),
        policy_version=1.5,  # type: ignore[arg-type]
        finish_reason=Color.RED,  # type: ignore[arg-type]
    )
    run = ToolRun(arguments=Plain(), result={"image": b"png"})
    back = decode(encode(Trajectory(steps=[step], tool_runs=[run], task=Task(id=17, data=Plain()))))  # type: ignore[arg-type]
    (got,) = back.steps
    assert got.messages == [{"content": "Plain()"}, {"content": "\ud83d"}, {"1": 2}]
    assert got.tools == ["Plain()"]
    assert got.sampling == {"stop": ["a"]}
    assert (got.policy_version, got.finish_reason) == ("1.5", "Color.RED")
    assert (back.tool_runs[0].arguments, back.tool_runs[0].result) == ("Plain()", {"image": "b'png'"})
    assert (back.task.id, back.task.data) == ("17", "Plain()") if back.task else False


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (Decimal("0.5"), 0.5),
        (2**53 + 1, 2**53 + 1),
        (10**30, 10**30),
    ],
    ids=str,
)
def test_numbers_of_other_types_are_numbers(value: Any, expected: float, warnings: pytest.LogCaptureFixture) -> None:
    step = Step(id="a", call_id="a", reward=value, advantage=[value])
    back = decode(encode(Trajectory(steps=[step], reward=value, rewards={"a": value}, metrics={"a": value})))
    assert (back.reward, back.rewards, back.metrics) == (expected, {"a": expected}, {"a": expected})
    assert (back.steps[0].reward, back.steps[0].advantage) == (expected, [expected])
    assert warnings.messages == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf"), "high"], ids=str)
def test_a_number_that_is_none_costs_no_trajectory(value: Any, warnings: pytest.LogCaptureFixture) -> None:
    """It cannot be assigned; what got there by another way is written as null, with one warning."""
    step = unchecked(Step(id="a", call_id="a"), reward=value, advantage=[value, 1.0])
    numbers = {"a": value}
    back = decode(encode(unchecked(Trajectory(steps=[step]), reward=value, rewards=numbers, metrics=numbers)))
    assert [back.reward, back.steps[0].reward] == [None, None]
    nothing: Any = {"a": None}
    assert back.rewards == back.metrics == nothing
    assert back.steps[0].advantage == [None, 1.0]
    assert warnings.messages == [
        f"a reward, a metric or an advantage is {value!r}, not a finite number: it is written to the file as null."
    ]


def test_a_cost_without_an_amount_is_none() -> None:
    step = Step(id="a", call_id="a", cost=Cost(amount=float("nan")))
    assert decode(encode(Trajectory(steps=[step]))).steps[0].cost is None


def test_an_array_of_advantages_is_written_as_its_numbers() -> None:
    step = Step(id="a", call_id="a", advantage=np.array([0.1, 0.2], np.float32))  # type: ignore[arg-type]
    assert decode(encode(Trajectory(steps=[step]))).steps[0].advantage == np.array([0.1, 0.2], np.float32).tolist()


def test_logprobs_that_the_engine_left_out_are_no_mistake(warnings: pytest.LogCaptureFixture) -> None:
    """NaN with the issue that says so: nobody is warned, and what is read is equal."""
    issue = TokenIssue(code="logprobs_incomplete", message="1 of 2 logprobs did not come with this stream.")
    ids, logprobs = np.array([1, 2], np.int32), np.array([-0.5, np.nan], np.float32)
    step = Step(id="a", call_id="a", completion_token_ids=ids, logprobs=logprobs, token_issue=issue)
    back = decode(encode(Trajectory(steps=[step]))).steps[0]
    assert warnings.messages == []
    assert back == step
    assert back != replace(step, logprobs=logprobs[::-1])


def test_logprobs_that_are_not_finite_are_read_as_nan(warnings: pytest.LogCaptureFixture) -> None:
    step = Step(id="a", call_id="a", logprobs=[-0.5, float("-inf")])  # type: ignore[arg-type]
    back = decode(encode(Trajectory(steps=[step]))).steps[0].logprobs
    assert back is not None
    assert back[0] == -0.5
    assert np.isnan(back[1])
    assert len(warnings.messages) == 1


def test_a_time_without_a_zone_is_taken_as_utc(warnings: pytest.LogCaptureFixture) -> None:
    back = decode(encode(Trajectory(started_at=datetime(2026, 1, 1, 12))))
    assert back.started_at == datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    assert warnings.messages == ["a time has no time zone (2026-01-01 12:00:00); it is read as UTC."]


def test_a_field_that_holds_another_kind_of_thing_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^expected ErrorInfo, got 'boom'\. Make one with rollout_trace\.ErrorInfo\("):
        encode(Trajectory(error="boom"))  # type: ignore[arg-type]
