"""Sessions that Qwen Code 0.24, Gemini CLI 0.61 and Kimi Code 2.1 wrote; texts that are not ours are replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.wire.chat_messages import to_chat

from .files import files_of, load


def session(name: str) -> tuple[rt.Trajectory, rt.Trajectory]:
    whole, bad = load(name)
    return whole, bad


def roles(step: rt.Step) -> list[str]:
    return [message["role"] for message in to_chat(step)]


@pytest.mark.parametrize(
    ("name", "usage", "ids"),
    [
        ("qwen_code", [(75561, 239), (76048, 9), (76084, 15)], True),
        ("gemini_cli", [(46531, 239), (47000, 9), (47262, 15)], False),
        ("kimi_code", [(88716, 213), (89249, 9), (85529, 15)], True),
    ],
)
def test_an_answer_is_a_step(name: str, usage: list[tuple[int, int]], ids: bool) -> None:
    whole, _ = session(name)
    assert [step.completion.content for step in whole.steps if step.completion] == [
        "listing",
        "all done",
        "resumed answer",
    ]
    first = whole.steps[0]
    assert first.completion is not None
    assert first.completion.reasoning == "hm"
    commands = [json.loads(call.arguments or "")["command"] for call in first.completion.tool_calls]
    assert commands == ["ls", "exit 3"]
    assert [(step.usage.input, step.usage.output) for step in whole.steps if step.usage] == usage
    assert [step.response_id is not None for step in whole.steps] == [ids] * 3
    assert whole.status == "completed"
    assert [run.step_id for run in whole.tool_runs] == [first.id] * 2


def test_qwen_code_prompts_and_failures() -> None:
    whole, bad = session("qwen_code")
    assert [roles(step) for step in whole.steps[1:]] == [
        ["user", "assistant", "tool", "tool"],
        ["user", "assistant", "tool", "tool", "assistant", "user"],
    ]
    assert [run.error is not None for run in whole.tool_runs] == [False, True]
    assert str(to_chat(whole.steps[1])[3]["content"]).startswith("text ")
    (failed,) = bad.steps
    assert failed.error is not None
    assert (bad.status, failed.error.type, failed.error.status) == ("failed", "BadRequestError", 400)
    assert (whole.steps[0].latency, whole.steps[0].time_to_first_token) == (0.714, 0.651)


def test_gemini_cli_prompts() -> None:
    whole, bad = session("gemini_cli")
    assert roles(whole.steps[1]) == ["user", "user", "assistant", "tool", "tool"]
    # When it goes on with a session, it sends results twice.
    assert roles(whole.steps[2]) == ["user", "user", "assistant", *["tool"] * 4, "assistant", "user"]
    assert not any(part.get("thought") for message in whole.steps[2].messages or () for part in message["parts"])
    assert (bad.steps, bad.status) == ([], "unknown")


def test_kimi_code_prompts_tools_and_failures() -> None:
    whole, bad = session("kimi_code")
    assert roles(whole.steps[1])[:1] == ["system"]
    assert roles(whole.steps[1])[-3:] == ["assistant", "tool", "tool"]
    assert [step.finish_reason for step in whole.steps] == ["tool_calls", "stop", "stop"]
    assert [tool["function"]["name"] for tool in whole.steps[0].tools or ()] == ["Agent"]
    (failed,) = bad.steps
    assert failed.error is not None
    assert (failed.error.status, failed.attempts[0].status, bad.status) == (400, 400, "failed")
    assert failed.model == "m"


@pytest.mark.parametrize("name", ["qwen_code", "gemini_cli", "kimi_code"])
def test_they_are_recognised_and_nothing_unknown_is_dropped(name: str) -> None:
    assert {importing.detect(path) for path in files_of(name)} == {name}
    found = load(name)
    list(found)
    assert found.report.dropped == {}


def test_qwen_code_is_not_claude_code() -> None:
    with pytest.raises(rt.FormatError, match="parts of Qwen Code"):
        list(load("claude_code", files_of("qwen_code")))


def test_qwen_code_branches_and_compressions(tmp_path: Path) -> None:
    def line(uuid: str, parent: str | None, kind: str, text: str, **more: Any) -> dict[str, Any]:
        message = {"role": "model" if kind == "assistant" else "user", "parts": [{"text": text}]}
        return {"uuid": uuid, "parentUuid": parent, "sessionId": "s", "type": kind, "message": message, **more}

    history = [{"role": "user", "parts": [{"text": "Summary"}]}]
    lines = [
        line("u1", None, "user", "one"),
        line("a1", "u1", "assistant", "first"),
        line("u2", "a1", "user", "two"),
        line("a2", "u2", "assistant", "second"),
        line("u3", "a1", "user", "another"),
        line("a3", "u3", "assistant", "third"),
        line("c", "a3", "system", "", subtype="chat_compression", systemPayload={"compressedHistory": history}),
        line("u4", "c", "user", "four"),
        line("a4", "u4", "assistant", "fourth"),
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    (one,) = importing.qwen_code(path)
    prompts = [[message["content"] for message in to_chat(step)] for step in one.steps]
    assert prompts[1:] == [["one", "first", "two"], ["one", "first", "another"], ["Summary", "four"]]


def said(name: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    answer = {"model": "gemini-3", "thoughts": []} if kind == "gemini" else {}
    return {"id": name, "timestamp": "2026-11-28T14:17:28Z", "type": kind, "content": text, **answer, **more}


HEAD = {
    "sessionId": "s",
    "projectHash": "h",
    "startTime": "2026-11-28T14:17:28Z",
    "lastUpdated": "2026-11-28T14:17:28Z",
}
LISTED = {"functionResponse": {"id": "c", "name": "ls", "response": {"output": "a.py"}}}
CALLS = {"toolCalls": [{"id": "c", "name": "ls", "args": {}, "result": [LISTED], "status": "success"}]}


def texts(step: rt.Step) -> list[Any]:
    return [message.get("content") for message in to_chat(step)]


def write(path: Path, *lines: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_gemini_cli_takes_messages_back(tmp_path: Path) -> None:
    lines = [HEAD, said("u1", "user", "one"), said("a1", "gemini", "first"), said("u2", "user", "two")]
    lines += [
        said("a2", "gemini", "second"),
        {"$rewindTo": "u2"},
        said("u3", "user", "other"),
        said("a3", "gemini", "c"),
    ]
    lines += [
        {"$set": {"messages": [said("u9", "user", "sum"), said("a9", "gemini", "up")]}},
        said("u4", "user", "four"),
    ]
    lines += [said("a4", "gemini", "d"), {"$rewindTo": "a9"}, said("u5", "user", "five"), said("a5", "gemini", "e")]
    lines += [{"$rewindTo": "unknown"}, said("u6", "user", "six"), said("a6", "gemini", "f")]
    found = load("gemini_cli", write(tmp_path / "s.jsonl", *lines))
    (one,) = found
    assert [texts(step) for step in one.steps[1:]] == [
        ["one", "first", "two"],
        ["one", "first", "other"],
        ["sum", "up", "four"],
        ["sum", "five"],
        ["six"],
    ]
    assert found.report.dropped == {}


@pytest.mark.parametrize("indent", [None, 2])
def test_gemini_cli_sessions_that_are_one_document(
    tmp_path: Path, indent: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of before lines were written: what tools gave stands at their calls alone."""
    tokens = {"input": 10, "output": 2, "cached": 0, "thoughts": 3, "tool": 5, "total": 20}
    talk = [said("u", "user", "list"), said("a", "gemini", "listing", tokens=tokens, **CALLS), said("i", "info", "x")]
    talk += [said("b", "gemini", "done"), said("v", "user", "more"), said("c", "gemini", "again")]
    folder = tmp_path / "h" / "chats"
    path = write(folder / "session-1.json")
    path.write_text(json.dumps({**HEAD, "messages": talk}, indent=indent))
    write(tmp_path / "h" / "logs.json", [{"sessionId": "s", "messageId": 0, "type": "user", "message": "list"}])
    assert importing.detect(path) == "gemini_cli"
    (one,) = load("gemini_cli", tmp_path)
    assert [texts(step) for step in one.steps] == [
        ["list"],
        ["list", "listing", "a.py"],
        ["list", "listing", "a.py", "done", "more"],
    ]
    assert one.steps[0].usage == rt.Usage(input=15, output=5, cache_read=0, reasoning=3)
    # Gone on with: its lines are behind a copy.
    write(folder / "session-1.jsonl", HEAD, *talk, said("w", "user", "on"), said("d", "gemini", "end"))
    found = load("gemini_cli", tmp_path)
    (whole,) = found
    assert [texts(step) for step in whole.steps[:3]] == [texts(step) for step in one.steps]
    assert len(whole.steps) == 4
    assert found.report.dropped["documents of sessions that go on in a file of lines"] == 1
    assert "documents of sessions that go on in a file of lines" in caplog.text


def test_gemini_cli_results_that_a_message_has_come_once(tmp_path: Path) -> None:
    result = {**said("r", "user", ""), "content": [LISTED]}
    lines = [
        HEAD,
        said("u", "user", "list"),
        said("a", "gemini", "listing", **CALLS),
        result,
        said("b", "gemini", "done"),
    ]
    (one,) = load("gemini_cli", write(tmp_path / "s.jsonl", *lines))
    assert texts(one.steps[1]) == ["list", "listing", "a.py"]


def test_gemini_cli_agents_beside_a_session_name_it(tmp_path: Path) -> None:
    talk = [said("u", "user", "go"), said("a", "gemini", "gone")]
    write(tmp_path / "chats" / "session-1.jsonl", HEAD, *talk)
    write(tmp_path / "chats" / "s" / "sub.jsonl", {**HEAD, "sessionId": "sub", "kind": "subagent"}, *talk)
    parent, child = load("gemini_cli", tmp_path)
    assert (child.id, child.name, child.parent_id, child.episode_id) == ("sub", "subagent", "s", "s")
    assert (parent.id, parent.name, parent.parent_id, parent.episode_id) == ("s", "gemini-cli", None, "s")


def kimi(*spoken: Any) -> list[dict[str, Any]]:
    """A session of Kimi Code: prompts of the user as texts, its other lines as they are."""
    lines: list[dict[str, Any]] = [{"type": "metadata", "protocol_version": "1.5", "created_at": 1}]
    lines.append({"type": "profile.bind", "systemPrompt": "system"})
    for at, one in enumerate(spoken):
        if not isinstance(one, str):
            lines.append(one)
            continue
        lines.append(injected(f"for {one}", ownerPromptId=f"p{at}"))
        lines.append(injected(one, kind="user"))
        lines[-1]["message"]["id"] = f"p{at}"
        lines.append(injected("date"))
        events = [{"type": "step.begin"}, {"type": "content.part", "part": {"type": "text", "text": one.upper()}}]
        lines.append({"type": "llm.request", "kind": "loop", "model": "m"})
        events.append({"type": "step.end", "finishReason": "end_turn"})
        lines += [{"type": "context.append_loop_event", "event": event} for event in events]
    return lines


def injected(text: str, kind: str = "injection", **origin: Any) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": text}], "origin": {"kind": kind, **origin}}
    return {"type": "context.append_message", "message": message}


TURN_A, TURN_B = ["for a", "a", "date", "A"], ["for b", "b", "date", "B"]
SUMMED = {"type": "context.apply_compaction", "summary": "sum", "contextSummary": "It is so: sum", "compactedCount": 8}
KIMI: dict[str, tuple[list[Any], list[str]]] = {
    "one turn back": (["a", "b", {"type": "context.undo", "count": 1}], TURN_A),
    "two turns back": (["a", "b", {"type": "context.undo", "count": 2}], []),
    "more turns than there are": (["a", "b", {"type": "context.undo", "count": 3}], TURN_A + TURN_B),
    "emptied": (["a", "b", {"type": "context.clear"}], []),
    "summed up": (["a", "b", SUMMED | {"keptUserMessageCount": 2}], ["a", "b", "It is so: sum"]),
    "summed up, one kept": (["a", "b", SUMMED | {"keptUserMessageCount": 1}], ["b", "It is so: sum"]),
    "summed up, shortened": (
        ["a", "b", SUMMED | {"keptUserMessageCount": 2, "keptHeadUserMessageCount": 1}],
        ["a", "b", "It is so: sum"],
    ),
    "summed up by an older release": (["a", "b", SUMMED | {"compactedCount": 6}], ["It is so: sum", "date", "B"]),
    "summed up as a message": (
        ["a", "b", {"type": "context.apply_compaction", "summary": {"role": "user", "content": "s"}, "count": 8}],
        ["s"],
    ),
    "not back behind a summary": (
        ["a", "b", SUMMED | {"keptUserMessageCount": 1}, {"type": "context.undo", "count": 1}],
        ["b", "It is so: sum"],
    ),
    "a mode that was left": (["a", injected("swarm", variant="swarm_mode"), {"type": "swarm_mode.exit"}], TURN_A),
}


@pytest.mark.parametrize("case", KIMI)
def test_kimi_code_takes_turns_back_and_sums_them_up(case: str, tmp_path: Path) -> None:
    spoken, prompt = KIMI[case]
    lines = kimi(*spoken, {"type": "llm.request", "kind": "compaction", "messageCount": 99}, "next")
    found = load("kimi_code", write(tmp_path / "s" / "agents" / "main" / "wire.jsonl", *lines))
    (one,) = found
    assert texts(one.steps[-1]) == ["system", *prompt, "for next", "next", "date"]
    assert len(one.steps) == len([text for text in spoken if isinstance(text, str)]) + 1
    assert found.report.dropped == {}
