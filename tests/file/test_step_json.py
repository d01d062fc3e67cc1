"""The fast form of a line's steps writes the bytes that the general form does, or leaves them to it."""

from __future__ import annotations

import enum
from collections import UserDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.data.lists import ListSpan, ListStore
from rollout_trace.data.model import Attempt, Completion, Cost, ErrorInfo, Step, TokenIssue, ToolCall, Usage
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.distinct import DistinctValues
from rollout_trace.file.encode import in_parts, step_record
from rollout_trace.file.plain import OPTIONS, dumps
from rollout_trace.file.step_json import Given, steps_json
from tests.strategies import PROFILE, json_values, trajectories
from tests.unchecked import unchecked


class Name(str):
    """A text of another class."""


class Color(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class OtherUsage:
    input: int = 1
    output: int = 2
    cache_read: None = None
    cache_write: None = None
    reasoning: None = None
    extra: None = None


ODD = Step(id="odd", call_id="odd", agent="\ud800")
"""A step that is left to the general form, for its half of a surrogate pair."""
NOW = datetime(2026, 11, 24, 12, 30, 1, 250, timezone.utc)
FULL = Step(
    id="a.0",
    call_id="a",
    choice=1,
    agent="solver",
    protocol="openai.chat",
    engine="vllm",
    model="m",
    response_model="m-1",
    response_id="r",
    messages=[{"role": "user", "content": "hi"}],
    tools=[{"type": "function"}],
    sampling={"temperature": 0.5, "stop": None},
    completion=Completion(
        content='a\tb "c" \\ \x7f é 🐍',
        reasoning="why",
        tool_calls=(ToolCall(id="c", name="f", arguments="{}", extra={"index": 0}),),
        refusal="no",
        extra={"audio": {"id": "x"}},
    ),
    prompt_token_ids=np.array([1, 2], np.int32),
    completion_token_ids=np.array([3, 4], np.int32),
    logprobs=np.array([-0.25, -1e-7], np.float32),
    token_texts=["a", "b"],
    token_source="engine",
    logprobs_mode="raw",
    token_issue=TokenIssue(code="c", message="m"),
    finish_reason="stop",
    stop_reason=7,
    usage=Usage(input=2, output=2, extra={"audio_tokens": 1}),
    cost=Cost(amount=1, currency="EUR", source="table"),
    started_at=NOW,
    latency=1.5,
    time_to_first_token=0.1234567891,
    attempts=(
        Attempt(started_at=NOW, duration=0.2, status=500, error=ErrorInfo(type="T", message="m"), request_id="q"),
    ),
    status="error",
    error=ErrorInfo(type="T", message="m", code="c", status=500),
    reward=0.5,
    advantage=[0.5, 1.0],
    trainable=False,
    policy_version="v1",
    metadata={"k": [1, 2.5, None, True]},
    request_bytes=b"{}",
    response_bytes=b"\xff",
    extra={"metrics": {"a": 1}},
)


def given_of(step: Step, **tokens: Any) -> Given:
    return None, None, None, tokens


def general(steps: Sequence[Step]) -> bytes:
    # Inside of one list more, as deep as in a line: orjson refuses what is nested too deeply.
    return dumps([[step_record(step, given_of(step)) for step in steps]])[1:-1]


def agree(steps: list[Step]) -> None:
    """Asserts that the fast form writes what the general form does, or leaves it to that one."""
    found = steps_json(steps, list(map(given_of, steps)))
    assert found is None or found == general(steps)


def test_a_step_with_every_field_is_written_by_the_fast_form() -> None:
    assert steps_json([FULL], [given_of(FULL)]) == general([FULL])
    assert steps_json([Step(id="a", call_id="a")], [given_of(FULL)]) == b'[{"id":"a","call_id":"a","status":"ok"}]'


def test_what_the_tables_give_stands_between_the_fields_of_the_step() -> None:
    step = Step(id="a", call_id="a", agent="b", sampling={})
    record: Given = (4, [[0, 3]], [1], {"segment": 0, "logprobs": np.array([-0.1], np.float32)})
    found = steps_json([step], [record])
    assert found == orjson.dumps([step_record(step, record)], option=OPTIONS)
    assert found == (
        b'[{"id":"a","call_id":"a","agent":"b","index":4,"messages":[[0,3]],"tools":[1],'
        b'"tokens":{"segment":0,"logprobs":[-0.1]},"sampling":{},"status":"ok"}]'
    )


@given(trajectories())
@PROFILE
def test_both_forms_write_the_same_bytes(trajectory: Trajectory) -> None:
    agree(trajectory.steps)
    # In a line with a step for the general form, all of its steps are written by that one.
    alone, beside = in_parts(trajectory.steps)[3], in_parts([*trajectory.steps, ODD])[3]
    assert beside[: len(alone) - 1] == alone[:-1]
    assert steps_json([*trajectory.steps, ODD], [given_of(ODD)] * (len(trajectory.steps) + 1)) is None


DEEP: Any = "x"
for _ in range(249):
    DEEP = {"a": DEEP}
ANYTHING: list[Any] = [
    "text", Name("n"), Color.RED, Level.HIGH, 0, 1, -1, 2**31, 2**63, 2**64, 2**70, True, False, 0.0, -0.0, 1.0, 0.1,
    1e15, 1e16, 1e22, -1e300, 1e-7, 5e-324, float("nan"), float("inf"), np.float32(0.1), np.float64(0.1), np.int64(3),
    np.bool_(True), b"bytes", bytearray(b"x"), (), [], {}, (1,), [1], {"a": 1}, {1: 2}, {None: 1}, UserDict(a=1),
    {1, 2}, "\ud800", "\udc00a", "a" * 5000, DEEP, {"a": DEEP}, [DEEP] * 2, {"brackets": [[]] * 300},
    np.zeros(3, np.float32),
    NOW, NOW.replace(microsecond=0), NOW.replace(tzinfo=None), NOW.astimezone(timezone(timedelta(hours=1))),
    NOW.replace(year=1), NOW.date(), timedelta(1), FULL.usage, FULL.completion, FULL.attempts, list(FULL.attempts),
    OtherUsage(), {"input": 1}, {"content": "a"}, [{"status": 1}], (OtherUsage(),), FULL.error,
    FULL.token_issue, FULL.cost,
]  # fmt: skip
"""Values that a field may hold where somebody went around its checks."""
NAMES = [name for name in Step.__dataclass_fields__ if name != "_sealed"]
TABLES = (
    "messages", "tools", "prompt_token_ids", "completion_token_ids", "logprobs", "top_logprobs", "token_texts",
    "prompt_logprobs", "prompt_top_tokens", "routed_experts",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TABLES])
def test_both_forms_agree_on_any_value(name: str) -> None:
    for value in ANYTHING:
        agree_or_raise(unchecked(replace(FULL), **{name: value}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("completion", Completion),
        ("usage", Usage),
        ("attempts", Attempt),
        ("tool_calls", ToolCall),
        ("error", ErrorInfo),
    ],
)
def test_both_forms_agree_on_any_value_inside(name: str, kind: Any) -> None:
    for field in kind.__dataclass_fields__:
        for value in ANYTHING:
            item: Any = unchecked(kind(type="t", message="m") if kind is ErrorInfo else kind(), **{field: value})
            if kind is ToolCall:
                name, item = "completion", Completion(tool_calls=(item,))
            agree_or_raise(unchecked(replace(FULL), **{name: (item,) if kind is Attempt else item}))


def agree_or_raise(step: Step) -> None:
    """As ``agree``; where the general form refuses a value, the fast one has left it to that one."""
    found = steps_json([step], [given_of(step)])
    try:
        expected = general([step])
    except (TypeError, ValueError, AttributeError, OverflowError):
        assert found is None
    else:
        assert found is None or found == expected


# The tables


def plain_rows(lists: Sequence[ListSpan]) -> tuple[list[bytes], list[list[int]]]:
    """The table of lists, and the rows of each, by the rule alone: without what makes it fast."""
    table: list[bytes] = []
    rows_of: dict[int, list[int]] = {}
    for one in lists:
        if id(one.items) in rows_of:
            continue
        lengths = [other.length for other in lists if other.items is one.items]
        rows: list[int] = []
        for place, item in enumerate(one.items[: max(lengths)]):
            value, row = orjson.dumps(item, option=OPTIONS), rows[-1] + 1 if rows else 0
            if row >= len(table) or table[row] != value:
                steps = sum(length > place for length in lengths)
                is_short = place >= 32 and len(value) <= max(1000, 4 * steps)
                if value not in table or (is_short and row == len(table)):
                    row = len(table)
                    table.append(value)
                else:
                    row = table.index(value)
            rows.append(row)
        rows_of[id(one.items)] = rows
    return table, [rows_of[id(one.items)][: one.length] for one in lists]


def unfolded(rows: Sequence[int | list[int]]) -> list[int]:
    return [row for one in rows for row in ([one] if isinstance(one, int) else range(*one))]


@given(
    st.lists(json_values, min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=6),
    st.booleans(),
)
@PROFILE
def test_tables_are_as_the_rule_has_them(values: list[Any], choices: list[list[int]], are_shared: bool) -> None:
    store = ListStore()
    lists = [
        store.add_items([values[at % len(values)] if are_shared else [at, at % len(values)] for at in chosen])
        for chosen in choices
    ]
    if any(not is_json(one) for one in values):
        return
    found = DistinctValues(lists)
    rows = [unfolded(found.add(one)) for one in lists]
    table, expected = plain_rows(lists)
    assert rows == expected
    assert found.table() == b"[%s]" % b",".join(table)


def is_json(value: Any) -> bool:
    try:
        orjson.dumps(value, option=OPTIONS)
    except TypeError:
        return False
    return True
