"""Sessions of Codex: which items are one call, whose usage is whose, compactions, forks, sub-agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.wire.chat_messages import to_chat

from .files import load

PARENT, CHILD = "019a0000-0000-7000-8000-00000000000a", "019a0000-0000-7000-8000-00000000000b"


def sessions() -> tuple[rt.Trajectory, rt.Trajectory]:
    parent, child = load("codex")
    return parent, child


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-10-02T10:00:00.000Z", "type": kind, "payload": payload}


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return line("response_item", type="message", role=role, content=[{"type": kind, "text": text}])


def counted(last: int, total: int) -> dict[str, Any]:
    info = {"last_token_usage": {"output_tokens": last}, "total_token_usage": {"output_tokens": total}}
    return line("event_msg", type="token_count", info=info)


def test_the_items_of_one_response_are_one_step() -> None:
    parent, _ = sessions()
    first = parent.steps[0]
    assert first.completion is not None
    assert [call.name for call in first.completion.tool_calls] == ["shell", "spawn_agent"]
    # As the model wrote them: Codex keeps the text.
    assert first.completion.tool_calls[0].arguments == '{"command": ["ls"]}'
    assert first.completion.reasoning == "Look first."
    assert (first.model, first.sampling) == ("gpt-6-codex", {"reasoning": {"effort": "high"}})
    assert first.messages is not None
    assert first.messages[0] == {"role": "system", "content": "You are Codex."}
    assert [message["role"] for message in to_chat(first)] == ["system", "developer", "user"]


def test_usage_is_of_the_call_before_it_and_a_repeated_count_of_none() -> None:
    parent, _ = sessions()
    usage = [(step.usage.input, step.usage.output) for step in parent.steps if step.usage is not None]
    assert usage == [(1000, 50), (1200, 20), (60, 4)]
    assert parent.steps[0].usage is not None
    assert (parent.steps[0].usage.cache_read, parent.steps[0].usage.reasoning) == (800, 30)
    assert [step.response_id for step in parent.steps] == [None, None, "resp_9"]


def test_a_count_that_is_repeated_behind_the_next_answer_is_not_its_own(tmp_path: Path) -> None:
    turns = [said("user", "a"), said("assistant", "b"), counted(5, 5), said("user", "c"), said("assistant", "d")]
    lines = [line("session_meta", id="t"), *turns, counted(5, 5), counted(6, 11)]
    (session,) = importing.codex(write(tmp_path / "rollout-1.jsonl", lines))
    assert [step.usage.output for step in session.steps if step.usage] == [5, 6]


def test_tools_have_their_results_and_times() -> None:
    parent, child = sessions()
    shell, spawn = parent.tool_runs
    assert (shell.name, shell.duration, shell.step_id) == ("shell", 0.5, parent.steps[0].id)
    assert str(shell.result).endswith("a.py\n")
    assert spawn.name == "spawn_agent"
    (count,) = child.tool_runs
    assert (count.name, count.arguments, count.result) == ("count", "*.py", "1")


def test_a_compaction_replaces_the_prompt() -> None:
    last = sessions()[0].steps[2]
    assert [message["content"] for message in to_chat(last) if message["role"] == "system"] == ["You are Codex."]
    assert len(to_chat(last)) == 3
    assert last.model == "gpt-6-mini"


def test_a_sub_agent_begins_behind_what_it_copied() -> None:
    parent, child = sessions()
    assert (child.name, child.parent_id, child.parent_step_id) == ("explorer", PARENT, parent.steps[0].id)
    assert child.episode_id == parent.id == PARENT
    assert [(step.usage.output if step.usage else None) for step in child.steps] == [10, 2]
    # What it copied is its prompt.
    assert child.steps[0].messages is not None
    assert any(item.get("call_id") == "call_1" for item in child.steps[0].messages)


def test_what_the_source_lacks_is_said() -> None:
    found = load("codex")
    for trajectory in found:
        for step in trajectory.steps:
            assert (step.completion_token_ids, step.logprobs, step.finish_reason) == (None, None, None)
            assert step.token_issue is not None
    assert found.report.missing["token ids"] == 5
    assert found.report.missing["stop reasons"] == 5
    assert found.report.noted["answers copied from another session, kept as items of prompts"] == 3


def test_calls_without_counts_are_told_apart_by_what_was_read(tmp_path: Path) -> None:
    lines = [line("session_meta", id="t"), said("user", "a"), said("assistant", "b"), said("user", "c")]
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", [*lines, said("assistant", "d")]))
    assert [step.completion.content for step in one.steps if step.completion] == ["b", "d"]
    assert [step.usage for step in one.steps] == [None, None]


def test_turns_that_were_rolled_back_are_not_in_later_prompts(tmp_path: Path) -> None:
    lines = [
        *(line("session_meta", id="t"), said("user", "a"), said("assistant", "b"), counted(1, 1)),
        *(said("user", "wrong"), said("assistant", "w"), counted(2, 3)),
        *(line("event_msg", type="thread_rolled_back", num_turns=1), said("user", "c"), said("assistant", "d")),
    ]
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", lines))
    assert len(one.steps) == 3
    texts = [part["text"] for message in to_chat(one.steps[2]) for part in message["content"] if isinstance(part, dict)]
    assert "wrong" not in texts
    assert [step.usage.output if step.usage else None for step in one.steps] == [1, 2, None]


def texts(step: rt.Step) -> list[str]:
    return [part["text"] for item in step.messages or () for part in item.get("content", ())]


def test_what_codex_says_in_the_users_name_is_no_turn(tmp_path: Path) -> None:
    """Rolling back counts what the user said; what was put before it goes with it, the first such message stays."""
    context = "<environment_context>{}</environment_context>"
    lines = [line("session_meta", id="t"), said("user", context.format(1)), said("user", "a"), said("assistant", "b")]
    lines += [said("user", "c"), said("assistant", "d"), said("user", context.format(2)), said("user", "e")]
    lines += [said("assistant", "f"), line("event_msg", type="thread_rolled_back", num_turns=1)]
    lines += [said("user", "g"), said("assistant", "h"), line("event_msg", type="thread_rolled_back", num_turns=2)]
    lines += [said("user", "i"), said("assistant", "j"), line("event_msg", type="thread_rolled_back", num_turns=9)]
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", [*lines, said("user", "k"), said("assistant", "l")]))
    first = context.format(1)
    assert texts(one.steps[3]) == [first, "a", "b", "c", "d", "g"]
    assert texts(one.steps[4]) == [first, "a", "b", "i"]
    assert texts(one.steps[5]) == [first, "k"]


def test_the_count_behind_a_compaction_is_of_the_call_that_summed_up(tmp_path: Path) -> None:
    """The turn before it was aborted: its own count never came."""
    lines = [line("session_meta", id="t"), said("user", "a"), said("assistant", "b")]
    lines += [line("event_msg", type="turn_aborted"), line("compacted", message="so far"), counted(77, 77)]
    lines += [said("user", "c"), said("assistant", "d"), counted(3, 80)]
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", lines))
    assert [step.usage.output if step.usage else None for step in one.steps] == [None, 3]


def test_a_session_in_two_files_is_not_counted_twice(tmp_path: Path) -> None:
    begin = [line("session_meta", id="t"), said("user", "a"), said("assistant", "b"), counted(5, 5)]
    for name, more in (("archived", []), ("sessions", [said("user", "c"), said("assistant", "d")]), ("z", [])):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rollout-1.jsonl", [*begin, *more])
    found = importing.codex(tmp_path)
    assert [[texts(step) for step in one.steps] for one in found] == [[["a"]], [["a", "b", "c"]]]
    assert found.report.dropped == {"files that hold a session of this import again": 1}


def test_a_sub_agent_in_a_folder_before_that_of_its_parent(tmp_path: Path) -> None:
    call = {"type": "function_call", "name": "spawn_agent", "arguments": "{}", "call_id": "k"}
    done = {"type": "function_call_output", "call_id": "k", "output": '{"agent_id": "kid"}'}
    begin = [said("user", "a"), said("assistant", "b"), counted(5, 5)]
    (tmp_path / "sessions").mkdir()
    parent = [line("session_meta", id="top"), *begin, line("response_item", **call), line("response_item", **done)]
    write(tmp_path / "sessions" / "rollout-1.jsonl", parent)
    (tmp_path / "archived").mkdir()
    kid = [line("session_meta", id="kid", parent_thread_id="top"), *begin, said("user", "c"), said("assistant", "d")]
    write(tmp_path / "archived" / "rollout-2.jsonl", kid)
    top, child = importing.codex(tmp_path)
    assert (child.parent_id, child.parent_step_id, len(child.steps)) == ("top", top.steps[1].id, 1)


def test_sessions_above_themselves(tmp_path: Path) -> None:
    for at, (own, above) in enumerate([("a", "c"), ("b", "a"), ("c", "b")]):
        lines = [line("session_meta", id=own, parent_thread_id=above), said("user", own), said("assistant", "x")]
        write(tmp_path / f"rollout-{at}.jsonl", lines)
    found = importing.codex(tmp_path)
    assert [one.parent_id for one in found] == ["c", "a", None]
    assert found.report.noted["sessions that are above themselves, cut off"] == 1


def test_files_of_the_first_releases(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"id": "old", "timestamp": "2025-05-01T00:00:00Z", "instructions": "Be kind."},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ho"}]},
    ]
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", lines))
    assert (one.id, len(one.steps)) == ("old", 1)
    assert [message["role"] for message in to_chat(one.steps[0])] == ["system", "user"]


def test_an_aborted_turn(tmp_path: Path) -> None:
    lines = [line("session_meta", id="t"), said("user", "a"), said("assistant", "b")]
    lines.append(line("event_msg", type="turn_aborted", reason="interrupted"))
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", lines))
    assert one.status == "aborted"


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ({"type": "response_item", "payload": 3}, "$.payload"),
        (line("response_item", role=3), "$.payload.type"),
        (line("event_msg", type="token_count", info={"last_token_usage": {"input_tokens": "x"}}), ".input_tokens"),
        ({"type": "response_item"}, "$.payload"),
    ],
)
def test_errors_name_the_place(broken: dict[str, Any], path: str, tmp_path: Path) -> None:
    lines = [line("session_meta", id="t"), said("user", "a"), said("assistant", "b"), broken]
    file = write(tmp_path / "rollout-1.jsonl", lines)
    with pytest.raises(rt.FormatError) as caught:
        list(importing.codex(file))
    assert f"{file}, line 4, " in str(caught.value)
    assert f"{path}: expected " in str(caught.value)
    found = importing.codex(file, on_error="skip")
    assert [len(one.steps) for one in found] == [1]
    assert len(found.skipped) == 1


def test_a_forked_sub_agent_may_copy_a_part_of_its_parent(tmp_path: Path) -> None:
    """Without reasoning and tool calls, but with all counts: what was copied is the parent's."""
    call = line("response_item", type="function_call", name="shell", arguments="{}", call_id="c")
    output = line("response_item", type="function_call_output", call_id="c", output="ok")
    thought = line("response_item", type="reasoning", summary=[], encrypted_content="e")
    own = [said("user", "go"), thought, call, counted(5, 5), output, thought, said("assistant", "done"), counted(6, 11)]
    write(tmp_path / "rollout-1.jsonl", [line("session_meta", id="p"), *own])
    kept = [said("developer", "You are a child"), said("user", "go"), counted(5, 5), said("assistant", "done")]
    kept += [said("user", "<environment_context>"), counted(6, 11)]
    head = [line("session_meta", id="s", forked_from_id="p"), line("session_meta", id="p")]
    new = [said("user", "look"), said("assistant", "seen"), counted(2, 13)]
    write(tmp_path / "rollout-2.jsonl", [*head, *kept, *new])
    parent, child = importing.codex(tmp_path)
    assert [step.usage.output for step in parent.steps if step.usage] == [5, 6]
    assert [(step.completion.content, step.usage.output) for step in child.steps if step.completion and step.usage] == [
        ("seen", 2)
    ]
    assert [message["role"] for message in to_chat(child.steps[0])] == [
        *("developer", "user", "assistant", "user", "user")
    ]


def test_calls_without_an_output_were_sent_as_aborted(tmp_path: Path) -> None:
    call = line("response_item", type="custom_tool_call", name="exec", input="x", call_id="c")
    lines = [line("session_meta", id="t"), said("user", "a"), call, line("event_msg", type="turn_aborted")]
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", [*lines, said("user", "b"), said("assistant", "d")]))
    assert one.steps[1].messages is not None
    kinds = [item["type"] for item in one.steps[1].messages]
    assert kinds == ["message", "custom_tool_call", "custom_tool_call_output", "message"]


def test_a_turn_that_failed_behind_its_answers_is_no_call(tmp_path: Path) -> None:
    failed = line("event_msg", type="task_complete", error={"message": "no", "codex_error_info": {"x": {"a": 1}}})
    lines = [line("session_meta", id="t"), said("user", "a"), said("assistant", "b"), counted(1, 1), failed]
    (one,) = importing.codex(write(tmp_path / "rollout-1.jsonl", lines))
    assert ([step.status for step in one.steps], one.status) == (["ok"], "failed")
    status = {"http_connection_failed": {"http_status_code": 502}}
    failed = line("event_msg", type="task_complete", error={"message": "gone", "codex_error_info": status})
    (one,) = importing.codex(write(tmp_path / "rollout-2.jsonl", [*lines[:4], said("user", "c"), failed]))
    assert one.steps[1].error is not None
    assert (one.steps[1].error.type, one.steps[1].error.status) == ("http_connection_failed", 502)
