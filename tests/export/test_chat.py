"""Conversations: which rows a trajectory gives, and what is in their messages."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import Step
from rollout_trace.export import CHAT_COLUMNS, chat, write_chat
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import to_chat
from tests.amount import examples
from tests.consumers import recorded
from tests.strategies import PROFILE, trajectories
from tests.unchecked import unchecked

Message = dict[str, Any]


def roles(row: dict[str, Any]) -> str:
    """The first letters of the roles of a row's messages; answers to train on are capital."""
    return "".join(m["role"][0].upper() if m.get("weight") else m["role"][0] for m in row["messages"])


def shapes(found: Any, **options: Any) -> list[str]:
    return [roles(row) for row in chat(found, weight=True, **options)]


def test_an_agent_with_tools_is_one_row() -> None:
    """Its last request and the answer to it, with arguments as dicts; and the trajectory's reward beside it."""
    rows = chat(recorded.tool_agent())
    assert [row["reward"] for row in rows] == [1.0, 0.0, 0.5, 0.25, 1.0, 1.0]
    calls = [("call_0", {"a": 1, "b": 2}), ("call_1", {"a": 3, "b": 3})]
    expected: list[Message] = [recorded.SYSTEM, {"role": "user", "content": "[1, 2, 3]"}]
    for at, (_, arguments) in enumerate(calls):
        call = {"id": None, "type": "function", "function": {"name": "add", "arguments": arguments}}
        expected.append({"role": "assistant", "content": None if at else "Adding.", "tool_calls": [call]})
        expected.append({"role": "tool", "tool_call_id": None, "content": ["3", "6"][at]})
    expected.append({"role": "assistant", "content": "The sum is 6."})
    assert without_ids(rows[0]["messages"]) == expected
    assert rows[0]["tools"] == recorded.TOOLS
    assert (rows[0]["group_id"], rows[0]["task_id"]) == ("add/1", "add/1")


def without_ids(messages: list[Message]) -> list[Message]:
    """The messages with every id of a tool call blanked, once it is seen that calls and results name the same."""
    messages = json.loads(json.dumps(messages))
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == asked
    assert len(set(asked)) == len(asked)
    for message in messages:
        if "tool_call_id" in message:
            message["tool_call_id"] = None
        for call in message.get("tool_calls", ()):
            call["id"] = None
    return messages


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (recorded.two_agents, ["suAtA", "suAtA", "suAtAtA", "suAtA", "suAtA", "suAtAtA"]),
        (recorded.interleaved, ["uAuAuA", "uAuAuA"]),
        (recorded.forked, ["suAuA", "suauA", "suA"]),
        (recorded.several_choices, ["uA", "uAuA"]),
        (recorded.failed_steps, ["uA", "uA", "uA"]),
        (recorded.drifting, ["suAtAtA"]),
        (recorded.thinking, ["uAuAuA"]),
        (recorded.images, ["uA"]),
        (recorded.completions, ["uA"]),
        (recorded.responses_agent, ["suAuA"]),
        (recorded.anthropic_agent, ["suAtA"]),
    ],
)
def test_a_row_for_each_end(made: Any, expected: list[str]) -> None:
    """Sub-agents, turns taken, forks, choices, and every protocol; each answer is trained on in one row."""
    assert shapes(made()) == expected


@st.composite
def talks(draw: st.DrawFn) -> list[tuple[list[str], str, bool]]:
    """Steps as texts of messages and answer, and whether they are usable: they go on from any earlier one, or anew."""
    made: list[tuple[list[str], str, bool]] = []
    for at in range(draw(st.integers(0, 8))):
        base: list[str] = []
        goes_on = draw(st.integers(0, 3)) > 0
        if made and goes_on:
            sent, said, _ = draw(st.sampled_from(made))
            base = [*sent, said]
            del base[draw(st.integers(1, len(base))) :]
        new = draw(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2))
        usable = draw(st.integers(0, 4)) > 0
        made.append(([*base, *new], f"a{at}", usable))
    return made


def by_the_rule(talk: list[tuple[list[str], str, bool]]) -> tuple[list[list[str]], list[list[str]]]:
    """The rows, and the answers to train on in each: a step goes on from the longest one that begins its messages."""
    usable = [(sent, said) for sent, said, good in talk if good]
    whole = [[*sent, said] for sent, said in usable]
    begun = [
        max((len(one) for one in whole[:at] if sent[: len(one)] == one), default=0)
        for at, (sent, _) in enumerate(usable)
    ]
    gone_on = [usable[at][0][:length] for at, length in enumerate(begun) if length]
    rows = [one for one in whole if one not in gone_on]
    seen: set[str] = set()
    trained = []
    for row in rows:
        said = {said for _, said in usable}
        trained.append([text for text in row if text in said - seen])
        seen |= set(row)
    return rows, trained


@settings(max_examples=examples(600))
@given(talks())
def test_rows_are_those_of_the_rule(talk: list[tuple[list[str], str, bool]]) -> None:
    """And every answer is trained on exactly once."""
    steps = []
    for at, (sent, said, usable) in enumerate(talk):
        messages = [{"role": "assistant" if text[0] == "a" else "user", "content": text} for text in sent]
        completion = rt.Completion(content=said)
        steps.append(
            Step(id=str(at), call_id=str(at), messages=messages, completion=completion, trainable=usable)
        )  # fmt: skip
    found = chat(rt.Trajectory(steps=steps), weight=True)
    rows, trained = by_the_rule(talk)
    assert [[m["content"] for m in row["messages"]] for row in found] == rows
    assert [[m["content"] for m in row["messages"] if m.get("weight")] for row in found] == trained
    assert sorted(text for row in trained for text in row) == sorted(said for _, said, usable in talk if usable)


def test_other_tools_are_another_conversation() -> None:
    """They stand in the prompt: an agent that takes them away for its last call gives two rows, each with its own."""
    trajectory = recorded.tool_agent()[0]
    *first, last = trajectory.steps
    trajectory.steps = [*first, replace(last, tools=None)]
    rows = chat(trajectory, weight=True)
    assert [roles(row) for row in rows] == ["suAtA", "suatatA"]
    assert [row["tools"] is None for row in rows] == [False, True]


def test_a_row_for_each_step() -> None:
    """With the messages exactly as they were sent, what the agent changed in them included."""
    (trajectory,) = recorded.thinking()
    rows = chat(trajectory, per="step", weight=True, reasoning="reasoning", columns=["step_ids"])
    assert [roles(row) for row in rows] == ["uA", "uauA", "uauauA"]
    assert [row["step_ids"] for row in rows] == [[step.id] for step in trajectory.steps]
    for row, step in zip(rows, trajectory.steps, strict=True):
        sent = [{name: value for name, value in message.items() if name != "weight"} for message in row["messages"]]
        assert sent[:-1] == step.messages
        assert sent[-1]["reasoning"] == f"thought {len(sent) - 1}"


def test_reasoning_is_what_the_model_thought() -> None:
    """Also of answers that were sent back without it; under the name that a template reads, or not at all."""
    found = recorded.thinking()
    for name in ("reasoning_content", "thinking"):
        (row,) = chat(found, reasoning=name)
        assert [message.get(name) for message in row["messages"][1::2]] == ["thought 1", "thought 3", "thought 5"]
    (bare,) = chat(found, reasoning=None)
    assert all(set(message) == {"role", "content"} for message in bare["messages"])


def test_arguments_as_they_were_written() -> None:
    """Also where the agent sent them back written in another way."""
    (row,) = chat(recorded.drifting(), arguments="json")
    calls = [call for message in row["messages"] for call in message.get("tool_calls", ())]
    assert [call["function"]["arguments"] for call in calls] == ['{"a": 1, "b": 2}', '{"a": 3, "b": 3}']


def test_arguments_that_are_no_object_stay_text_and_are_counted() -> None:
    """Strictly, that is an error."""
    found = recorded.bad_arguments()
    report = ExportReport()
    arguments = [call["function"]["arguments"] for call in chat(found, report=report)[0]["messages"][1]["tool_calls"]]
    assert arguments[:3] == [{"a": 1, "b": 2}, '{"a": 1, ', "[1, 2]"]
    assert list(report.dropped) == ["tool arguments that are no JSON object, left as text"]
    with pytest.raises(rt.RolloutTraceError, match="no JSON object"):
        chat(found, strict=True)
    assert chat(found, strict=True, arguments="json")


def test_what_is_left_out_is_counted() -> None:
    """Failed, cancelled, thrown away and untrainable steps, and those that do not say what they were asked."""
    report = ExportReport()
    chat(recorded.failed_steps(), report=report)
    counts = dict.fromkeys(["error", "abandoned", "not_trainable", "superseded", "cached"], 1)
    assert report.dropped == {f"steps left out: {reason}": count for reason, count in counts.items()}
    assert shapes(recorded.failed_steps(), allow={"abandoned", "cached"}) == ["uA"] * 5
    assert shapes(recorded.failed_steps(), include=lambda step: step.finish_reason == "length") == ["uA"]
    report = ExportReport()
    chat(recorded.completions(), report=report)
    assert report.dropped["steps left out: messages_missing"] == 1


def test_columns() -> None:
    """Those asked for, in that order; a number that is not finite is None, and counted."""
    (trajectory,) = recorded.forked()
    rows = chat(trajectory, columns=[])
    assert [set(row) for row in rows] == [{"messages"}] * 3
    rows = chat(trajectory, columns=list(CHAT_COLUMNS))
    assert [tuple(row)[2:] for row in rows] == [tuple(CHAT_COLUMNS)] * 3
    assert (rows[1]["model"], rows[1]["finish_reason"], rows[1]["agent"]) == ("m", "stop", "searcher")
    assert rows[1]["step_ids"] == [trajectory.steps[0].id, trajectory.steps[2].id]
    unchecked(trajectory, reward=math.inf)
    report = ExportReport()
    assert chat(trajectory, report=report)[0]["reward"] is None
    assert report.dropped == {"values of reward that are not finite numbers": 3}


def test_a_message_that_json_cannot_hold(tmp_path: Path) -> None:
    """NaN in what was sent is None in the row, and counted: one such message does not keep the others from the file."""
    (trajectory,) = recorded.several_choices()
    messages = [{"role": "user", "content": "x", "score": math.nan}]
    trajectory.steps = [replace(step, messages=messages) for step in trajectory.steps]
    report = ExportReport()
    assert write_chat(tmp_path / "chat.jsonl", trajectory, report=report) == 3
    assert report.dropped == {"values of messages that are not finite numbers": 3}
    (first, _, _) = (json.loads(line) for line in (tmp_path / "chat.jsonl").read_bytes().splitlines())
    assert first["messages"][0] == {"role": "user", "content": "x", "score": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "trajectory"}, "per='trajectory': expected 'conversation' or 'step'"),
        ({"arguments": "str"}, "arguments='str': expected 'dict' or 'json'"),
        ({"columns": ["score"]}, "columns: there is no column 'score'; there are trajectory_id, "),
    ],
)
def test_options_without_such_a_value(options: Any, message: str) -> None:
    """The message says what there is, before anything is read."""
    with pytest.raises(ValueError, match=message):
        chat(iter([None]), **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="there is no option 'weights'"):
        chat([], weights=True)  # type: ignore[call-arg]


@PROFILE
@given(trajectories())
def test_any_trajectory_can_be_given(trajectory: rt.Trajectory) -> None:
    """Whatever users and providers put into it, rows are JSON, and every step is in a row or counted."""
    report = ExportReport()
    rows = chat(trajectory, report=report, columns=[*CHAT_COLUMNS], weight=True)
    json.dumps(rows, allow_nan=False, default=str)
    left_out = sum(count for what, count in report.dropped.items() if what.startswith("steps left out: "))
    trained = sum(message.get("weight", 0) for row in rows for message in row["messages"])
    said = sum(len(row["step_ids"]) for row in rows)
    assert trained + left_out <= len(trajectory.steps) <= said + left_out


def test_a_file_holds_the_same_rows(tmp_path: Path) -> None:
    """Of what real servers answered as well."""
    found = [*recorded.engines(), *recorded.anthropic_agent(), *recorded.images()]
    count = write_chat(tmp_path / "chat.jsonl", iter(found), weight=True, columns=["step_ids", "reward"])
    rows = [json.loads(line) for line in (tmp_path / "chat.jsonl").read_bytes().split(b"\n")[:-1]]
    assert len(rows) == count > 100
    assert rows == chat(found, weight=True, columns=["step_ids", "reward"])


def test_a_part_whose_type_is_no_text_is_counted() -> None:
    report = ExportReport()
    sent = [{"role": "assistant", "content": [{"type": [], "thinking": None}]}]
    (message,) = to_chat(Step(id="a.0", call_id="a", protocol="anthropic.messages", messages=sent), report)
    assert message["role"] == "assistant"
    assert report.dropped == {"parts of an answer: []": 1}
