"""Sessions that Claude Code 2.1.332 and Codex 0.171 wrote, beside what their server was asked: tests/clis/pack.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.importing.imported import Imported

DATA = Path(__file__).parent.parent / "data" / "clis"


def asked(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def imported(name: str) -> tuple[Imported, list[rt.Trajectory], list[rt.Step]]:
    source = name.partition("_own")[0]
    found = importing.SOURCES[source].importer(DATA / name)
    made = list(found)
    return found, made, [step for one in made for step in one.steps]


def request(step: rt.Step) -> dict[str, Any]:
    fields = {"messages": step.messages, "tools": step.tools, "sampling": step.sampling, "model": step.model}
    return {name: list(value) if isinstance(value, list) else value for name, value in fields.items()}


def test_claude_code_steps_are_what_was_sent() -> None:
    """Messages, system prompt, tools and parameters, with each mark for the cache, from the files alone."""
    found, _, steps = imported("claude_code")
    sent = asked("claude_code")
    assert sum(len(step.attempts) for step in steps) == len(sent) - 1  # The call that summed up is in no file.
    for step in steps:
        status = step.error.status if step.error else 200
        same = [one for one in sent if (one["response_id"], one["status"]) == (step.response_id, status)]
        assert request(step) in [{name: one[name] for name in request(step)} for one in same]
        assert "messages_source" not in (step.metadata or {})
    assert "system prompts, tools and sampling parameters" not in found.report.missing
    assert not any("unknown kind" in what or "attachments" in what for what in found.report.dropped)


def test_claude_code_attempts_have_their_errors() -> None:
    _, made, steps = imported("claude_code")
    again, cut = (step for step in steps if len(step.attempts) == 2)
    (failed,) = (step for step in steps if step.status == "error")
    assert [one.status for one in again.attempts] == [529, 200]
    assert [one.error and (one.error.type, one.error.message) for one in again.attempts] == [
        ("overloaded_error", "529 Overloaded"),
        None,
    ]
    assert again.started_at == again.attempts[0].started_at
    assert [one.status for one in cut.attempts] == [None, 200]
    assert failed.error is not None
    assert (failed.error.type, failed.error.status, failed.attempts[-1].status) == ("invalid_request_error", 400, 400)
    assert [one.status for one in made].count("failed") == 1


def test_claude_code_without_its_requests_falls_back_to_the_lines(tmp_path: Path) -> None:
    """A request of which a message is lost has all but the messages as they were sent; the others are whole."""
    shutil.copytree(DATA / "claude_code", tmp_path / "s")
    (main,) = (path for path in tmp_path.rglob("*.jsonl") if path.with_suffix("").is_dir())
    lines = main.read_text(encoding="utf-8").splitlines()
    blob = next(at for at, line in enumerate(lines) if '"type":"api-request-blob"' in line)
    main.write_text("\n".join(lines[:blob] + lines[blob + 1 :]) + "\n", encoding="utf-8")
    found = importing.claude_code(main)
    first = next(found).steps[0]
    list(found)
    assert (first.metadata or {})["messages_source"] == "rebuilt"
    assert first.tools is not None
    assert (first.sampling or {})["max_tokens"] == 128000
    assert [message["role"] for message in first.messages or ()] == ["system", "user"]
    assert found.report.noted["requests of which a message is not in the file: rebuilt"] >= 1


def plain(items: Any) -> list[Any]:
    return [
        {name: value for name, value in one.items() if name not in ("id", "type", "status", "annotations")}
        for one in items
        if one.get("type") != "additional_tools"
    ]


@pytest.mark.parametrize("name", ["codex", "codex_own"])
def test_codex_steps_are_what_was_sent(name: str) -> None:
    _, _, steps = imported(name)
    sent = {one["response_id"]: one for one in asked(name) if one["status"] != 503}
    assert len(steps) == len(sent)
    for step in steps:
        expected = plain(sent[step.response_id]["messages"])
        if not step.trainable:
            expected.pop()  # What asked for the summary.
        read = plain(step.messages)
        # The instructions of models that Codex does not know are not sent as they stand in the file.
        own = sum(one["role"] == "system" for one in read[:1])
        assert read[own:] == expected[own:]
        given = [tool for one in sent[step.response_id]["messages"] for tool in one.get("tools", ())]
        assert (step.tools or []) == given
    assert [step.status for step in steps].count("error") == 1


@pytest.mark.parametrize("name", ["codex", "codex_own"])
def test_codex_sub_agents_forks_failures_and_compactions(name: str) -> None:
    found, made, steps = imported(name)
    children = [one for one in made if one.parent_step_id is not None]
    assert [len(one.steps) for one in children] == [2, 2]
    (caller,) = {one.parent_step_id for one in children}
    (spawned,) = (step for step in steps if step.id == caller)
    assert spawned.completion is not None
    assert [call.name for call in spawned.completion.tool_calls] == ["spawn_agent"] * 2
    (failed,) = (one for one in made if one.status == "failed")
    assert failed.steps[0].error is not None
    assert failed.steps[0].error.type == "invalid_request_error"
    assert found.report.missing.get("calls that summed up compacted conversations") is None
    assert [step.completion.content for step in steps if step.completion and not step.trainable] == ["It was listed."]


def test_a_codex_fork_without_its_parent_says_so(tmp_path: Path) -> None:
    (fork,) = (path for path in (DATA / "codex").rglob("*.jsonl") if '"history_base"' in path.read_text("utf-8"))
    shutil.copy(fork, tmp_path)
    found = importing.codex(tmp_path)
    (one,) = found
    assert len(one.steps) == 1
    assert found.report.noted["sessions that go on from another one, which is not in this import"] == 1
