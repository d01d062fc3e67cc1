"""Spans: what our own export sent comes back, agents around agents, and hostile trees."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rollout_trace as rt
from rollout_trace import export, importing
from rollout_trace.data.counts import SPAN_COSTS
from rollout_trace.data.model import Usage
from rollout_trace.importing.imported import Imported
from rollout_trace.report import ExportReport
from rollout_trace.wire.span_names import NAMES, SAMPLING, NamePlace
from tests.consumers import recorded

from .files import ids

FIELDS = ("status", "trainable", "reward", "call_id", "choice", "token_source", "response_id", "model", "agent")
# Steps of `engines` share ids, as several of its files hold the same answer.
EVERY = (*(make for make in recorded.EVERY if make is not recorded.engines), recorded.anthropic_agent)
AGENT, CHAT, TOOL = ({"gen_ai.operation.name": name} for name in ("invoke_agent", "chat", "execute_tool"))


def through_otlp(runs: Any) -> Imported:
    """Exports with the SDK, and imports what its OTLP exporter would send, as JSON."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    export.otel(runs, provider=provider, tokens=True, report=ExportReport())
    sent = MessageToDict(encode_spans(memory.get_finished_spans()))
    return importing.otel(BytesIO(json.dumps(sent).encode()))


def span(own: int, above: int | None, at: int, **attributes: Any) -> dict[str, Any]:
    """A span of one second, as the SDK's own JSON has it."""
    return {
        "name": "a span",
        "context": {"trace_id": "0xaa", "span_id": f"0x{own:016x}"},
        "parent_id": None if above is None else f"0x{above:016x}",
        "start_time": f"2026-10-01T00:{at // 60 % 60:02}:{at % 60:02}Z",
        "end_time": f"2026-10-01T00:{at // 60 % 60:02}:{at % 60:02}.5Z",
        "attributes": attributes,
    }


def imported(*spans: dict[str, Any]) -> Imported:
    return importing.otel(BytesIO("".join(json.dumps(one) + "\n" for one in spans).encode()))


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_what_was_exported_comes_back(make: Callable[[], list[rt.Trajectory]]) -> None:
    made = {one.id: one for one in make()}
    found = {one.id: one for one in through_otlp(made.values())}
    assert found.keys() == {name for name, one in made.items() if one.steps or one.tool_runs or one.reward is not None}
    for name, back in found.items():
        one = made[name]
        facts = ("name", "reward", "group_id", "rollout_index", "parent_id", "episode_id", "status", "stop_reason")
        assert {fact: getattr(back, fact) for fact in facts} == {fact: getattr(one, fact) for fact in facts}
        assert (back.rewards or {}, back.metrics or {}) == (one.rewards or {}, one.metrics or {})
        steps = {step.id: step for step in back.steps}
        assert steps.keys() == {step.id for step in one.steps}
        for step in one.steps:
            same = steps[step.id]
            for name in FIELDS:
                assert getattr(same, name) == getattr(step, name), name
            # In the words of the conventions; in whole microseconds.
            assert (same.finish_reason is None) == (step.finish_reason is None)
            assert same.latency == pytest.approx(step.latency, abs=1e-6)
            for array in ("prompt_token_ids", "completion_token_ids", "logprobs"):
                assert (ids(getattr(same, array)) or None) == (ids(getattr(step, array)) or None)
            code, other = (None if issue is None else issue.code for issue in (same.token_issue, step.token_issue))
            assert code == other
            # An answer from a cache is sent without the usage of the call that filled it.
            usage = None if step.status == "cached" else step.usage
            assert (same.usage and same.usage.output) == (usage and usage.output)
        rows = [(ids(row.token_ids), ids(row.loss_mask), ids(row.logprobs), row.reward) for row in one.sequences()]
        assert [
            (ids(row.token_ids), ids(row.loss_mask), ids(row.logprobs), row.reward) for row in back.sequences()
        ] == rows


@pytest.mark.parametrize("status", ["ok", "error", "cancelled", "abandoned", "cached", "superseded"])
def test_a_status_comes_back(status: Any) -> None:
    """A stream that was left has part of an answer: it is no ``ok``, and its ids are not trained on."""
    (run,) = recorded.bad_arguments()
    first = replace(run.steps[0], status=status, latency=None, finish_reason=None)
    run.steps = [first, *run.steps[1:]]
    run.status = "aborted"
    (back,) = through_otlp(run)
    same = back.steps[0]
    assert (same.status, same.error, same.finish_reason, same.latency) == (status, None, None, None)
    assert ids(same.completion_token_ids) == ids(first.completion_token_ids)
    assert (back.status, back.error) == ("aborted", None)
    assert len(back.sequences()) == len(run.sequences())


def test_ids_with_an_issue_come_back_with_it() -> None:
    (run,) = recorded.bad_arguments()
    issue = rt.TokenIssue(code="redacted", message="x")
    run.steps = [replace(run.steps[0], token_issue=issue), *run.steps[1:]]
    (back,) = through_otlp(run)
    assert back.steps[0].token_issue is not None
    assert back.steps[0].token_issue.code == "redacted"
    assert len(back.sequences()) == len(run.sequences())


def test_an_agent_around_agents_stays() -> None:
    """One without a call of its own has the reward, the tools, and is the parent of those inside it."""
    outer = span(1, None, 0, **AGENT, **{"rollout_trace.reward": 0.5})
    empty = span(9, 1, 5, **AGENT)
    root, inner = imported(outer, span(5, 1, 1, **TOOL), span(2, 1, 2, **AGENT), span(3, 2, 3, **CHAT), empty)
    assert (root.reward, len(root.steps), len(root.tool_runs)) == (0.5, 0, 1)
    assert (inner.parent_id, inner.episode_id, len(inner.steps)) == (root.id, root.id, 1)


def test_an_agent_inside_follows_the_last_step_before_it() -> None:
    outer, first, second = span(1, None, 0, **AGENT), span(2, 1, 1, **CHAT), span(3, 1, 3, **CHAT)
    later = span(6, 1, 9, **CHAT)
    root, inner = imported(outer, first, second, span(4, 1, 5, **AGENT), span(5, 4, 6, **CHAT), later)
    assert len(root.steps) == 3
    assert (inner.parent_id, inner.parent_step_id) == (root.id, root.steps[1].id)


def test_spans_above_themselves_are_cut_off_once() -> None:
    found = imported(span(1, 3, 0), span(2, 1, 1), span(3, 2, 2, **CHAT), span(4, 3, 3, **CHAT))
    (one,) = found
    # The third is around the fourth.
    assert len(one.steps) == 1
    assert found.report.noted["spans that are above themselves, cut off"] == 1


def test_spans_nested_deeply() -> None:
    count = 20_000
    deep = [span(at + 1, at or None, at) for at in range(count)]
    (one,) = imported(*deep, span(count + 1, count, count, **CHAT))
    assert len(one.steps) == 1


COUNTED: list[dict[str, Any]] = [
    # OpenTelemetry's conventions; OpenLLMetry before and after 0.5; OpenInference.
    {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 5, "gen_ai.usage.cache_read.input_tokens": 4,
     "gen_ai.usage.cache_creation.input_tokens": 2, "gen_ai.usage.reasoning.output_tokens": 3},
    {"gen_ai.usage.prompt_tokens": 9, "gen_ai.usage.completion_tokens": 5, "gen_ai.usage.cache_read_input_tokens": 4,
     "gen_ai.usage.cache_creation_input_tokens": 2, "llm.usage.reasoning_tokens": 3, "llm.usage.total_tokens": 14},
    {"gen_ai.usage.input_tokens": 9.0, "gen_ai.usage.output_tokens": 5.0, "gen_ai.usage.cache_read_input_tokens": 4,
     "gen_ai.usage.cache_creation_input_tokens": 2, "gen_ai.usage.reasoning_tokens": 3},
    {"llm.token_count.prompt": 9, "llm.token_count.completion": 5, "llm.token_count.prompt_details.cache_read": 4,
     "llm.token_count.prompt_details.cache_write": 2, "llm.token_count.completion_details.reasoning": 3},
    # xAI's reasoning is in the total alone.
    {"llm.token_count.prompt": 9, "llm.token_count.completion": 2, "llm.token_count.prompt_details.cache_input": 4,
     "llm.token_count.prompt_details.cache_write": 2, "llm.token_count.completion_details.reasoning": 3,
     "llm.token_count.total": 14},
]  # fmt: skip


@pytest.mark.parametrize("counts", COUNTED)
def test_counts_are_read_under_the_names_of_every_convention(counts: dict[str, Any]) -> None:
    (trajectory,) = imported(span(1, None, 0, **{"openinference.span.kind": "LLM", **counts}))
    assert trajectory.steps[0].usage == Usage(input=9, output=5, cache_read=4, cache_write=2, reasoning=3)


@pytest.mark.parametrize("name", SPAN_COSTS)
def test_a_cost_is_read_under_the_names_of_every_convention(name: str) -> None:
    (trajectory,) = imported(span(1, None, 0, **{"openinference.span.kind": "LLM", name: 0.5}))
    assert trajectory.cost == rt.Cost(amount=0.5)


ON_OTHERS = {"trajectory name": 1, **dict.fromkeys(("tool name", "tool_call_id", "arguments", "result"), 3)}
VALUES: dict[str, Any] = {
    **{"time_to_first_token": 0.5, "finish_reasons": ["x"], "stop": ["x"]},
    **{"prompt_token_ids": [7], "completion_token_ids": [7], "logprobs": [-0.5]},
    **dict.fromkeys(SAMPLING, 2),
}
ELSEWHERE = {"system", "messages", "completion", "tools", "choices", "parameters"}
"""Fields that other tests read in the shapes that they have."""


@pytest.mark.parametrize("row", [row for row in NAMES if row.field not in ELSEWHERE], ids="{0.field} {0.name}".format)
def test_a_field_is_read_under_the_names_of_every_convention(row: NamePlace) -> None:
    value = VALUES.get(row.field, "x")
    kinds = enumerate(("invoke_agent", "chat", "execute_tool"), 1)
    spans: dict[int, dict[str, Any]] = {at: {"gen_ai.operation.name": name} for at, name in kinds}
    if row.field == "logprobs":
        spans[2]["response_token_ids"] = [7]
    spans[ON_OTHERS.get(row.field, 2)][row.name] = value
    (one,) = imported(*(span(at, 1 if at > 1 else None, at, **facts) for at, facts in spans.items()))
    (step,), (run,) = one.steps, one.tool_runs
    read = {"trajectory name": one.name, "tool name": run.name, "finish_reasons": [step.finish_reason]}
    holder = run if row.field in ON_OTHERS else step
    found = (step.sampling or {}).get(row.field) if row.field in (*SAMPLING, "stop") else None
    found = found or read.get(row.field) or getattr(holder, row.field)
    assert found == value if not hasattr(found, "tolist") else found.tolist() == value


def test_contents_of_openinference_are_texts_thoughts_and_calls() -> None:
    """A call stands among the contents and among the calls: it is no text, and no second call."""
    prefix, call = "llm.output_messages.0.message", {"tool_call.id": "c", "tool_call.function.name": "f"}
    contents: list[dict[str, str]] = [
        {"message_content.type": "reasoning", "message_content.text": "Let me"},
        {"message_content.type": "reasoning", "message_content.data": "redacted"},
        {"message_content.type": "text", "message_content.text": "4"},
        {"message_content.type": "tool_use", **call},
    ]
    attributes: dict[str, Any] = {f"{prefix}.role": "assistant"}
    for at, content in enumerate(contents):
        attributes.update({f"{prefix}.contents.{at}.{name}": value for name, value in content.items()})
    attributes.update({f"{prefix}.tool_calls.0.{name}": value for name, value in call.items()})
    (trajectory,) = imported(span(1, None, 0, **{"openinference.span.kind": "LLM", **attributes}))
    completion = trajectory.steps[0].completion
    assert completion is not None
    assert (completion.content, completion.reasoning) == ("4", "Let me")
    assert [(one.id, one.name) for one in completion.tool_calls] == [("c", "f")]


def test_tools_and_agents_of_pydantic_ai_before_2() -> None:
    """Its spans of tools had no operation; with its settings' version 2 the attributes have names of their own."""
    written = [{"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"a": 1}}]}]
    call = span(3, 2, 3, **CHAT, **{"gen_ai.request.model": "m", "gen_ai.output.messages": json.dumps(written)})
    tool = {"gen_ai.tool.name": "add", "gen_ai.tool.call.id": "c"}
    agent = {"agent_name": "solver", "model_name": "m"}
    for names in (("tool_arguments", "tool_response"), ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")):
        run = span(4, 5, 4, **tool, **dict(zip(names, ('{"a":1}', "2"), strict=True)))
        (one,) = imported(span(2, None, 1, **agent), call, span(5, 2, 4, tools=["add"]), run)
        assert one.name == "solver"
        (found,) = one.tool_runs
        assert (found.name, found.arguments, found.result) == ("add", '{"a":1}', "2")
        assert found.step_id == one.steps[0].id
