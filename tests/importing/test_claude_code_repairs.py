"""What sessions of Claude Code hold otherwise than the model read it: rewritten answers, lost lines, torn lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.wire.chat_messages import to_chat

from .test_claude_code import answer, line, result, text, tool, user, write


def prompt(step: rt.Step) -> list[Any]:
    return [message.get("content") or message["tool_calls"][0]["function"]["name"] for message in to_chat(step)]


ONE, LIST = text("one"), tool("t1")


@pytest.mark.parametrize(
    "written",
    [
        [[ONE, LIST], [ONE, LIST]],
        [[text("on")], [ONE], [ONE, LIST]],
        [[ONE], [LIST], [ONE], [LIST]],
        [[ONE], [text("on")], [LIST]],
        [[ONE, tool("t1", command="l")], [LIST | {"input": {"command": "ls", "more": "1"}}]],
    ],
)
def test_an_answer_that_is_written_again_is_one(written: list[list[dict[str, Any]]], tmp_path: Path) -> None:
    """Gateways copy lines, and programs that stream write what has come so far, each time under another uuid."""
    lines = [user("u1", None, "first")]
    lines += [answer(f"a{at}", lines[-1]["uuid"], "m1", *blocks) for at, blocks in enumerate(written) if lines]
    lines += [user("r1", lines[-1]["uuid"], result("t1", "ok")), answer("z", "r1", "m2", text("two"), stop="end_turn")]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    first, second = one.steps
    assert first.completion is not None
    assert first.completion.content == "one"
    assert [call.id for call in first.completion.tool_calls] == ["t1"]
    assert prompt(second) == ["first", "one", "ok"]
    assert json.dumps(list(second.messages or ())).count('"one"') == 1


def test_equal_texts_of_one_answer_are_two_where_the_lines_do_not_repeat_it(tmp_path: Path) -> None:
    lines = [user("u", None, "Go")]
    for at, block in enumerate((text("Look."), tool("t1"), text("Look."), tool("t2"))):
        lines.append(answer(f"a{at}", lines[-1]["uuid"], "m", block))
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert one.steps[0].completion is not None
    assert one.steps[0].completion.content == "Look.Look."
    placed = [answer(f"a{at}", "u", "m", text("So."), apiBlockIndex=at) for at in (0, 1, 1)]
    (one,) = importing.claude_code(write(tmp_path / "t.jsonl", [lines[0], *placed]))
    assert one.steps[0].completion is not None
    assert one.steps[0].completion.content == "So.So."


def test_thoughts_without_a_text_are_told_apart_by_their_signatures(tmp_path: Path) -> None:
    hidden = [{"type": "thinking", "thinking": "", "signature": one} for one in ("a", "b")]
    lines = [user("u", None, "Go"), *(answer(f"a{at}", "u", "m", one) for at, one in enumerate([*hidden, hidden[0]]))]
    lines.append(answer("a4", "u", "m", text("Yes")))
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert one.steps[0].completion is not None
    assert (one.steps[0].completion.extra or {})["content"] == [*hidden, text("Yes")]


HEAD = [user("u1", None, "first"), answer("a1", "u1", "m1", text("one"), stop="end_turn")]
TOOL = [user("u1", None, "first"), answer("a1", "u1", "m1", tool("t1"))]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([*HEAD, user("u2", "GHOST", "second"), answer("a2", "u2", "m2", text("two"))], ["first", "one", "second"]),
        ([*HEAD, user("u2", "a1", "second"), answer("a2", "GHOST", "m2", text("two"))], ["first", "one", "second"]),
        (
            [*TOOL, user("r", "GHOST", result("t1", "ok")), answer("a2", "GHOST2", "m2", text("two"))],
            ["first", "Bash", "ok"],
        ),
    ],
)
def test_a_parent_that_was_never_written(lines: list[Any], expected: list[str], tmp_path: Path) -> None:
    found = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    (one,) = found
    assert prompt(one.steps[-1]) == expected
    assert found.report.noted["lines whose parent is not in the file: they go on from the line before"] >= 1


COMMAND = "<command-name>/compact</command-name>"


@pytest.mark.parametrize("parent", ["a1", "s"])
@pytest.mark.parametrize("first", [[user("c1", "PARENT", COMMAND)], [user("c0", "PARENT", "x"), user("c1", "c0", "y")]])
def test_a_compaction_that_stands_beside_the_chain(first: list[Any], parent: str, tmp_path: Path) -> None:
    """The conversation goes on behind what stood before the summary, but the model reads the summary."""
    begin = [{**one, "parentUuid": parent if one["parentUuid"] == "PARENT" else one["parentUuid"]} for one in first]
    lines = [
        *HEAD,
        line("system", "b", None, subtype="compact_boundary", logicalParentUuid="a1"),
        user("s", "b", "Summary", isCompactSummary=True),
        *begin,
        user("u2", "c1", "second"),
        answer("a2", "u2", "m2", text("two")),
    ]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    read = prompt(one.steps[-1])
    assert (read[0], read[-1]) == ("Summary", "second")
    assert "first" not in read


def test_what_a_compaction_kept_stands_before_what_follows_its_summary(tmp_path: Path) -> None:
    facts = {"preservedMessages": {"anchorUuid": "s", "uuids": ["u2", "a2"]}}
    lines = [
        *HEAD,
        user("u2", "a1", "second"),
        answer("a2", "u2", "m2", text("two")),
        line("system", "b", None, subtype="compact_boundary", logicalParentUuid="a2", compactMetadata=facts),
        user("s", "b", "Summary", isCompactSummary=True),
        user("c1", "s", "<local-command-caveat>It was a command</local-command-caveat>", isMeta=True),
        user("u3", "c1", "third"),
        answer("a3", "u3", "m3", text("three")),
    ]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert prompt(one.steps[-1])[:3] == ["Summary", "second", "two"]


def test_a_prompt_typed_while_it_works_is_in_the_next_prompt(tmp_path: Path) -> None:
    lines = [
        *TOOL,
        user("r", "a1", result("t1", "ok")),
        line("attachment", "q", "r", attachment={"type": "queued_command", "prompt": "And this?"}),
        line("attachment", "h", "q", attachment={"type": "hook"}),
        answer("a2", "h", "m2", text("two")),
    ]
    found = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    (one,) = found
    assert prompt(one.steps[-1]) == ["first", "Bash", "ok", "And this?"]
    assert sum(found.report.dropped.values()) == 1


U1, A1, U2, A2 = (
    json.dumps(one).encode() for one in (*HEAD, user("u2", "a1", "second"), answer("a2", "u2", "m2", ONE))
)
CUT = json.dumps(line("attachment", "x", "u1", attachment={"type": "t", "content": "long text"})).encode()[:130]


@pytest.mark.parametrize(
    ("lines", "lost"),
    [
        ([U1, A1 + U2, A2], 0),
        ([U1, CUT + A1, U2, A2], 1),
        ([U1, A1 + CUT, U2, A2], 1),
        ([U1, b"\0" * 64 + A1, U2, A2], 1),
        ([U1, A1 + b"\0" * 9 + U2, A2], 1),
        ([U1, "é".encode()[:1] + A1 + U2, A2], 1),
        ([U1, A1, U2, A2 + CUT], 1),
    ],
)
def test_what_is_whole_on_a_torn_line_is_kept(lines: list[bytes], lost: int, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    found = importing.claude_code(path, on_error="skip")
    (one,) = found
    assert [step.response_id for step in one.steps] == ["m1", "m2"]
    assert prompt(one.steps[-1]) == ["first", "one", "second"]
    assert len(found.skipped) == lost
    if lost:
        with pytest.raises(rt.FormatError, match=r"line [1-4]: expected"):
            list(importing.claude_code(path))


def test_a_last_line_that_is_whole_before_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(U1 + b"\n" + A1 + U2[:60])
    found = importing.claude_code(path)
    assert [len(one.steps) for one in found] == [1]
    assert any("last lines without their end" in what for what in found.report.dropped)


def test_a_copied_error_is_no_second_step(tmp_path: Path) -> None:
    error = {**answer("e", "u1", "x", text("API Error: 529")), "isApiErrorMessage": True}
    error |= {"error": "server_error", "apiErrorStatus": 529, "apiErrorType": "overloaded_error"}
    write(tmp_path / "a.jsonl", [{**HEAD[0], "timestamp": "2026-10-01T00:00:00Z"}, error])
    late = {"type": "mode", "mode": "normal", "sessionId": "b", "timestamp": "2026-10-02T00:00:00Z"}
    write(tmp_path / "b.jsonl", [late, HEAD[0], error, *HEAD[1:]])
    first, second = importing.claude_code(tmp_path)
    (failed,) = first.steps
    assert failed.error is not None
    assert (failed.error.type, failed.error.status) == ("overloaded_error", 529)
    assert [step.status for step in second.steps] == ["ok"]
    assert (first.status, second.status) == ("failed", "completed")


def test_what_a_fork_copied_is_of_the_session_that_began_first(tmp_path: Path) -> None:
    """The session that was forked may go on: it then ends after the fork."""
    old = [user("u1", None, "Go", timestamp="2026-10-01T00:00:00Z")]
    old.append(answer("a1", "u1", "m1", text("Gone"), timestamp="2026-10-01T00:00:01Z"))
    begun = [line("queue-operation", "q", None, timestamp=f"2026-10-0{day}T00:00:00Z") for day in (1, 2)]
    more = [user("u2", "a1", "On", timestamp="2026-10-03T00:00:00Z")]
    write(tmp_path / "z.jsonl", [begun[0], *old, *more, answer("a2", "u2", "m2", text("On"))])
    write(tmp_path / "a.jsonl", [begun[1], *old, user("u3", "a1", "Else"), answer("a3", "u3", "m3", text("Yes"))])
    made = [[step.response_id for step in one.steps] for one in importing.claude_code(tmp_path)]
    assert made == [["m1", "m2"], ["m3"]]


def test_commands_behind_a_compaction_are_no_part_of_it(tmp_path: Path) -> None:
    """A compaction that came by itself has no lines of a command; those of other commands begin alike."""
    caveat = "<local-command-caveat>It was a command</local-command-caveat>"
    lines = [
        *HEAD,
        line("system", "b", None, subtype="compact_boundary", logicalParentUuid="a1"),
        user("s", "b", "Summary", isCompactSummary=True),
        user("u2", "s", "second"),
        answer("a2", "u2", "m2", text("two")),
        user("c1", "a2", caveat, isMeta=True),
        user("u3", "c1", "third"),
        answer("a3", "u3", "m3", text("three")),
    ]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert prompt(one.steps[-1]) == ["Summary", "second", "two", caveat, "third"]
    lines[5:6] = []
    lines[5] |= {"parentUuid": "u2"}
    (one,) = importing.claude_code(write(tmp_path / "t.jsonl", lines))
    assert prompt(one.steps[-1]) == ["Summary", "second", caveat, "third"]


def test_a_result_that_comes_behind_a_summary_of_its_call(tmp_path: Path) -> None:
    """Such as a command's in the background: the model reads it behind the summary."""
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "c", "parentUuid": None, "sessionId": "s"}
    lines = [user("u", None, "go"), answer("a", "u", "m1", tool("t1"), tool("t2")), user("r", "a", result("t1", "one"))]
    lines += [{**boundary, "logicalParentUuid": "r"}, user("s", "c", "Summary", isCompactSummary=True)]
    lines += [user("l", "s", result("t2", "late")), answer("b", "l", "m2", text("ok"), stop="end_turn")]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert prompt(one.steps[1]) == ["Summary", "late"]
    assert [run.tool_call_id for run in one.tool_runs] == ["t1", "t2"]
    assert {run.step_id for run in one.tool_runs} == {one.steps[0].id}
