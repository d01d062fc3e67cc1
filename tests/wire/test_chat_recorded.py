"""Every recorded vLLM chat exchange: each step says what a plain reading of the same bytes says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rollout_trace.data.model import Usage
from tests.wire.raw import bodies, exchanges, said, steps_of

NO, IDS = "-", "ids"

# Name; prompt ids; completion ids (and where from); logprobs; code of the token issue. Errors have none of them.
TABLE = """
chat_batch                     -    engine    logprobs  -
chat_canonical_eos             ids  engine    logprobs  -
chat_canonical_eos_stream      ids  engine    logprobs  -
chat_continue_final            ids  engine    logprobs  -
chat_forced_eos                ids  engine    logprobs  -
chat_forced_eos_stream         ids  engine    logprobs  -
chat_greedy_ids                ids  engine    logprobs  -
chat_ids                       ids  engine    logprobs  -
chat_ids_nologprobs            ids  engine    -         -
chat_ids_nologprobs_stream     ids  engine    -         -
chat_ids_stream                ids  engine    logprobs  -
chat_logprob_token_ids         ids  engine    logprobs  -
chat_logprobs                  -    -         logprobs  ids_missing
chat_logprobs_stream           -    -         logprobs  ids_missing
chat_logprobs_top0             -    -         logprobs  ids_missing
chat_long_until_eos            ids  engine    logprobs  -
chat_long_until_eos_stream     ids  engine    logprobs  -
chat_max_tokens_1              ids  engine    logprobs  -
chat_max_tokens_1_stream       ids  engine    logprobs  -
chat_messages_content_parts    ids  engine    -         -
chat_n2                        ids  engine    logprobs  -
chat_n2_stream                 ids  engine    logprobs  -
chat_no_skip_special           ids  engine    logprobs  -
chat_plain                     -    -         -         ids_missing
chat_plain_stream              -    -         -         ids_missing
chat_prompt_logprobs           ids  engine    logprobs  -
chat_prompt_logprobs_stream    -    -         -         error:400
chat_prompt_text               ids  engine    -         -
chat_render                    -    -         -         error:403
chat_render_stop               -    -         -         error:403
chat_stop_include              ids  engine    logprobs  -
chat_stop_multitoken           ids  engine    logprobs  -
chat_stop_multitoken_stream    ids  engine    logprobs  -
chat_stop_string               ids  engine    logprobs  -
chat_stop_string_stream        ids  engine    logprobs  -
chat_stop_token_ids            ids  engine    logprobs  -
chat_stop_token_ids_stream     ids  engine    logprobs  -
chat_stream_continuous_usage   -    -         -         ids_missing
chat_stream_no_usage           -    -         -         ids_missing
chat_temp_topk_ids             ids  engine    logprobs  -
chat_think                     ids  engine    logprobs  -
chat_think_stream              ids  engine    logprobs  -
chat_tokens_as_ids             -    logprobs  logprobs  -
chat_tokens_as_ids_stream      -    logprobs  logprobs  -
chat_utf8_regex                ids  engine    logprobs  -
chat_utf8_regex_stream         ids  engine    logprobs  -
chat_utf8_split                ids  engine    logprobs  -
chat_utf8_split_stream         ids  engine    logprobs  -
err_bad_field_type             -    -         -         error:400
err_bad_json                   -    -         -         error:400
err_malformed_json             -    -         -         error:400
err_max_tokens_too_big         -    -         -         error:400
err_prompt_too_long            -    -         -         error:400
err_prompt_too_long_stream     -    -         -         error:400
err_top_logprobs_too_big       -    -         -         error:400
err_unknown_field              -    -         -         ids_missing
err_unknown_model              -    -         -         error:404
json_schema                    ids  engine    logprobs  -
multiturn_canonical_1          ids  engine    logprobs  -
multiturn_canonical_2          ids  engine    logprobs  -
multiturn_canonical_3          ids  engine    logprobs  -
multiturn_canonical_length_1   ids  engine    logprobs  -
multiturn_canonical_length_2   ids  engine    logprobs  -
multiturn_canonical_length_3   ids  engine    logprobs  -
multiturn_eos_1                ids  engine    logprobs  -
multiturn_eos_2                ids  engine    logprobs  -
multiturn_eos_3                ids  engine    logprobs  -
multiturn_greedy_1             ids  engine    logprobs  -
multiturn_greedy_2             ids  engine    logprobs  -
multiturn_greedy_3             ids  engine    logprobs  -
multiturn_noncanonical_regex_1 ids  engine    logprobs  -
multiturn_noncanonical_regex_2 ids  engine    logprobs  -
multiturn_noncanonical_regex_3 ids  engine    logprobs  -
multiturn_sampled_1            ids  engine    logprobs  -
multiturn_sampled_2            ids  engine    logprobs  -
multiturn_sampled_3            ids  engine    logprobs  -
oai_chat_ids                   ids  engine    logprobs  -
oai_chat_ids_stream            ids  engine    logprobs  -
tools_auto                     ids  engine    logprobs  -
tools_auto_hermes              ids  engine    logprobs  -
tools_auto_hermes_stream       ids  engine    logprobs  -
tools_auto_hermes_two          ids  engine    logprobs  -
tools_auto_hermes_two_stream   ids  engine    logprobs  -
tools_auto_stream              ids  engine    logprobs  -
tools_followup                 ids  engine    logprobs  -
tools_named                    ids  engine    logprobs  -
tools_named_stream             ids  engine    logprobs  -
tools_required                 ids  engine    logprobs  -
tools_required_plain           -    -         -         ids_missing
tools_required_plain_stream    -    -         -         ids_missing
tools_required_stream          ids  engine    logprobs  -
tools_required_strict          ids  engine    logprobs  -
tools_required_strict_stream   ids  engine    logprobs  -
tools_required_truncated       ids  engine    logprobs  -
tools_required_truncated_stream ids engine    logprobs  -
tools_two_required             ids  engine    logprobs  -
"""
ROWS = {name: tuple(rest) for name, *rest in (line.split() for line in TABLE.strip().split("\n"))}
ANSWERED = [name for name, row in ROWS.items() if not row[3].startswith("error")]
FAILED = [name for name, row in ROWS.items() if row[3].startswith("error")]


def test_the_table_names_every_recorded_chat_exchange() -> None:
    """No recording is left out of the tests below."""
    assert sorted(ROWS) == sorted(exchanges())


@pytest.mark.parametrize("name", ROWS)
def test_ids_and_logprobs_are_there_or_the_step_says_why_not(name: str) -> None:
    """Each step has exactly the token facts, or the reason for their absence, that the table names."""
    prompt, ids, logprobs, why = ROWS[name]
    for step in steps_of(exchanges()[name]):
        assert (IDS if step.prompt_token_ids is not None else NO) == prompt
        assert (step.token_source or NO) == ids
        assert (step.completion_token_ids is None) == (ids == NO)
        assert ("logprobs" if step.logprobs is not None else NO) == logprobs
        if why.startswith("error"):
            assert step.error is not None
            assert step.error.status == int(why.removeprefix("error:"))
        else:
            assert (step.token_issue.code if step.token_issue else NO) == why


@pytest.mark.parametrize("name", ANSWERED)
def test_ids_and_logprobs_equal_the_raw_bytes(name: str) -> None:
    """Prompt ids, completion ids and logprobs are the engine's, number for number, as int32 and float32."""
    exchange = exchanges()[name]
    expected = said(exchange)
    steps = steps_of(exchange)
    assert [step.choice for step in steps] == sorted(expected)
    for step in steps:
        raw = expected[step.choice]
        for found, wanted, dtype in (
            (step.prompt_token_ids, raw.prompt_ids, np.int32),
            (step.completion_token_ids, raw.ids, np.int32),
            (step.logprobs, raw.logprobs, np.float32),
        ):
            assert (found is None) == (wanted is None)
            if found is not None:
                assert found.dtype == dtype
                assert found.tolist() == np.array(wanted, dtype).tolist()
        assert step.top_logprobs == raw.top_logprobs


@pytest.mark.parametrize("name", ANSWERED)
def test_text_tool_calls_and_reasons_equal_the_raw_bytes(name: str) -> None:
    """What was said, the tools asked for (arguments as the raw string) and why it ended are the bytes' own."""
    exchange = exchanges()[name]
    expected = said(exchange)
    for step in steps_of(exchange):
        raw = expected[step.choice]
        assert step.status == "ok"
        assert step.error is None
        assert step.completion is not None
        assert step.completion.role == "assistant"
        assert step.completion.content == ((raw.text or None) if raw.calls else raw.text)
        assert [(call.id, call.name, call.arguments) for call in step.completion.tool_calls] == raw.calls
        assert {call.type for call in step.completion.tool_calls} <= {"function"}
        assert (step.completion.reasoning, step.completion.refusal, step.completion.extra) == (None, None, None)
        assert (step.finish_reason, step.stop_reason) == (raw.finish_reason, raw.stop_reason)


@pytest.mark.parametrize("name", ANSWERED)
def test_names_and_usage_equal_the_raw_bytes(name: str) -> None:
    """Response id, models and the engine's own token counts are kept, for each choice alike."""
    exchange = exchanges()[name]
    answer = bodies(exchange)
    usages = [body["usage"] for body in answer if body.get("usage")]
    for number, step in enumerate(steps_of(exchange)):
        assert step.response_id == answer[0]["id"]
        assert step.response_model == answer[0]["model"]
        assert step.model == json.loads(exchange.request)["model"]
        assert step.protocol == "openai.chat"
        assert step.id == f"{step.call_id}.{number}"
        if usages:
            counts = usages[-1]
            assert step.usage == Usage(input=counts["prompt_tokens"], output=counts["completion_tokens"])
        else:
            assert step.usage is None


@pytest.mark.parametrize("name", ANSWERED)
def test_lengths_keep_the_rule_of_one_logprob_an_id(name: str) -> None:
    """Ids, logprobs and the engine's count agree; with n = 2 the count is the sum of both choices."""
    steps = steps_of(exchanges()[name])
    lengths = [len(step.completion_token_ids) for step in steps if step.completion_token_ids is not None]
    for step in steps:
        if step.completion_token_ids is not None and step.logprobs is not None:
            assert len(step.logprobs) == len(step.completion_token_ids)
        if step.logprobs is not None:
            assert np.isfinite(step.logprobs).all()
            assert (step.logprobs <= 0).all()
    if lengths and steps[0].usage is not None:
        assert sum(lengths) == steps[0].usage.output


@pytest.mark.parametrize("name", FAILED)
def test_a_refused_request_is_one_step_that_holds_the_servers_error(name: str) -> None:
    """Type, message, code and HTTP status are the server's; nothing was sampled, so nothing else is there."""
    exchange = exchanges()[name]
    (step,) = steps_of(exchange)
    error = json.loads(exchange.response)["error"]
    assert step.status == "error"
    assert step.error is not None
    assert (step.error.type, step.error.message) == (error["type"], error["message"])
    assert (step.error.code, step.error.status) == (error["code"], exchange.status)
    assert (step.completion, step.usage, step.finish_reason, step.response_id) == (None, None, None, None)


def test_facts_that_are_easily_lost() -> None:
    """Literal facts of single recordings: split characters, stop tokens, stop strings, special tokens."""
    recorded = {name: steps_of(exchanges()[name])[0] for name in ANSWERED}

    split = recorded["chat_utf8_split"]  # twelve halves of characters make no text, but are twelve tokens
    assert split.completion is not None
    assert split.completion.content == ""
    assert split.completion_token_ids is not None
    assert len(split.completion_token_ids) == 12

    forced = recorded["chat_forced_eos"]  # the stop token is the whole completion
    assert forced.completion_token_ids is not None
    assert forced.completion_token_ids.tolist() == [2041]
    assert forced.logprobs is not None
    assert forced.logprobs[0] < -9

    stopped = recorded["chat_stop_string"]  # the text is cut inside the token " raised", the ids are not
    assert stopped.completion is not None
    assert stopped.completion.content == " rais"
    assert stopped.completion_token_ids is not None
    assert stopped.completion_token_ids.tolist() == [1953]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "e")

    two = recorded["tools_auto_hermes_two"].completion
    assert two is not None
    assert two.content == "Let me see.\n"
    assert [call.name for call in two.tool_calls] == ["get_weather", "get_weather"]
    assert [call.arguments for call in two.tool_calls] == [
        '{"city": "Paris", "unit": "c"}',
        '{"city": "Tokyo", "unit": "f"}',
    ]

    assert recorded["tools_named"].finish_reason == "stop"
    assert recorded["tools_required"].finish_reason == "tool_calls"
