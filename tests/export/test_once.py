"""What requests repeat is converted once, and what it loses is counted once; what differs is counted each time."""

from __future__ import annotations

from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.data.model import Completion, Step
from rollout_trace.export import ExportReport, _conversations, atif, chat, verifiers
from rollout_trace.wire import chat_messages as _messages

PROTOCOLS = ("openai.chat", "anthropic.messages", "openai.responses")


def part(name: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": name}, {"type": "search_result", "found": name}]}


def talk(protocol: str, turns: int) -> rt.Trajectory:
    """An agent that only appends; the messages of all its requests are the same objects."""
    sent: list[Any] = [{"role": "user", "content": "0"}]
    steps = []
    for at in range(turns):
        answer = Completion(content=f"a{at}")
        steps.append(Step(id=str(at), call_id=str(at), protocol=protocol, messages=list(sent), completion=answer))
        said: dict[str, Any] = {"role": "assistant", "content": f"a{at}"}
        if protocol == "openai.responses":
            said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"a{at}"}]}
        sent += [said, {"role": "user", "content": f"{at + 1}"}]
    return rt.Trajectory(steps=steps)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("exporter", [chat, atif, verifiers])
def test_each_message_is_converted_once(monkeypatch: pytest.MonkeyPatch, protocol: str, exporter: Any) -> None:
    made = 0
    convert = _messages.convert

    def counted(*given: Any) -> list[dict[str, Any]]:
        nonlocal made
        made += 1
        return convert(*given)

    monkeypatch.setattr(_conversations, "convert", counted)
    (found,) = exporter(talk(protocol, 40))
    assert made == 79
    if exporter is chat:
        assert [message["content"] for message in found["messages"]][:3] == ["0", "a0", "1"]
        assert len(found["messages"]) == 80


@pytest.mark.parametrize("exporter", [chat, atif, verifiers])
@pytest.mark.parametrize("options", [{}, {"per": "step"}])
def test_separate_conversations_each_count_what_they_lose(exporter: Any, options: Any) -> None:
    steps = [
        Step(
            id=str(at), call_id=str(at), protocol="anthropic.messages", messages=[part(str(at))],
            completion=Completion(content="b"),
        )
        for at in range(5)
    ]  # fmt: skip
    report = ExportReport()
    exporter(rt.Trajectory(steps=steps), report=report, **(options if exporter is chat else {}))
    assert report.dropped["content parts without a place in a chat message: search_result"] == 5


@pytest.mark.parametrize("exporter", [chat, atif, verifiers])
def test_equal_messages_count_once(exporter: Any) -> None:
    """Also where they are not the same object, as in steps that somebody made."""
    steps = [
        Step(
            id=str(at), call_id=str(at), protocol="anthropic.messages", completion=Completion(content="b"),
            messages=[part("a"), *([{"role": "user", "content": "on"}] * at)], tools=[{"type": "bash_20250124"}],
        )
        for at in range(3)
    ]  # fmt: skip
    report = ExportReport()
    exporter(rt.Trajectory(steps=steps), report=report)
    report.dropped.pop("steps left out: ids_missing", None)
    assert report.dropped == {
        "content parts without a place in a chat message: search_result": 1,
        "tools that the provider runs itself: bash_20250124": 1,
    }


def test_a_conversation_that_the_server_holds_counts_once_for_each() -> None:
    steps = [
        Step(
            id=str(at), call_id=str(at), protocol="openai.responses", messages=[{"role": "user", "content": str(at)}],
            completion=Completion(content="b"), sampling={"previous_response_id": before},
        )
        for at, before in enumerate(["gone", "gone", "lost"])
    ]  # fmt: skip
    report = ExportReport()
    chat(rt.Trajectory(steps=steps), report=report)
    assert report.dropped == {"requests whose first messages the server holds": 2}
