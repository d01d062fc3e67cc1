"""A streamed step equals the step of the same answer unstreamed, and turns follow each other as the recorder saw it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rollout_trace.data.model import STEP_FIELDS, Step
from rollout_trace.data.tokens import same_array
from tests.wire.raw import exchanges, reports, said, steps_of
from tests.wire.recorded import without_times

PAIRS = {name: f"{name}_stream" for name in exchanges() if f"{name}_stream" in exchanges()}
# The same answer went over the wire in other words (engines.md), or not the same request was asked.
DIFFERENT = {"chat_prompt_logprobs", "chat_stop_multitoken", "tools_required_strict", "tools_required_truncated"}
EQUAL = {name: stream for name, stream in PAIRS.items() if name not in DIFFERENT}
EQUAL_BUT_USAGE = {"chat_plain": "chat_stream_no_usage"}
# Not of the answer: step and call ids are derived from the bytes, and the server makes up the response id.
OF_THE_EXCHANGE = {"id", "call_id", "response_id"}

TURNS = ("canonical", "canonical_length", "eos", "greedy", "noncanonical_regex", "sampled")
HOLDS = {
    "multiturn_canonical": [True, True],
    "multiturn_canonical_length": [True, True],
    "multiturn_eos": [False, False],
    "multiturn_greedy": [False, False],
    "multiturn_noncanonical_regex": [False, False],
    "multiturn_sampled": [False, False],
}


def without_random_ids(step: Step) -> Step:
    """The step with the tool call ids, which the server draws anew for each answer, blanked."""
    if step.completion is None:
        return step
    calls = tuple(replace(call, id=call.id and "drawn") for call in step.completion.tool_calls)
    return replace(step, completion=replace(step.completion, tool_calls=calls))


def differing(one: Step, other: Step) -> set[str]:
    """The fields in which two steps differ, save those of the exchange itself."""
    one, other = without_random_ids(without_times(one)), without_random_ids(without_times(other))
    names = set(STEP_FIELDS) - OF_THE_EXCHANGE
    return {name for name in names if not same_array(getattr(one, name), getattr(other, name))}


def asked(name: str) -> dict[str, Any]:
    """The request of a recording without the fields that make it a stream."""
    request: dict[str, Any] = json.loads(exchanges()[name].request)
    return {key: value for key, value in request.items() if key not in ("stream", "stream_options")}


def unspaced(text: str | None) -> str | None:
    """A text without its white space."""
    return text and "".join(text.split())


def test_the_pairs_are_those_that_were_recorded() -> None:
    """Every streamed recording with an unstreamed twin is compared below."""
    assert len(PAIRS) == 27
    assert set(PAIRS) >= DIFFERENT


@pytest.mark.parametrize(("name", "stream"), EQUAL.items())
def test_a_streamed_step_equals_the_unstreamed_one(name: str, stream: str) -> None:
    """Field by field, array by array, with types: only what belongs to the exchange itself differs."""
    assert asked(name) == asked(stream)
    one, other = steps_of(exchanges()[name]), steps_of(exchanges()[stream])
    assert len(one) == len(other) == json.loads(exchanges()[name].request).get("n", 1)
    assert [differing(*pair) for pair in zip(one, other, strict=True)] == [set()] * len(one)
    assert all(a.call_id != b.call_id for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("name", "stream"), EQUAL_BUT_USAGE.items())
def test_a_stream_that_was_not_asked_for_usage_lacks_only_that(name: str, stream: str) -> None:
    """Without `include_usage` no counts arrive, and none are made up."""
    assert asked(name) == asked(stream)
    (one,), (other,) = steps_of(exchanges()[name]), steps_of(exchanges()[stream])
    assert differing(one, other) == {"usage"}
    assert one.usage is not None
    assert other.usage is None


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("tools_required_truncated", '<tool_call>{"name": "get_weather", "argume', None),
        (
            "tools_required_strict",
            '<tool_call>{"name": "get_weather", "arguments": {"city":"Paris",',
            '{"city":"Paris",',
        ),
    ],
)
def test_a_truncated_tool_call_is_another_message_of_the_same_tokens(
    name: str, text: str, arguments: str | None
) -> None:
    """vLLM gives a call that was cut as text when unstreamed and as a call when streamed: both are kept as sent."""
    (one,), (other,) = steps_of(exchanges()[name]), steps_of(exchanges()[f"{name}_stream"])
    assert asked(name) == asked(f"{name}_stream")
    assert differing(one, other) == {"completion"}
    assert one.completion is not None
    assert other.completion is not None
    assert isinstance(one.completion.content, str)
    assert one.completion.tool_calls == ()
    assert other.completion.content is None
    (call,) = other.completion.tool_calls
    # The grammar let the model write any amount of white space inside the arguments.
    assert unspaced(one.completion.content) == unspaced(text)
    assert call.name == "get_weather"
    assert unspaced(call.arguments) == unspaced(arguments)
    assert one.finish_reason == other.finish_reason == "length"


def test_the_stop_string_pair_is_of_two_requests() -> None:
    """The recorder asked two different things: the steps say so, and differ from the first other token on."""
    (one,) = steps_of(exchanges()["chat_stop_multitoken"])
    (other,) = steps_of(exchanges()["chat_stop_multitoken_stream"])
    assert asked("chat_stop_multitoken") != asked("chat_stop_multitoken_stream")
    by_token = {"completion_token_ids", "logprobs", "top_logprobs", "token_texts"}
    assert differing(one, other) == {"completion", "sampling", *by_token}
    assert one.sampling is not None
    assert other.sampling is not None
    assert {key for key in one.sampling if one.sampling[key] != other.sampling[key]} == {"allowed_token_ids"}
    assert one.stop_reason == other.stop_reason == " with the"


def test_prompt_logprobs_are_refused_for_a_stream() -> None:
    """The unstreamed request is answered, its streamed twin is an error of the server's."""
    (one,) = steps_of(exchanges()["chat_prompt_logprobs"])
    (other,) = steps_of(exchanges()["chat_prompt_logprobs_stream"])
    assert (one.status, other.status) == ("ok", "error")
    assert other.error is not None
    assert "not available when `stream=True`" in other.error.message
    assert one.sampling == other.sampling
    assert one.messages == other.messages


@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_the_messages_of_a_turn_are_those_sent(kind: str, turn: int) -> None:
    """Messages are the request's own, whole and in order; each turn adds the last answer and one question."""
    exchange = exchanges()[f"multiturn_{kind}_{turn}"]
    (step,) = steps_of(exchange)
    assert step.messages == json.loads(exchange.request)["messages"]
    assert [message["role"] for message in step.messages or ()] == [
        "system",
        "user",
        *["assistant", "user"] * (turn - 1),
    ]
    assert step.tools is None
    if turn > 1:
        (before,) = steps_of(exchanges()[f"multiturn_{kind}_{turn - 1}"])
        assert before.completion is not None
        assert step.messages is not None
        assert before.messages is not None
        assert step.messages[: len(before.messages)] == before.messages
        assert step.messages[len(before.messages)] == {"role": "assistant", "content": before.completion.content}


@pytest.mark.parametrize("name", HOLDS)
def test_prompts_extend_the_tokens_before_them_as_the_recorder_found(name: str) -> None:
    """How much of prompt(k)+completion(k) prompt(k+1) begins with is what the report says, to the token."""
    found = []
    for turn, report in enumerate(reports()[name], start=1):
        (before,), (after,) = steps_of(exchanges()[f"{name}_{turn}"]), steps_of(exchanges()[f"{name}_{turn + 1}"])
        assert before.prompt_token_ids is not None
        assert before.completion_token_ids is not None
        assert after.prompt_token_ids is not None
        whole = [*before.prompt_token_ids.tolist(), *before.completion_token_ids.tolist()]
        prompt = after.prompt_token_ids.tolist()
        pairs = list(zip(whole, prompt, strict=False))
        common = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
        assert report["turn"] == turn + 1
        assert (len(whole), len(prompt), common) == (report["prev_len"], report["prompt_len"], report["common_prefix"])
        assert prompt[common : common + 6] == report["prompt_at"]
        assert whole[common : common + 6] == report["prev_tail"]
        found.append(prompt[: len(whole)] == whole)
        assert found[-1] == report["prefix_holds"]
    assert found == HOLDS[name]


def test_every_turn_report_is_checked() -> None:
    """The reports in the packed data are those named above, of two steps each."""
    assert set(reports()) == set(HOLDS)
    assert all(len(report) == 2 for report in reports().values())


def test_choices_of_one_call_share_what_is_the_calls() -> None:
    """n = 2: two steps with one call id, one prompt, one usage, and completions of their own."""
    exchange = exchanges()["chat_n2_stream"]
    one, other = steps_of(exchange)
    assert one.call_id == other.call_id
    assert (one.id, other.id) == (f"{one.call_id}.0", f"{one.call_id}.1")
    assert (one.choice, other.choice) == (0, 1)
    assert one.usage == other.usage
    assert same_array(one.prompt_token_ids, other.prompt_token_ids)
    assert not same_array(one.completion_token_ids, other.completion_token_ids)
    assert [len(choice.ids or ()) for choice in said(exchange).values()] == [24, 24]
    assert one.usage is not None
    assert one.usage.output == 48
