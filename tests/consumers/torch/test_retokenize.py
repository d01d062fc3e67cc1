"""Ids made with a tokenizer of transformers, beside those that vLLM recorded for the same conversations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import rollout_trace as rt
from rollout_trace.data.model import Step
from rollout_trace.data.tokens import same_array
from rollout_trace.testing import load_exchanges
from rollout_trace.wire import decode

DATA = Path(__file__).parents[2] / "data"


def recorded() -> list[Step]:
    """Steps of chat whose prompt ids vLLM gave, one for each call."""
    found = []
    for exchange in load_exchanges(DATA / "wire_vllm.jsonl.xz"):
        if exchange.status != 200 or not exchange.path.endswith("chat/completions"):
            continue
        step = decode("openai.chat", exchange.request, exchange.response, content_type=exchange.content_type)[0]
        if step.prompt_token_ids is not None and step.status == "ok":
            found.append(replace(step, id=exchange.name, call_id=exchange.name))
    return found


STEPS = recorded()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DATA / "tiny-model")


def retokenized(tokenizer: Any, steps: list[Step] = STEPS) -> tuple[dict[str, Step], Any]:
    """The same steps as if the engine had given no ids, with made ones; and the report."""
    bare = [
        replace(
            step, prompt_token_ids=None, completion_token_ids=None, logprobs=None, top_logprobs=None, token_source=None,
            token_issue=rt.TokenIssue(code="ids_missing", message="not asked for"),
        )
        for step in steps
    ]  # fmt: skip
    trajectory = rt.Trajectory(steps=bare)
    report = trajectory.retokenize(tokenizer)
    return {step.id: step for step in trajectory.steps}, report


def test_prompts_are_those_that_the_engine_read(tokenizer: Any) -> None:
    """The same template and vocabulary give the same ids, whatever was asked: tools, several turns, parts of text."""
    made, report = retokenized(tokenizer)
    assert len(STEPS) > 50
    assert set(report.failed) == {"chat_continue_final", "tools_required_strict_stream"}
    assert "continue_final_message=True" in report.failed["chat_continue_final"]
    assert "tool arguments that are no JSON object" in report.failed["tools_required_strict_stream"]
    differ = [
        step.id
        for step in STEPS
        if step.id in report.retokenized and not same_array(made[step.id].prompt_token_ids, step.prompt_token_ids)
    ]
    assert differ == [one.step_id for one in report.disagreements if one.part == "prompt"] == []


def test_the_order_in_which_a_tool_was_sent_does_not_matter(tokenizer: Any) -> None:
    """vLLM writes a tool's keys in an order of its own, and a missing description as null."""
    turned = [
        replace(step, tools=[turned_round({**tool, "function": turned_round(tool["function"])}) for tool in step.tools])
        for step in STEPS
        if step.tools
    ]
    made, report = retokenized(tokenizer, turned)
    assert len(report.retokenized) > 10
    assert [one for one in report.disagreements if one.part == "prompt"] == []
    for step in turned:
        if step.id in report.retokenized:
            assert same_array(made[step.id].prompt_token_ids, step.prompt_token_ids)


def turned_round(value: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(value.items()))


def test_completions_are_no_better_than_their_text(tokenizer: Any) -> None:
    """Sampled from random weights, most are in ids that no tokenizer would choose: the counts say where."""
    made, report = retokenized(tokenizer)
    differ = {one.step_id for one in report.disagreements if one.part == "completion"}
    same = 0
    for step in STEPS:
        if step.id in report.retokenized:
            equal = same_array(made[step.id].completion_token_ids, step.completion_token_ids)
            assert not (equal and step.id in differ)
            same += equal
    assert differ
    assert same >= 5
