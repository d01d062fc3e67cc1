"""NeMo-Gym's rollouts, without NeMo-Gym; with it: tests/trainers/python312."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras, recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE


def test_a_tool_agent() -> None:
    runs = recorded.tool_agent()
    rows = export.nemo_gym(runs)
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows] == [(at // 3, at % 3) for at in range(6)]
    assert [row["reward"] for row in rows] == [run.reward for run in runs]
    row, run = rows[0], runs[0]
    assert [item["role"] for item in row["responses_create_params"]["input"]] == ["system", "user"]
    assert row["responses_create_params"]["tools"][0]["name"] == "add"
    output = row["response"]["output"]
    assert [item["type"] for item in output] == [
        "message", "function_call", "function_call_output", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert output[2] == {
        "type": "function_call_output", "call_id": output[1]["call_id"], "output": "3", "status": "completed",
    }  # fmt: skip
    trained = [item for item in output if "generation_token_ids" in item]
    assert [item["type"] for item in trained] == ["function_call", "function_call", "message"]
    for item, step in zip(trained, run.steps, strict=True):
        assert item["prompt_token_ids"] == step.prompt_token_ids.tolist()  # type: ignore[union-attr]
        assert item["generation_token_ids"] == step.completion_token_ids.tolist()  # type: ignore[union-attr]
        assert item["generation_log_probs"] == step.logprobs.tolist()  # type: ignore[union-attr]


@PROFILE
@given(traces())
def test_prompts_repeat_what_came_before(trace: Trace) -> None:
    """NeMo-RL asserts it, and stops where they do not."""
    run = trajectory_of(trace)
    for row, sequence in zip(export.nemo_gym(run), run.sequences(), strict=True):
        seen: list[int] = []
        for item in row["response"]["output"]:
            assert item["prompt_token_ids"][: len(seen)] == seen
            seen = item["prompt_token_ids"] + item["generation_token_ids"]
        assert seen == sequence.token_ids.tolist()


def test_reasoning_is_an_item() -> None:
    (row,) = export.nemo_gym(recorded.thinking()[0], report=ExportReport())[:1]
    assert row["response"]["output"][0]["summary"][0]["text"] == "thought 1"
    assert "generation_token_ids" not in row["response"]["output"][0]


def test_a_result_is_kept_where_the_server_holds_the_messages_before_it() -> None:
    result = {"type": "function_call_output", "call_id": "c", "output": "42"}
    run = trajectory_of(extras.TRACE)
    sent: list[tuple[list[Any], dict[str, Any]]] = [
        ([{"role": "user", "content": "Go."}], {}), ([result], {"previous_response_id": "r"}),
    ]  # fmt: skip
    run.steps = [
        replace(step, protocol="openai.responses", messages=messages, sampling=sampling, completion=rt.Completion())
        for step, (messages, sampling) in zip(run.steps, sent, strict=True)
    ]
    (row,) = export.nemo_gym(run, report=ExportReport())
    assert [item.get("output") for item in row["response"]["output"]] == [None, "42", None]


def test_what_is_left_out() -> None:
    unscored, blind = trajectory_of(extras.TRACE, None), trajectory_of(extras.TRACE)
    blind.steps = [replace(step, logprobs=None) for step in blind.steps]
    report = ExportReport()
    assert export.nemo_gym([unscored, blind], report=report) == []
    assert report.dropped == {"trajectories without a reward": 1, "rows without logprobs": 1}
    report = ExportReport()
    export.nemo_gym(recorded.images(), report=report)
    assert report.dropped == {"parts of messages that are no text": 1}


def test_a_failed_run_is_masked() -> None:
    """As NeMo-Gym 0.7 has it: its reward measures the environment, or the agent's own code."""
    good, failed, aborted = (trajectory_of([([1], [2], [-0.5])], reward=1.0) for _ in range(3))
    failed.status, failed.error = "failed", rt.ErrorInfo(type="OSError", message="disk full")
    aborted.status = "aborted"
    rows = export.nemo_gym([good, failed, aborted])
    assert [row["mask_sample"] for row in rows] == [False, True, True]
    assert [row["failure_kind"] for row in rows] == [None, "agent_run_error", "rollout_trace:aborted"]
    assert [row["failure_reason"] for row in rows] == [None, "OSError: disk full", "aborted"]
