"""Each field of a trajectory, a step and a tool run comes back from an export that is read again, or is counted."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import export, importing
from rollout_trace.data.extras import PolicySpan, SamplingMask, TopTokens
from rollout_trace.data.model import Attempt, Completion, Cost, ErrorInfo, TokenIssue, ToolCall, Usage
from rollout_trace.report import ExportReport
from tests.export.plain import plain

FAILURE = ErrorInfo(type="E", message="m", code="c", status=500)
BEGAN = datetime(2026, 11, 28, 12, tzinfo=timezone.utc)
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "add"}


def full_step(at: int, **fields: Any) -> rt.Step:
    """A step with a value in every field that its neighbours allow."""
    ids = np.array([7, 8, 9], np.int32)
    when = BEGAN + timedelta(seconds=at)
    values: dict[str, Any] = {
        "id": f"c{at}.0", "call_id": f"c{at}", "index": at, "agent": "solver", "protocol": "openai.chat",
        "engine": "vllm", "model": "asked", "response_model": "answered", "response_id": f"chatcmpl-{at}",
        "messages": [USER], "tools": TOOLS,
        "sampling": {"temperature": 1.0, "top_p": 0.9, "max_completion_tokens": 5, "stop": ["x"], "seed": 3},
        "completion": Completion(content="so", reasoning="thinking"), "finish_reason": "stop", "stop_reason": "x",
        "prompt_token_ids": np.array([1, 2], np.int32), "completion_token_ids": ids, "token_source": "engine",
        "logprobs": np.array([-0.125, -0.5, -0.1234567], np.float32), "logprobs_mode": "processed",
        "usage": Usage(input=2, output=3, cache_read=1, cache_write=1, reasoning=2, extra={"x": 1}),
        "cost": Cost(amount=0.25, currency="EUR", source="provider"), "started_at": when, "latency": 0.5,
        "time_to_first_token": 0.125,
        "attempts": (
            Attempt(started_at=when, duration=0.25, status=500, error=FAILURE),
            Attempt(started_at=when, duration=0.25, status=200, request_id="r", content_type="application/json"),
        ),
        "reward": 0.5, "advantage": [0.5, 0.25, -1.0], "policy_version": "v7",
        "policy_spans": (PolicySpan(0, 2, "v7"), PolicySpan(2, 3, "v8")), "metadata": {"a": {"b": [1]}},
        "extra": {"system_fingerprint": "f"},
    }  # fmt: skip
    return rt.Step(**{**values, **fields})


def full() -> list[rt.Trajectory]:
    """A run with a tool, a failed call and a sub-agent of another group."""
    call = ToolCall(id="t1", name="add", arguments='{"a": 1}')
    first = full_step(0, completion=Completion(content="calling", tool_calls=(call,)), finish_reason="tool_calls")
    ids = np.array([1, 2, 7, 8, 9, 4], np.int32)
    messages = [USER, {"role": "assistant", "content": "calling", "tool_calls": [
        {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "3"}]  # fmt: skip
    failed = full_step(
        1, messages=messages, completion=None, prompt_token_ids=None, completion_token_ids=None, logprobs=None,
        token_source=None, logprobs_mode=None, usage=None, finish_reason=None, stop_reason=None, policy_spans=None,
        status="error", error=ErrorInfo(type="RateLimitError", message="slow", code="rate", status=429), advantage=None,
        reward=None, response_model=None, cost=None,
    )  # fmt: skip
    last = full_step(2, messages=messages, prompt_token_ids=ids, trainable=True)
    runs = [rt.ToolRun(tool_call_id="t1", name="add", arguments='{"a": 1}', result="3", started_at=BEGAN, duration=0.5,
                       step_id=first.id)]  # fmt: skip
    shared: dict[str, Any] = {
        "episode_id": "run", "status": "truncated", "stop_reason": "max_steps", "started_at": BEGAN,
        "ended_at": BEGAN + timedelta(seconds=9), "environment": {"python": "3.11"}, "metadata": {"k": [{"x": 1}]},
        "rollout_index": 3,
    }  # fmt: skip
    outer = rt.Trajectory(
        id="run", name="solver", group_id="g", steps=[first, failed, last], tool_runs=runs,
        task=rt.Task(id="t/1", data={"q": [1, "two"]}), error=FAILURE, **shared,
    )  # fmt: skip
    inner = rt.Trajectory(
        id="inner", name="searcher", group_id="other group", parent_id="run", parent_step_id=first.id,
        steps=[full_step(3, index=0)], task=rt.Task(id="t/2", data="x"), **shared,
    )  # fmt: skip
    for one in (outer, inner):
        one.reward, one.rewards, one.metrics = 0.75, {"format": 0.5}, {"n": 2.0}
    return [outer, inner]


# What has no place, is not counted, and is said on docs/import.md.
NEVER = {"_sealed", "protocol", "token_texts", "metadata", "messages"}


def back(kind: str, runs: list[rt.Trajectory], folder: Path, report: ExportReport) -> dict[str, rt.Trajectory]:
    if kind == "atif":
        export.write_atif(folder, runs, report=report)
    else:
        export.write_verifiers(folder / "traces.jsonl", runs, report=report)
    return {one.id: one for one in importing.SOURCES[kind].importer(folder)}


def values_of(item: Any, *but: str) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(item) if field.name not in but]
    return {name: plain(getattr(item, name)) for name in names if not name.startswith("_")}


@pytest.mark.parametrize("kind", ["atif", "verifiers"])
def test_every_field_of_a_step_comes_back(kind: str, tmp_path: Path) -> None:
    runs, report = full(), ExportReport()
    found = back(kind, runs, tmp_path, report)
    for run in runs:
        steps = {step.id: step for step in found[run.id].steps}
        assert list(steps) == [step.id for step in run.steps]
        for step in run.steps:
            same = steps[step.id]
            assert values_of(same, *NEVER) == values_of(step, *NEVER), step.id
            assert (same.metadata or {}).items() >= (step.metadata or {}).items()
    assert set(report.dropped) <= {"steps left out: error"}  # of tokens: verifiers' graph


@pytest.mark.parametrize("kind", ["atif", "verifiers"])
def test_every_field_of_a_trajectory_comes_back(kind: str, tmp_path: Path) -> None:
    runs = full()
    found = back(kind, runs, tmp_path, ExportReport())
    for run in runs:
        same = found[run.id]
        assert values_of(same, "steps", "tool_runs", "metadata") == values_of(run, "steps", "tool_runs", "metadata")
        assert (same.metadata or {}).items() >= (run.metadata or {}).items()
        assert [values_of(one) for one in same.tool_runs] == [values_of(one) for one in run.tool_runs]


RARE: dict[str, Any] = {
    "top_logprobs": [[{"token": "a", "logprob": -0.5}], [], []],
    "top_tokens": TopTokens(np.array([[7, 1]] * 3), np.full((3, 2), -0.5, np.float32)),
    "prompt_logprobs": np.array([np.nan, -1.0], np.float32),
    "sampling_mask": SamplingMask(np.array([7, 8, 9], np.int32), np.array([1, 1, 1], np.int32)),
    "routed_experts": np.zeros((4, 2, 2), np.uint8),
    "request_bytes": b"{}",
    "response_bytes": b"{}",
    "token_issue": TokenIssue(code="length_mismatch", message="no"),
}


@pytest.mark.parametrize("kind", ["atif", "verifiers"])
@pytest.mark.parametrize("name", RARE)
def test_what_has_no_place_is_counted(kind: str, name: str, tmp_path: Path) -> None:
    (run, _), report = full(), ExportReport()
    run.steps[2] = replace(run.steps[2], **{name: RARE[name]})
    found = back(kind, [run], tmp_path, report)["run"].steps[2]
    kept = plain(getattr(found, name)) == plain(RARE[name])
    assert kept or report.dropped, name


def test_tools_that_not_every_step_had_are_counted(tmp_path: Path) -> None:
    (run, _), report = full(), ExportReport()
    run.steps[2] = replace(run.steps[2], tools=None)
    back("atif", [run], tmp_path, report)
    assert report.dropped == {"tools by step, where not all steps have all": 1}
    assert report.metadata == set(report.dropped)
