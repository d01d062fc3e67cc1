"""Sessions of Claude Code: one step a response, usage once, parallel tools, sub-agents, compactions, branches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.wire.chat_messages import to_chat

from .files import DATA, load

SESSION = "5e1f0c1a-0000-4000-8000-000000000001"
FILE = DATA / "claude_code" / "-work-app" / f"{SESSION}.jsonl"


def session() -> tuple[rt.Trajectory, rt.Trajectory]:
    main, agent = load("claude_code", FILE)
    return main, agent


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(kind: str, uuid: str, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "isSidechain": False, **fields}


def user(uuid: str, parent: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    return line("user", uuid, parent, message={"role": "user", "content": content}, **fields)


def answer(uuid: str, parent: str | None, message_id: str, *blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    usage = fields.pop("usage", {"input_tokens": 3, "output_tokens": 2})
    message = {"id": message_id, "role": "assistant", "model": "claude", "content": list(blocks), "usage": usage}
    return line("assistant", uuid, parent, message={**message, "stop_reason": fields.pop("stop", None)}, **fields)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def tool(call_id: str, name: str = "Bash", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id: str, content: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call_id, "content": content}]


def test_lines_of_one_response_are_one_step_and_its_usage_counts_once() -> None:
    main, _ = session()
    first = main.steps[0]
    assert first.response_id == "msg_1"
    assert first.completion is not None
    assert first.completion.content == "I read both files."
    assert first.completion.reasoning == "Look at both files."
    assert [call.name for call in first.completion.tool_calls] == ["Read", "Bash"]
    assert [json.loads(call.arguments or "") for call in first.completion.tool_calls][1] == {"command": "pytest -q"}
    # Input with what the cache gave and took; output of the last line, not of the first.
    assert first.usage is not None
    assert (first.usage.input, first.usage.output, first.usage.cache_read) == (930, 120, 900)
    assert first.attempts[0].request_id == "req_1"
    assert main.n_output_tokens == 120 + 60 + 15 + 5 + 9


def test_the_prompt_after_parallel_tools_has_both_results() -> None:
    """In the file each result follows the line of its own call: a walk from the leaf would lose one of them."""
    second = session()[0].steps[1]
    roles = [(message["role"], message.get("tool_call_id")) for message in to_chat(second)]
    assert roles[-3:] == [("assistant", None), ("tool", "toolu_1"), ("tool", "toolu_2")]


def test_tools_have_what_the_model_read() -> None:
    main, _ = session()
    read, bash, task = main.tool_runs
    assert (read.name, read.arguments, read.duration) == ("Read", {"file_path": "/work/app/a.py"}, 0.012)
    assert read.step_id == main.steps[0].id
    assert read.error is None
    assert (bash.result, bash.error is not None) == ("1 failed", True)
    assert (task.result, task.duration) == ("Only the test calls it.", 7.5)


def test_a_sub_agent_is_a_child_of_the_step_that_called_it() -> None:
    main, agent = session()
    assert (agent.name, agent.parent_id, agent.parent_step_id) == ("Explore", main.id, main.steps[1].id)
    assert agent.episode_id == main.episode_id == main.id == SESSION
    assert [step.model for step in agent.steps] == ["claude-haiku-5"] * 2


def test_an_error_of_the_cli_is_a_failed_step_and_no_message() -> None:
    main, _ = session()
    failed = main.steps[2]
    assert (failed.status, failed.completion) == ("error", None)
    assert failed.error is not None
    assert (failed.error.type, failed.error.message) == ("overloaded_error", "API Error: 529 overloaded")
    assert "529" not in json.dumps(list(main.steps[3].messages or ()))


def test_a_compaction_begins_a_new_prompt_and_a_branch_another() -> None:
    main, _ = session()
    green, last = main.steps[4], main.steps[5]
    assert to_chat(green)[0]["content"].startswith("This session is being continued")
    # The user went back before the picture: the same beginning, another question.
    assert [message["role"] for message in to_chat(last)] == ["user", "user"]
    assert to_chat(last)[0] == to_chat(green)[0]
    assert to_chat(last)[1]["content"] == "No: is it green?"
    assert (main.metadata or {})["compactions"] == 1


def test_what_the_source_lacks_is_none_and_said() -> None:
    found = load("claude_code", FILE)
    for trajectory in found:
        for step in trajectory.steps:
            names = ("prompt_token_ids", "completion_token_ids", "logprobs", "tools", "sampling")
            assert [getattr(step, name) for name in names] == [None] * 5
            assert (step.metadata or {})["messages_source"] == "rebuilt"
            if step.status == "ok":
                assert step.token_issue is not None
                assert step.token_issue.code == "ids_missing"
        assert trajectory.reward is None
    missing = found.report.missing
    assert missing["token ids"] == missing["logprobs"] == 7
    assert missing["system prompts, tools and sampling parameters"] == 2
    assert found.report.dropped["structured results beside what the model read"] == 3
    assert found.report.noted["lines that a file has twice, joined"] == 1
    assert "missing in the source: token ids: 7" in str(found.report)


def test_a_sub_agent_without_its_session() -> None:
    (alone,) = load("claude_code", FILE.with_suffix("") / "subagents" / "agent-ab12cd34.jsonl")
    assert len(alone.steps) == 2
    # Whose agent it is stands in its lines.
    assert (alone.parent_id, alone.episode_id, alone.name) == (SESSION, SESSION, "Explore")


def test_sub_agents_of_old_releases_stand_in_the_session(tmp_path: Path) -> None:
    side = {"isSidechain": True}
    lines = [
        user("u1", None, "Go"),
        answer("a1", "u1", "m1", tool("t1", "Task", prompt="Look"), stop="tool_use"),
        user("s1", None, "Look", **side),
        answer("s2", "s1", "m2", text("Seen"), **side),
        user("r1", "a1", result("t1", "Seen")),
        answer("a2", "r1", "m3", text("Done"), stop="end_turn"),
    ]
    main, agent = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert [len(one.steps) for one in (main, agent)] == [2, 1]
    assert (agent.parent_id, agent.parent_step_id) == (main.id, main.steps[0].id)


def test_agents_inside_agents(tmp_path: Path) -> None:
    folder = tmp_path / "s" / "subagents"
    folder.mkdir(parents=True)
    write(tmp_path / "s.jsonl", [user("u", None, "Go"), answer("a", "u", "m", tool("t1", "Agent", prompt="one"))])
    side = {"isSidechain": True}
    for name, call, inner in (("one", "t1", "t2"), ("two", "t2", "t3")):
        asked, told = user(f"{name}u", None, name, **side), answer(f"{name}a", f"{name}u", name, tool(inner), **side)
        write(folder / f"agent-{name}.jsonl", [{**one, "agentId": name} for one in (asked, told)])
        (folder / f"agent-{name}.meta.json").write_text(json.dumps({"toolUseId": call, "agentType": name}))
    main, one, two = importing.claude_code(tmp_path / "s.jsonl")
    assert (one.parent_step_id, two.parent_id, two.parent_step_id) == (main.steps[0].id, one.id, one.steps[0].id)
    assert {trajectory.episode_id for trajectory in (main, one, two)} == {main.id}


def test_agents_that_began_each_other_are_the_sessions(tmp_path: Path) -> None:
    folder = tmp_path / "s" / "subagents"
    folder.mkdir(parents=True)
    write(tmp_path / "s.jsonl", [user("u", None, "Go"), answer("a", "u", "m", text("Yes"))])
    for name, call, own in (("one", "t2", "t1"), ("two", "t1", "t2")):
        asked, told = user(f"{name}u", None, name), answer(f"{name}a", f"{name}u", name, tool(own, "Agent"))
        write(folder / f"agent-{name}.jsonl", [{**one, "isSidechain": True, "agentId": name} for one in (asked, told)])
        (folder / f"agent-{name}.meta.json").write_text(json.dumps({"toolUseId": call}))
    made = {trajectory.id: trajectory for trajectory in importing.claude_code(tmp_path / "s.jsonl")}
    for trajectory in made.values():
        seen = set()
        above: rt.Trajectory | None = trajectory
        while above is not None:
            assert above.id not in seen
            seen.add(above.id)
            above = made.get(above.parent_id or "")


@pytest.mark.parametrize("is_written_anew", [True, False])
def test_a_compaction_that_keeps_the_last_messages(is_written_anew: bool, tmp_path: Path) -> None:
    """The next prompt is the summary and what was kept; a line that is written anew was sampled before."""
    kept = answer("a3", "s" if is_written_anew else "u3", "m3", text("third"))
    facts = {"preservedMessages": {"anchorUuid": "s", "uuids": ["a2", "u3", "a3"]}}
    lines = [
        *(user("u1", None, "one"), answer("a1", "u1", "m1", text("first"))),
        *(user("u2", "a1", "two"), answer("a2", "u2", "m2", text("second")), user("u3", "a2", "three")),
        *([] if is_written_anew else [kept]),
        line("system", "c", None, subtype="compact_boundary", compactMetadata=facts),
        user("s", "c", "Summary", isCompactSummary=True),
        *([kept] if is_written_anew else []),
        *(user("u4", "a3", "four"), answer("a4", "u4", "m4", text("fourth"))),
    ]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    prompts = [[message["content"] for message in to_chat(step)] for step in one.steps]
    assert prompts[2] == ["one", "first", "two", "second", "three"]
    assert prompts[3] == ["Summary", "second", "three", "third", "four"]
    assert len(prompts) == 4


def test_a_resumed_session_has_its_own_steps_alone(tmp_path: Path) -> None:
    old = [user("u1", None, "Go"), answer("a1", "u1", "m1", text("Gone"))]
    write(tmp_path / "a.jsonl", old)
    write(tmp_path / "b.jsonl", [*old, user("u2", "a1", "And?"), answer("a2", "u2", "m2", text("Here"))])
    found = importing.claude_code(tmp_path)
    first, second = found
    assert [len(one.steps) for one in (first, second)] == [1, 1]
    assert [message["content"] for message in to_chat(second.steps[0])] == ["Go", "Gone", "And?"]
    assert found.report.noted["responses copied from another session, kept as messages alone"] == 1


def test_what_was_copied_is_of_the_session_that_ended_first(tmp_path: Path) -> None:
    """Sessions are named at random: the copy may come first by its name."""
    old = [user("u1", None, "Go", timestamp="2026-10-01T00:00:00Z")]
    old.append(answer("a1", "u1", "m1", text("Gone"), timestamp="2026-10-01T00:00:01Z"))
    new = [user("u2", "a1", "And?"), answer("a2", "u2", "m2", text("Here"), timestamp="2026-10-02T00:00:00Z")]
    write(tmp_path / "z.jsonl", [{**one, "sessionId": "z"} for one in old])
    write(tmp_path / "a.jsonl", [{**one, "sessionId": "a"} for one in (*old, *new)])
    made = {one.id: [step.response_id for step in one.steps] for one in importing.claude_code(tmp_path)}
    assert made == {"z": ["m1"], "a": ["m2"]}


def test_ids_find_the_caller_before_prompts_do(tmp_path: Path) -> None:
    """Two agents were given the same prompt, by different steps."""
    folder = tmp_path / "s" / "subagents"
    folder.mkdir(parents=True)
    write(tmp_path / "s.jsonl", [user("u", None, "Go"), answer("a", "u", "m", tool("t1", "Agent", prompt="look"))])
    for name, call, block in (("A", "t1", tool("t2", "Agent", prompt="look")), ("B", "t2", text("Seen"))):
        lines = [user(f"{name}u", None, "look"), answer(f"{name}a", f"{name}u", f"m{name}", block)]
        write(folder / f"agent-{name}.jsonl", [{**one, "isSidechain": True, "agentId": name} for one in lines])
        (folder / f"agent-{name}.meta.json").write_text(json.dumps({"toolUseId": call}))
    main, first, second = importing.claude_code(tmp_path / "s.jsonl")
    assert (first.parent_id, first.parent_step_id) == (main.id, main.steps[0].id)
    assert (second.parent_id, second.parent_step_id) == (first.id, first.steps[0].id)


def test_an_agent_without_a_prompt_was_not_called_by_an_empty_one(tmp_path: Path) -> None:
    lines = [user("u1", None, "Go"), answer("a1", "u1", "m1", tool("t1", "Task", prompt=""))]
    lines.append(answer("s1", None, "m2", text("x"), isSidechain=True))
    main, agent = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert (agent.parent_id, agent.parent_step_id) == (main.id, None)


def test_one_id_for_the_answers_of_two_requests(tmp_path: Path) -> None:
    """Gateways give answers ids that are not theirs alone."""
    lines = [
        user("u1", None, "Go"),
        answer("a1", "u1", "m", tool("t1"), requestId="r1"),
        user("r1", "a1", result("t1", "one")),
        answer("a2", "r1", "m", text("Two"), requestId="r2", stop="end_turn"),
    ]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    first, second = one.steps
    assert first.completion is not None
    assert first.completion.content is None
    assert [message["role"] for message in to_chat(second)] == ["user", "assistant", "tool"]


def test_answers_that_the_cli_wrote_are_no_steps(tmp_path: Path) -> None:
    """They keep the turns of a resumed session in order: nothing was sampled, nothing failed."""
    lines = [user("u1", None, "Go"), answer("a1", "u1", "m1", text("Done"), stop="end_turn")]
    lines += [user("u2", "a1", "x", isMeta=True), answer("a2", "u2", "m2", text("No response requested."))]
    lines[-1]["message"]["model"] = "<synthetic>"
    found = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    (one,) = found
    assert ([step.response_id for step in one.steps], one.status) == (["m1"], "completed")
    assert found.report.noted["answers that the CLI wrote in place of a model, kept as messages alone"] == 1


def test_lines_before_their_parents(tmp_path: Path) -> None:
    lines = [user("u1", None, "Go"), answer("a2", "u2", "m2", text("B")), user("u2", "a1", "And?")]
    lines += [user("c1", "c2", "round"), user("c2", "c1", "and round")]
    found = importing.claude_code(write(tmp_path / "s.jsonl", [*lines, answer("a1", "u1", "m1", text("A"))]))
    (one,) = found
    assert [step.response_id for step in one.steps] == ["m1", "m2"]
    assert [message["content"] for message in to_chat(one.steps[1])] == ["Go", "A", "And?"]
    assert found.report.noted["lines whose parent is not in the file: they go on from the line before"] == 1


def test_a_side_question_repeats_the_conversation(tmp_path: Path) -> None:
    """``/btw`` writes what was said before it anew, with other ids of lines and requests, beside the question."""
    side = {"isSidechain": True, "agentId": "btw"}
    lines = [
        user("u1", None, "Go"),
        answer("a1", "u1", "m1", text("Gone"), requestId="r1"),
        user("s1", None, "Go", **side),
        answer("s2", "s1", "m1", text("Gone"), requestId="r2", **side),
        user("s3", "s2", "By the way?", **side),
        answer("s4", "s3", "m2", text("Yes"), requestId="r3", **side),
    ]
    main, asked = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert [len(one.steps) for one in (main, asked)] == [1, 1]
    assert len(to_chat(asked.steps[0])) == 3


def test_lines_between_parallel_results(tmp_path: Path) -> None:
    """What stands behind one result is followed by the next prompt, which has the later result, too."""
    lines = [
        user("u1", None, "Go"),
        answer("a1", "u1", "m1", tool("t1")),
        answer("a2", "a1", "m1", tool("t2")),
        user("r1", "a1", result("t1", "one")),
        line("attachment", "x1", "r1", attachment={"type": "hook"}),
        user("r2", "a2", result("t2", "two")),
        answer("a3", "x1", "m2", text("Done")),
    ]
    (one,) = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert [message.get("content") for message in to_chat(one.steps[1])][2:] == ["one", "two"]


def test_early_counts_are_not_the_last_word(tmp_path: Path) -> None:
    """Old releases wrote what had been streamed by then: the largest counts, wherever it stands."""
    lines = [
        user("u1", None, "Go"),
        answer("a1", "u1", "m1", text("A"), usage={"input_tokens": 3, "output_tokens": 40}),
        answer("a2", "a1", "m1", text("B"), usage={"input_tokens": 3, "output_tokens": 1}),
    ]
    found = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    (step,) = next(found).steps
    assert step.usage is not None
    assert step.usage.output == 40
    assert step.completion is not None
    assert step.completion.content == "AB"
    assert list(found) == []
    assert any("without a stop reason" in what for what in found.report.noted)


def test_thinking_without_its_text_is_none(tmp_path: Path) -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    lines = [user("u1", None, "Go"), answer("a1", "u1", "m1", hidden), answer("a2", "a1", "m1", text("Yes"))]
    (step,) = next(importing.claude_code(write(tmp_path / "s.jsonl", lines))).steps
    assert step.completion is not None
    assert (step.completion.reasoning, step.completion.content) == (None, "Yes")
    assert (step.completion.extra or {})["content"][0] == hidden


def test_a_printed_stream(tmp_path: Path) -> None:
    """``claude -p --output-format stream-json``: no chain, sub-agents by their call, totals at the end."""
    head = {"type": "system", "subtype": "init", "session_id": "s", "tools": ["Bash"], "model": "claude", "cwd": "/w"}

    def said(kind: str, message: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
        return {"type": kind, "message": message, "session_id": "s", "parent_tool_use_id": parent}

    def told(message_id: str, *blocks: Any) -> dict[str, Any]:
        return {"id": message_id, "role": "assistant", "model": "claude", "content": list(blocks), "usage": {}}

    lines = [
        head,
        said("assistant", told("m1", tool("t1", "Task", prompt="Look"))),
        said("user", {"role": "user", "content": "Look"}, "t1"),
        said("assistant", told("m2", text("Seen")), "t1"),
        said("user", {"role": "user", "content": result("t1", "Seen")}),
        said("assistant", told("m3", text("Done"))),
        {"type": "result", "subtype": "success", "total_cost_usd": 0.25, "num_turns": 2, "session_id": "s"},
    ]
    main, agent = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert [len(one.steps) for one in (main, agent)] == [2, 1]
    assert agent.parent_step_id == main.steps[0].id
    assert len(to_chat(main.steps[1])) == 2
    assert (main.metadata or {})["result"]["total_cost_usd"] == 0.25
    assert (main.environment or {})["tools"] == ["Bash"]


def test_a_session_that_is_still_written(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    shutil.copy(FILE, path)
    with path.open("ab") as file:
        file.write(b'{"type":"user","uuid":"x')
    found = importing.claude_code(path)
    assert len(next(found).steps) == 6
    assert list(found) == []
    assert any("last lines without their end" in what for what in found.report.dropped)


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ([{"uuid": "a"}], "$.type"),
        ([line("user", "u", None)], "$.message"),
        ([user("u", None, 3)], "$.message.content"),
        ([user("u", None, "x", timestamp="yesterday")], "$.timestamp"),
        ([answer("a", None, "m", text("x"), usage={"output_tokens": -1})], "$.message.usage.output_tokens"),
        ([answer("a", None, "m", "x")], "$.message.content[0]"),  # type: ignore[arg-type]
        ([line("assistant", "a", None, message={"role": "model", "parts": [{"text": "x"}]})], "$.message.content"),
    ],
)
def test_errors_name_the_place(lines: list[dict[str, Any]], path: str, tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", lines)
    with pytest.raises(rt.FormatError, match=r"line 1, ") as caught:
        list(importing.claude_code(file))
    assert f"{file}, line 1, {path}: expected " in str(caught.value)
    assert ", got " in str(caught.value)
    assert 'on_error="skip"' in str(caught.value)
    found = importing.claude_code(file, on_error="skip")
    list(found)
    assert len(found.skipped) >= 1


def test_lines_of_unknown_kinds_are_counted(tmp_path: Path) -> None:
    lines = [{"type": "new-thing", "x": 1}, user("u", None, "Go"), answer("a", "u", "m", text("Yes"))]
    found = importing.claude_code(write(tmp_path / "s.jsonl", lines))
    assert [len(one.steps) for one in found] == [1]
    assert found.report.dropped == {"lines of an unknown kind: new-thing": 1}
