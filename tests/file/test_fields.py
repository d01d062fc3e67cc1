"""Steps as JSON: the bytes of every field, whatever it holds, and the tables of a line."""

from __future__ import annotations

import enum
import hashlib
import json
from collections import UserDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
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
from rollout_trace.file.encode import in_parts
from rollout_trace.file.fields import Given, step_json
from rollout_trace.file.plain import OPTIONS
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
"""A step with half a surrogate pair, which msgspec refuses."""
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


WRITTEN = (
    b'{"id":"a.0","call_id":"a","choice":1,"agent":"solver","protocol":"openai.chat","engine":"vllm","model":"m",'
    b'"response_model":"m-1","response_id":"r","tokens":{"end":1},"sampling":{"temperature":0.5,"stop":null},'
    b'"completion":{"role":"assistant","content":"a\\tb \\"c\\" \\\\ \x7f \xc3\xa9 \xf0\x9f\x90\x8d","reasoning":"why",'
    b'"tool_calls":[{"id":"c","name":"f","arguments":"{}","type":"function","extra":{"index":0}}],"refusal":"no",'
    b'"extra":{"audio":{"id":"x"}}},"token_source":"engine","logprobs_mode":"raw",'
    b'"token_issue":{"code":"c","message":"m"},"finish_reason":"stop","stop_reason":7,'
    b'"usage":{"input":2,"output":2,"extra":{"audio_tokens":1}},'
    b'"cost":{"amount":1,"currency":"EUR","source":"table"},"started_at":"2026-11-24T12:30:01.000250Z",'
    b'"latency_ms":1500.0,"time_to_first_token_ms":123.456789,'
    b'"attempts":[{"started_at":"2026-11-24T12:30:01.000250Z","duration_ms":200.0,"status":500,'
    b'"error":{"type":"T","message":"m"},"request_id":"q"}],"status":"error",'
    b'"error":{"type":"T","message":"m","code":"c","status":500},"reward":0.5,"advantage":[0.5,1.0],"trainable":false,'
    b'"policy_version":"v1","metadata":{"k":[1,2.5,null,true]},"request_bytes":{"text":"{}"},'
    b'"response_bytes":{"base64":"/w=="},"extra":{"metrics":{"a":1}}}'
)


def test_every_field_of_a_step_is_written_in_its_place() -> None:
    assert step_json(FULL, (None, None, None, {"end": 1})) == WRITTEN
    assert step_json(Step(id="a", call_id="a")) == b'{"id":"a","call_id":"a","status":"ok"}'


def test_what_the_tables_give_stands_between_the_fields_of_the_step() -> None:
    step = Step(id="a", call_id="a", agent="b", sampling={})
    record: Given = (4, [[0, 3]], [1], {"segment": 0, "logprobs": np.array([-0.1], np.float32)})
    assert step_json(step, record) == (
        b'{"id":"a","call_id":"a","agent":"b","index":4,"messages":[[0,3]],"tools":[1],'
        b'"tokens":{"segment":0,"logprobs":[-0.1]},"sampling":{},"status":"ok"}'
    )


@given(trajectories())
@PROFILE
def test_an_unusual_step_changes_nothing_of_the_others(trajectory: Trajectory) -> None:
    alone, beside = in_parts(trajectory.steps)[3], in_parts([*trajectory.steps, ODD])[3]
    assert beside[: len(alone) - 1] == alone[:-1]


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
    "prompt_logprobs", "prompt_top_tokens", "routed_experts", "top_tokens", "sampling_mask", "policy_spans",
)  # fmt: skip


KINDS: dict[str, Any] = {
    "completion": Completion, "usage": Usage, "attempts": Attempt, "tool_calls": ToolCall, "error": ErrorInfo,
}  # fmt: skip
HELD = Path(__file__).parent / "data" / "any_values.json"
"""By field: a digest of what version 1 of the format has had of it, for each of ``ANYTHING``."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TABLES])
def test_any_value_of_a_field_is_written_as_ever(name: str) -> None:
    assert digest([unchecked(replace(FULL), **{name: value}) for value in ANYTHING]) == held(name)


@pytest.mark.parametrize("name", KINDS)
def test_any_value_inside_of_a_field_is_written_as_ever(name: str) -> None:
    kind = KINDS[name]
    for field in kind.__dataclass_fields__:
        steps = []
        for value in ANYTHING:
            item: Any = unchecked(kind(type="t", message="m") if kind is ErrorInfo else kind(), **{field: value})
            place, item = ("completion", Completion(tool_calls=(item,))) if kind is ToolCall else (name, item)
            steps.append(unchecked(replace(FULL), **{place: (item,) if kind is Attempt else item}))
        assert digest(steps) == held(f"{name}.{field}"), field


def held(name: str) -> str:
    found: str = json.loads(HELD.read_text())[name]
    return found


def digest(steps: list[Step]) -> str:
    """Of the JSON of each step, or of the class of the error where there is no form for its value."""
    return hashlib.sha256(b"\n".join(map(written, steps))).hexdigest()[:16]


def written(step: Step) -> bytes:
    try:
        return in_parts([step])[3]
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        return type(error).__name__.encode()


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
