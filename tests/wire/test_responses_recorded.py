"""Every recorded /responses exchange: each step says what a plain reading of the same bytes says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.wire import decode
from tests.wire.raw import JSON, bodies
from tests.wire.recorded import asked, check_cuts, differing, float32, numbers, recorded, rows, steps_of

RESPONSES = "openai.responses"

# Name; prompt ids; completion ids; logprobs; code of the token issue or status of an error; finish reason.
TABLE = """
vllm/err_responses_unknown_model                  -    -       -         error:404    -
vllm/oai_responses                                -    -       -         ids_missing  max_output_tokens
vllm/responses_ids_probe                          ids  engine  logprobs  -            max_output_tokens
vllm/responses_logprobs                           -    -       logprobs  ids_missing  max_output_tokens
vllm/responses_logprobs_stream                    -    -       logprobs  ids_missing  max_output_tokens
vllm/responses_plain                              -    -       -         ids_missing  max_output_tokens
vllm/responses_stream                             -    -       -         ids_missing  max_output_tokens
vllm/responses_tools_required                     -    -       -         ids_missing  tool_calls
vllm/responses_tools_required_stream              -    -       -         ids_missing  max_output_tokens
llama_server/err_responses_unknown_model          -    -       -         ids_missing  stop
llama_server/oai_responses                        -    -       -         ids_missing  stop
llama_server/responses_ids_probe                  -    -       -         error:400    -
llama_server/responses_logprobs                   -    -       -         error:400    -
llama_server/responses_logprobs_stream            -    -       -         error:400    -
llama_server/responses_plain                      -    -       -         ids_missing  stop
llama_server/responses_stream                     -    -       -         ids_missing  stop
llama_server/responses_tools_required             -    -       -         ids_missing  stop
llama_server/responses_tools_required_stream      -    -       -         ids_missing  stop
llama_cpp_python/err_responses_unknown_model      -    -       -         error:404    -
transformers_serve/err_responses_unknown_model    -    -       -         error:400    -
transformers_serve/oai_responses                  -    -       -         ids_missing  stop
transformers_serve/responses_ids_probe            -    -       -         error:422    -
transformers_serve/responses_logprobs             -    -       -         ids_missing  stop
transformers_serve/responses_logprobs_stream      -    -       -         ids_missing  stop
transformers_serve/responses_plain                -    -       -         ids_missing  stop
transformers_serve/responses_stream               -    -       -         ids_missing  stop
transformers_serve/responses_tools_required       -    -       -         ids_missing  stop
transformers_serve/responses_tools_required_stream -   -       -         ids_missing  stop
"""
ROWS = rows(TABLE)
ANSWERED = [name for name, row in ROWS.items() if not row[3].startswith("error")]
STREAMS = [name for name in ANSWERED if "event-stream" in recorded(RESPONSES)[name].content_type]


def response_in(name: str) -> dict[str, Any]:
    """The response object of an answer; of a stream, the one that its last event holds."""
    last = bodies(recorded(RESPONSES)[name])[-1]
    response: dict[str, Any] = last.get("response", last)
    return response


def parts_in(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of its messages."""
    return [part for item in response["output"] if item["type"] == "message" for part in item["content"]]


def test_the_table_names_every_recorded_exchange() -> None:
    """No recording is left out of the tests below."""
    assert sorted(ROWS) == sorted(recorded(RESPONSES))
    assert len(STREAMS) == 12


@pytest.mark.parametrize("name", ROWS)
def test_ids_and_logprobs_are_there_or_the_step_says_why_not(name: str) -> None:
    """Each step has exactly the token facts, or the reason for their absence, that the table names."""
    prompt, ids, logprobs, why, reason = ROWS[name]
    (step,) = steps_of(RESPONSES, name)
    assert ("-" if step.prompt_token_ids is None else "ids") == prompt
    assert (step.token_source or "-") == ids
    assert (step.completion_token_ids is None) == (ids == "-")
    assert ("-" if step.logprobs is None else "logprobs") == logprobs
    if step.error is not None:
        assert f"error:{step.error.status}" == why
    else:
        assert (step.token_issue.code if step.token_issue else "-") == why
    assert (step.finish_reason or "-") == reason


@pytest.mark.parametrize("name", ANSWERED)
def test_what_is_there_equals_the_raw_bytes(name: str) -> None:
    """Text, calls, ids, logprobs, counts and names are the bytes' own."""
    response, (step,) = response_in(name), steps_of(RESPONSES, name)
    parts = parts_in(response)
    entries = [entry for part in parts for entry in part.get("logprobs") or ()]
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert step.completion is not None
    assert (step.completion.content or "") == "".join(part["text"] for part in parts)
    assert [(call.id, call.name, call.arguments) for call in step.completion.tool_calls] == [
        (call["call_id"], call["name"], call["arguments"]) for call in calls
    ]
    assert [dict(call.extra or {})["item_id"] for call in step.completion.tool_calls] == [call["id"] for call in calls]
    assert (step.completion.reasoning, step.completion.refusal, step.completion.extra) == (None, None, None)
    assert numbers(step.logprobs) == (float32([entry["logprob"] for entry in entries]) if entries else None)
    assert step.top_logprobs == ([entry["top_logprobs"] for entry in entries] if entries else None)
    messages = response.get("output_messages")
    assert numbers(step.completion_token_ids) == (messages[0]["tokens"] if messages else None)
    messages = response.get("input_messages")
    assert numbers(step.prompt_token_ids) == (messages[0]["tokens"] if messages else None)
    assert (step.response_id, step.response_model) == (response["id"], response["model"])
    assert step.messages == [asked(RESPONSES, name)["input"]]
    usage = response["usage"]
    assert step.usage is not None
    assert (step.usage.input, step.usage.output) == (usage["input_tokens"], usage["output_tokens"])
    assert step.usage.cache_read == usage["input_tokens_details"]["cached_tokens"]
    assert step.usage.reasoning == usage.get("output_tokens_details", {}).get("reasoning_tokens")
    assert (step.status, step.error) == ("ok", None)


@pytest.mark.parametrize("name", STREAMS)
def test_a_streamed_step_equals_that_of_the_response_it_ends_with(name: str) -> None:
    """What `response.completed` holds, sent unstreamed (or retrieved later), makes the same step."""
    exchange = recorded(RESPONSES)[name]
    (streamed,) = steps_of(RESPONSES, name)
    body = json.dumps(response_in(name)).encode()
    (unary,) = decode(RESPONSES, exchange.request, body, content_type=JSON)
    assert differing(streamed, unary) == set()
    assert streamed.response_id == unary.response_id


@pytest.mark.parametrize("name", STREAMS)
def test_the_events_alone_make_the_completion_that_the_last_one_repeats(name: str) -> None:
    """Without its last event a stream was cut: the same text, calls and logprobs, put together from deltas."""
    exchange = recorded(RESPONSES)[name]
    events = exchange.response.split(b"\n\n")
    at = next(k for k, event in enumerate(events) if b"response.completed" in event)
    (whole,), (cut,) = steps_of(RESPONSES, name), steps_of(RESPONSES, name, b"\n\n".join(events[:at]) + b"\n\n")
    assert (cut.status, cut.finish_reason, cut.usage) == ("abandoned", None, None)
    assert cut.completion == whole.completion
    assert numbers(cut.logprobs) == numbers(whole.logprobs)
    assert cut.response_id == whole.response_id


@pytest.mark.parametrize("name", STREAMS)
def test_deltas_alone_make_the_same_text(name: str) -> None:
    """With the events that repeat a whole text, part or item left out too."""
    exchange = recorded(RESPONSES)[name]
    deltas = [e for e in exchange.response.split(b"\n\n") if b".done" not in e and b"response.completed" not in e]
    (whole,), (cut,) = steps_of(RESPONSES, name), steps_of(RESPONSES, name, b"\n\n".join(deltas))
    assert whole.completion is not None
    assert cut.completion is not None
    assert cut.completion.content == whole.completion.content
    assert [call.arguments for call in cut.completion.tool_calls] == [
        call.arguments for call in whole.completion.tool_calls
    ]
    assert numbers(cut.logprobs) == numbers(whole.logprobs)


def test_a_stream_cut_at_any_byte_gives_what_came() -> None:
    """No cut raises, mis-pairs, or turns into an error: of vLLM's tool call at every byte, of others at every 61st."""
    for name, stride in [("vllm/responses_tools_required_stream", 1), *((name, 61) for name in STREAMS)]:
        exchange = recorded(RESPONSES)[name]
        check_cuts(RESPONSES, exchange.request, exchange.response, stride=stride)


def test_facts_that_are_easily_lost() -> None:
    """Literal facts of single recordings."""
    (tools,) = steps_of(RESPONSES, "vllm/responses_tools_required")
    assert tools.completion is not None
    (call,) = tools.completion.tool_calls
    assert (call.name, call.arguments, call.type) == ("get_weather", "{}", "function")
    assert dict(call.extra or {}) == {"item_id": "fc_8188df8919f48f9d", "status": "completed"}
    (probe,) = steps_of(RESPONSES, "vllm/responses_ids_probe")
    ids = numbers(probe.completion_token_ids) or []
    assert (len(numbers(probe.prompt_token_ids) or []), len(ids), ids[:2]) == (33, 16, [1284, 1780])
    # transformers serve streams without having been asked to, and without `event:` lines.
    (unasked,) = steps_of(RESPONSES, "transformers_serve/responses_plain")
    assert "stream" not in asked(RESPONSES, "transformers_serve/responses_plain")
    assert unasked.status == "ok"
