"""What shaped the sampling beside the model: found from requests as engines read them, and held against recordings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.train.checks import check
from rollout_trace.train.shaping import biased, constrained, truncated
from rollout_trace.wire import decode
from tests.strategies import PROFILE, json_values

DATA = Path(__file__).parents[1] / "data"
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
STRICT = {**TOOL, "function": {**TOOL["function"], "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
CALLS = Completion(tool_calls=(ToolCall(name="add", arguments="{}"),))


def step(sampling: Any, **facts: Any) -> Step:
    whole: dict[str, Any] = {
        "id": "s", "call_id": "c", "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4],
        "logprobs": [-1.0, -0.5], "token_source": "engine", "finish_reason": "stop",
    }  # fmt: skip
    return Step(**{**whole, "sampling": sampling, **facts})


def codes(one: Step) -> set[str]:
    return {item.code for item in check(rt.Trajectory(steps=[one], reward=1.0))}


GRAMMARS: list[tuple[dict[str, Any], str | None]] = [
    ({"tool_choice": "required"}, "required tool"),
    ({"tool_choice": "any"}, "required tool"),
    ({"tool_choice": {"type": "any"}}, "required tool"),
    ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "named tool"),
    ({"tool_choice": {"type": "function", "name": "add"}}, "named tool"),
    ({"tool_choice": {"type": "tool", "name": "add"}}, "named tool"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "add"}}}, "named tool"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "required tool"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}}, "required tool"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, None),
    ({"tool_choice": "auto"}, None),
    ({"tool_choice": "none"}, None),
    ({"tool_choice": {"type": "auto"}}, None),
    ({"tool_choice": None}, None),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": SCHEMA}, "response_format"),
    ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format"),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None}, None),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
    ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, None),
    ({"text": "a prompt"}, None),
    ({"structured_outputs": {"regex": "a|b"}}, "structured_outputs"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}}}, "structured_outputs"),
    ({"structured_outputs": {"regex": None, "disable_any_whitespace": True}}, None),
    ({"structured_outputs": None}, None),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"guided_regex": "a|b"}, "guided_regex"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"guided_grammar": "root ::= 'a'"}, "guided_grammar"),
    ({"guided_regex": None}, None),
    ({"grammar": 'root ::= "a"'}, "grammar"),
    ({"grammar": ""}, None),
    ({"json_schema": {"type": "object"}}, "json_schema"),
    ({"regex": "a|b"}, "regex"),
    ({"ebnf": "root ::= 'a'"}, "ebnf"),
    ({"sampling_params": {"regex": "a|b"}}, "regex"),
    ({"sampling_params": {"json_schema": "{}"}}, "json_schema"),
    ({"sampling_params": [{"n": 1}, {"ebnf": "root ::= 'a'"}]}, "ebnf"),
    ({"sampling_params": {"structured_outputs": {"json": {}}}}, "structured_outputs"),
    ({"response_format": SCHEMA, "tool_choice": "required"}, "response_format, required tool"),
    ({"temperature": 1.0}, None),
    ({}, None),
]


@pytest.mark.parametrize(("sampling", "by"), GRAMMARS)
def test_a_grammar_is_found_in_the_request(sampling: dict[str, Any], by: str | None) -> None:
    one = step(sampling)
    assert constrained(one) == by
    findings = [item for item in check(rt.Trajectory(steps=[one], reward=1.0)) if item.code == "constrained_sampling"]
    assert [(item.grade, item.step_id) for item in findings] == ([] if by is None else [("warning", "s")])
    assert all(f"({by})" in item.message for item in findings)
    assert one.id in str(rt.Trajectory(steps=[one]).sequences().report.constrained) or by is None


@pytest.mark.parametrize(
    ("engine", "read"),
    [
        ("vllm", {"structured_outputs", "guided_regex"}),
        ("sglang", {"json_schema", "regex", "ebnf"}),
        ("llama-server", {"grammar", "json_schema"}),
        (None, {"structured_outputs", "guided_regex", "json_schema", "regex", "ebnf", "grammar"}),
    ],
)
def test_a_field_that_the_engine_ignores_forces_nothing(engine: str | None, read: set[str]) -> None:
    asked: dict[str, Any] = {
        "structured_outputs": {"regex": "a"}, "guided_regex": "a", "json_schema": {"type": "object"}, "regex": "a",
        "ebnf": "root ::= 'a'", "grammar": 'root ::= "a"',
    }  # fmt: skip
    assert {name for name, value in asked.items() if constrained(step({name: value}, engine=engine))} == read


def test_tools_that_may_be_called_are_free_unless_they_are_strict() -> None:
    """vLLM and SGLang constrain the call of a strict tool, and nothing of an answer in text."""
    for engine in ("vllm", "sglang", None):
        assert constrained(step({}, engine=engine, tools=[TOOL], completion=CALLS)) is None
        assert constrained(step({}, engine=engine, tools=[TOOL, STRICT], completion=CALLS)) == "strict tools"
        assert constrained(step({}, engine=engine, tools=[STRICT], completion=Completion(content="Hi."))) is None
    flat = {"type": "function", "name": "add", "strict": True}
    assert constrained(step({"tool_choice": "auto"}, tools=[flat], completion=CALLS)) == "strict tools"
    # A call that a limit cut off is told as text.
    cut = step({}, tools=[STRICT], completion=Completion(content="<tool_call>{"), finish_reason="length")
    assert constrained(cut) == "strict tools"
    assert constrained(step({"tool_choice": "none"}, tools=[STRICT], completion=CALLS)) is None


def test_llama_server_writes_calls_by_a_grammar_and_knows_no_named_tool() -> None:
    named = {"tool_choice": {"type": "function", "function": {"name": "add"}}}
    for asked in ({}, {"tool_choice": "auto"}, named):
        assert constrained(step(asked, engine="llama-server", tools=[TOOL], completion=CALLS)) == "tool calls"
        told = Completion(content="Hi.")
        assert constrained(step(asked, engine="llama-server", tools=[TOOL], completion=told)) is None
    required = step({"tool_choice": "required"}, engine="llama-server", tools=[TOOL], completion=CALLS)
    assert constrained(required) == "required tool"


@cache
def recorded(name: str) -> dict[str, Step]:
    """By name, the steps of chat recordings that have logprobs."""
    found = {}
    for one in load_exchanges(DATA / name):
        if one.path == "/v1/chat/completions":
            for made in decode("openai.chat", one.request, one.response, content_type=one.content_type):
                if made.logprobs is not None:
                    found[one.name] = made
    return found


def test_recorded_grammars_of_vllm_are_found() -> None:
    """There its mask is in the logprobs, so that what is forced has a logprob of 0."""
    steps = recorded("wire_vllm.jsonl.xz")
    forced = {name for name, one in steps.items() if constrained(one) is not None}
    zeros = {name for name, one in steps.items() if one.logprobs is not None and (one.logprobs == 0).mean() > 0.1}
    assert {"chat_think", "chat_utf8_regex", "tools_required", "tools_named", "json_schema"} <= forced
    assert zeros <= forced
    assert all("constrained_sampling" in codes(steps[name]) for name in forced)


SHAPED: list[tuple[dict[str, Any], str | None]] = [
    ({"top_p": 0.9}, "top_p 0.9"),
    ({"top_p": 1}, None),
    ({"top_p": 1.0, "top_k": -1, "min_p": 0.0}, None),
    ({"top_p": None, "top_k": None}, None),
    ({"top_k": 20}, "top_k 20"),
    ({"top_k": 0}, None),
    ({"top_k": 2**30}, None),
    ({"min_p": 0.05, "top_p": 0.8}, "top_p 0.8, min_p 0.05"),
    ({"typical_p": 0.9}, "typical_p 0.9"),
    ({"allowed_token_ids": [1, 2]}, "allowed_token_ids"),
    ({"bad_words": []}, None),
    ({"min_tokens": 5}, "min_tokens 5"),
    ({"sampling_params": {"top_k": 5, "temperature": 1}}, "top_k 5"),
    ({"top_p": "much", "top_k": True}, None),
    ({"temperature": 0, "top_p": 0.9}, None),
    ({"temperature": 0.7}, None),
]


@pytest.mark.parametrize(("sampling", "by"), SHAPED)
def test_a_truncation_is_found_in_the_request(sampling: dict[str, Any], by: str | None) -> None:
    one = step(sampling)
    assert truncated(one) == by
    assert ("distribution_truncated" in codes(one)) == (by is not None)


def test_the_defaults_of_llama_server_truncate() -> None:
    assert truncated(step({}, engine="llama-server")) == "top_p 0.95, top_k 40, min_p 0.05"
    told = {"top_p": 1, "top_k": 0, "min_p": 0}
    assert truncated(step(told, engine="llama-server")) is None
    assert truncated(step({"top_k": 5, "min_p": 0}, engine="llama-server")) == "top_p 0.95, top_k 5"
    assert truncated(step({}, engine="vllm")) is None


@pytest.mark.parametrize(
    ("sampling", "by"),
    [
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"logit_bias": [[5, 100]]}, "logit_bias"),
        ({"logit_bias": {}}, None),
        ({"presence_penalty": 0.5, "frequency_penalty": 0}, "presence_penalty 0.5"),
        ({"repetition_penalty": 1.1}, "repetition_penalty 1.1"),
        ({"repetition_penalty": 1.0, "repeat_penalty": 1}, None),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"sampling_params": {"frequency_penalty": -1}}, "frequency_penalty -1"),
        ({}, None),
    ],
)
def test_a_bias_is_found_in_the_request(sampling: dict[str, Any], by: str | None) -> None:
    one = step(sampling)
    assert biased(one) == by
    assert ("distribution_biased" in codes(one)) == (by is not None)


def test_what_has_no_ids_is_not_blamed() -> None:
    """A hosted model that must call a tool: there is nothing to compute a ratio of."""
    one = step({"tool_choice": "required", "top_p": 0.9}, completion_token_ids=None, logprobs=None)
    assert codes(one).isdisjoint({"constrained_sampling", "distribution_truncated"})


def test_the_report_of_sequences_names_the_steps_that_a_grammar_wrote() -> None:
    """Recorded with a real client: of three forced calls, one is not trained on."""
    reply = Reply(None, [("add", '{"a":1}')])
    with ScriptedServer(lambda request: reply) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm")
        with rt.trajectory() as trajectory:
            for asked in ({}, {"tool_choice": "required"}, {"response_format": SCHEMA}, {"tool_choice": "required"}):
                messages: Any = [{"role": "user", "content": f"Go {len(trajectory.steps)}."}]
                client.chat.completions.create(model="m", messages=messages, tools=[TOOL], **asked)
        client.close()
    _, required, schema, left = trajectory.steps
    left.trainable = False
    assert trajectory.sequences().report.constrained == {
        "required tool": (required.id,),
        "response_format": (schema.id,),
    }
    found = {(item.code, item.step_id) for item in check(trajectory) if item.code == "constrained_sampling"}
    assert found == {("constrained_sampling", required.id), ("constrained_sampling", schema.id)}


FIELDS = (
    "tool_choice", "response_format", "text", "structured_outputs", "guided_json", "grammar", "json_schema",
    "sampling_params", "top_p", "top_k", "allowed_token_ids", "logit_bias", "presence_penalty", "temperature",
)  # fmt: skip
values = json_values | st.dictionaries(st.sampled_from(["type", "format", "mode", "strict", "function"]), json_values)
requests = st.dictionaries(st.sampled_from(FIELDS), values | st.dictionaries(st.sampled_from(FIELDS), values))


@PROFILE
@given(requests, st.lists(values), st.sampled_from(["vllm", "llama-server", None]))
def test_no_request_makes_it_fail(sampling: Any, tools: Any, engine: str | None) -> None:
    one = step(sampling, tools=tools, engine=engine, completion=CALLS)
    for found in (constrained(one), truncated(one), biased(one)):
        assert found is None or found
    check(rt.Trajectory(steps=[one]))
