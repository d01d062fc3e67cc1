"""One call is one step, whatever spans its writer makes of it: files as openinference and logfire wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_trace import export, importing

SPANS = Path(__file__).parents[1] / "data" / "spans"
ONE = ("openinference-responses", "logfire-responses", "logfire-chat-stream", "logfire-responses-stream")


@pytest.mark.parametrize("name", ONE)
def test_one_call_is_one_step(name: str) -> None:
    """Of the Responses API each item is a message of its span; a stream of logfire is a span and a log."""
    (run,) = importing.otel(SPANS / f"{name}.jsonl")
    (step,) = run.steps
    assert step.completion is not None
    assert step.completion.content in ("calling", [{"type": "text", "text": "calling"}])
    (call,) = step.completion.tool_calls
    assert (call.name, json.loads(call.arguments or "")) == ("add", {"a": 1})
    assert step.latency is not None
    assert step.latency > 0
    (row,) = export.chat(run)
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]


def test_choices_stay_steps() -> None:
    (run,) = importing.otel(SPANS / "openinference-chat-n.jsonl")
    assert [(step.choice, step.call_id == run.steps[0].call_id) for step in run.steps] == [(0, True), (1, True)]


@pytest.mark.parametrize("backwards", [False, True])
def test_streams_of_the_same_request_are_told_apart(backwards: bool, tmp_path: Path) -> None:
    """By their trace; a log alone is a call."""
    lines = [json.loads(line) for line in (SPANS / "logfire-chat-stream.jsonl").read_text().splitlines()]
    spans = []
    for number in (1, 2):
        for line in lines:
            copy = json.loads(json.dumps(line).replace("calling", f"answer {number}"))
            copy["context"]["trace_id"] = f"0x{number:032x}"
            copy["context"]["span_id"] = f"0x{number:08x}{line['context']['span_id'][-8:]}"
            spans.append(copy)
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(map(json.dumps, spans[::-1] if backwards else spans)) + "\n")
    found = {run.id[-1]: run.steps for run in importing.otel(path)}
    said = {name: [step.completion and step.completion.content for step in steps] for name, steps in found.items()}
    assert said == {"1": ["answer 1"], "2": ["answer 2"]}
    path.write_text(json.dumps(lines[1]) + "\n")
    ((step,),) = [run.steps for run in importing.otel(path)]
    assert step.completion is not None
