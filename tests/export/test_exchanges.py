"""A line for each HTTP exchange: what was sent and answered, failures too, and ids that can be decoded again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from openai import APIConnectionError, OpenAI

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.tokens import same_array
from rollout_trace.export import ExportReport
from rollout_trace.testing import Fault, ScriptedServer
from rollout_trace.wire import decode
from tests.consumers import closed_exchange, recorded


def decoded(row: dict[str, Any]) -> list[rt.Step]:
    request, response = json.dumps(row["request"]["body"]).encode(), json.dumps(row["response"]["body"]).encode()
    return decode(
        "openai.chat", request, response, content_type="application/json", status=row["response"]["status_code"]
    )


@pytest.mark.parametrize("make", recorded.EVERY, ids=lambda make: make.__name__)
def test_the_bodies_are_decoded_to_the_same_ids(make: Callable[[], list[rt.Trajectory]]) -> None:
    runs = make()
    report = ExportReport()
    rows = export.exchanges(runs, report=report)
    steps = [step for run in runs for step in run.steps]
    # A retried call has a row for each attempt: the last one has the answer.
    last = [row for row in rows if row["metadata"]["attempt"] == row["metadata"]["attempts"] - 1]
    assert [name for row in last for name in row["metadata"]["step_ids"]] == [step.id for step in steps]
    waiting = iter(steps)
    for row in last:
        sent = [next(waiting) for _ in row["metadata"]["step_ids"]]
        if row["response"]["status_code"] != 200 or any(not is_whole(step) for step in sent):
            continue
        for again, step in zip(decoded(row), sent, strict=True):
            for field in ("completion_token_ids", "logprobs", "prompt_token_ids"):
                assert same_array(getattr(again, field), getattr(step, field)), field


@pytest.mark.parametrize("make", recorded.EVERY, ids=lambda make: make.__name__)
def test_lines_have_no_other_fields(make: Callable[[], list[rt.Trajectory]], tmp_path: Path) -> None:
    count = export.write_exchanges(tmp_path / "llm_trajectory.jsonl", make(), report=ExportReport())
    lines = (tmp_path / "llm_trajectory.jsonl").read_bytes().splitlines()
    assert len([closed_exchange.read(line) for line in lines]) == count
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        closed_exchange.read(lines[0].replace(b'{"request":{', b'{"request":{"other":1,'))


def is_whole(step: rt.Step) -> bool:
    """Ids of the prompt stand beside choices with ids; a NaN is no number of JSON."""
    return step.completion_token_ids is not None and (step.logprobs is None or not np.isnan(step.logprobs).any())


def test_times_usage_and_ids() -> None:
    run = recorded.tool_agent()[0]
    rows = export.exchanges(run)
    for row, step in zip(rows, run.steps, strict=True):
        (attempt,) = step.attempts
        assert step.usage is not None
        assert (row["response"]["status_code"], row["status"], row["error"]) == (200, "ok", None)
        assert row["usage"] == {"input": step.usage.input, "output": step.usage.output}
        assert row["response"]["body"]["usage"]["total_tokens"] == (step.usage.input or 0) + (step.usage.output or 0)
        assert attempt.started_at is not None
        assert row["request"]["timestamp"] == attempt.started_at.isoformat()
        assert row["duration_ms"] == pytest.approx((attempt.duration or 0) * 1000)
        assert row["metadata"]["trajectory_id"] == run.id
        assert (row["metadata"]["bodies"], row["metadata"]["reward"]) == ("chat", run.reward)
    assert rows[0]["request"]["body"]["tools"] == recorded.TOOLS
    assert rows[0]["request"]["path"] == "/v1/chat/completions"
    assert "token_ids" not in export.exchanges(run, tokens=False)[0]["response"]["body"]["choices"][0]


def test_failures_have_their_status() -> None:
    rows = export.exchanges(recorded.failed_steps(), report=ExportReport())
    found = [(row["status"], row["response"]["status_code"]) for row in rows]
    assert found == [
        ("ok", 200), ("error", 500), ("abandoned", 499), ("ok", 200), ("ok", 200), ("superseded", 200), ("cached", 200),
        ("ok", 200),
    ]  # fmt: skip
    assert rows[1]["response"]["body"]["error"] == rows[1]["error"] != None  # noqa: E711 - both in one line
    assert rows[2]["metadata"]["http_status"] == 200


def test_what_came_before_a_stream_broke_off_is_in_the_body() -> None:
    with ScriptedServer(lambda _: Fault("answer", cut_after=4)) as server:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            rt.wrap_openai(client, engine="vllm")
            with rt.trajectory() as run, pytest.raises(APIConnectionError):
                list(
                    client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "Go."}], stream=True
                    )
                )
    (step,), (row,) = run.steps, export.exchanges(run)
    assert (row["status"], row["response"]["status_code"]) == ("error", 0)
    body = row["response"]["body"]
    assert body["error"] == row["error"]
    assert body["choices"][0]["message"]["content"] == step.completion.content == "ans"  # type: ignore[union-attr]
    assert body["choices"][0]["token_ids"] == step.completion_token_ids.tolist()  # type: ignore[union-attr]


def test_usage_is_that_of_the_calls_that_were_made() -> None:
    """An answer from a framework's cache has the usage of the call that filled it."""
    (run,) = recorded.failed_steps()
    rows = export.exchanges(run, report=ExportReport())
    assert [row["status"] for row in rows if row["usage"] is None] == ["error", "abandoned", "cached"]
    assert [row["status"] for row in rows if not row["response"]["body"].get("usage")] == [
        "error", "abandoned", "cached",
    ]  # fmt: skip


def test_a_retried_call_is_an_exchange_for_each_attempt() -> None:
    with ScriptedServer([Fault(status=503), "done"]) as server:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=1) as client:
            rt.wrap_openai(client, engine="vllm")
            with rt.trajectory() as run:
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}])
    first, second = export.exchanges(run)
    assert (first["response"]["status_code"], second["response"]["status_code"]) == (503, 200)
    assert (first["metadata"]["attempt"], second["metadata"]["attempt"]) == (0, 1)
    assert "error" in first["response"]["body"]
    assert (first["usage"], second["usage"] is None) == (None, False)
    assert first["request"]["body"] == second["request"]["body"]


def test_choices_of_a_call_are_one_exchange() -> None:
    first, second = export.exchanges(recorded.several_choices())
    assert [choice["index"] for choice in first["response"]["body"]["choices"]] == [0, 1]
    assert (len(first["metadata"]["step_ids"]), len(second["metadata"]["step_ids"])) == (2, 1)


def test_bodies_that_were_kept_are_as_they_were() -> None:
    with ScriptedServer(["yes"]) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        rt.wrap_openai(client, engine="vllm", keep_bytes=True)
        with rt.trajectory() as run:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}], seed=3)
    (row,) = export.exchanges(run)
    assert row["metadata"]["bodies"] == "recorded"
    assert row["request"]["body"] == json.loads(run.steps[0].request_bytes or b"")
    assert row["response"]["body"] == json.loads(run.steps[0].response_bytes or b"")
    assert row["request"]["path"] == "/chat/completions"


def test_a_call_that_was_not_seen_on_the_wire_has_no_times() -> None:
    run = rt.Trajectory(steps=[rt.Step(id="a", call_id="a", completion=rt.Completion(content="b"))])
    (row,) = export.exchanges(run)
    assert "timestamp" not in row["request"]
    assert "duration_ms" not in row
    assert row["response"]["body"]["choices"][0]["message"]["content"] == "b"


def test_a_file_has_a_line_each(tmp_path: Path) -> None:
    runs = recorded.tool_agent()
    assert export.write_exchanges(tmp_path / "llm_trajectory.jsonl", runs) == 18
    lines = [json.loads(line) for line in (tmp_path / "llm_trajectory.jsonl").read_text().splitlines()]
    assert lines == export.exchanges(runs)
    logprobs = [one["logprob"] for one in lines[0]["response"]["body"]["choices"][0]["logprobs"]["content"]]
    assert np.array_equal(np.array(logprobs, np.float32), runs[0].steps[0].logprobs)  # type: ignore[arg-type]
