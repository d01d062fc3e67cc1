"""Every recorded /completions exchange of four engines: each step says what a plain reading of the same bytes says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.wire.raw import bodies, concatenated
from tests.wire.recorded import asked, check_cuts, differing, float32, numbers, recorded, rows, steps_of

COMPLETIONS = "openai.completions"

# Name; prompt ids; completion ids (and where from); logprobs; code of the token issue, or the status of an error.
TABLE = """
vllm/completions_batch_prompts              ids  engine    logprobs  -
vllm/completions_echo                       -    -         logprobs  ids_missing
vllm/completions_echo_ids                   ids  engine    logprobs  -
vllm/completions_echo_zero                  -    -         -         nothing_sampled
vllm/completions_ids                        ids  engine    logprobs  -
vllm/completions_ids_stream                 ids  engine    logprobs  -
vllm/completions_logprobs                   -    -         logprobs  ids_missing
vllm/completions_logprobs_stream            -    -         logprobs  ids_missing
vllm/completions_n2                         ids  engine    logprobs  -
vllm/completions_n2_stream                  ids  engine    logprobs  -
vllm/completions_plain                      -    -         -         ids_missing
vllm/completions_prompt_logprobs            ids  engine    logprobs  -
vllm/completions_token_prompt               ids  engine    logprobs  -
vllm/completions_tokens_as_ids              -    logprobs  logprobs  -
vllm/err_completions_unknown_model          -    -         -         error:404
vllm/oai_completions_ids                    ids  engine    logprobs  -
llama_server/completions_batch_prompts      -    -         -         ids_unconfirmed
llama_server/completions_echo               -    -         -         ids_missing
llama_server/completions_echo_ids           -    -         -         ids_missing
llama_server/completions_echo_zero          -    -         -         ids_missing
llama_server/completions_ids                -    -         -         ids_missing
llama_server/completions_ids_stream         -    -         -         ids_missing
llama_server/completions_logprobs           -    -         -         ids_missing
llama_server/completions_logprobs_stream    -    -         -         ids_missing
llama_server/completions_n2                 -    -         -         ids_missing|ids_unconfirmed
llama_server/completions_n2_stream          -    -         -         ids_missing|ids_unconfirmed
llama_server/completions_plain              -    -         -         ids_missing
llama_server/completions_prompt_logprobs    -    -         -         ids_missing
llama_server/completions_token_prompt       ids  logprobs  logprobs  -
llama_server/completions_tokens_as_ids      -    -         -         ids_missing
llama_server/err_completions_unknown_model  -    -         -         ids_missing
llama_server/oai_completions_ids            -    logprobs  logprobs  -
llama_cpp_python/completions_batch_prompts  -    -         -         error:500
llama_cpp_python/completions_echo           -    -         -         echo_unresolved
llama_cpp_python/completions_echo_ids       -    -         -         echo_unresolved
llama_cpp_python/completions_echo_zero      -    -         logprobs  ids_missing
llama_cpp_python/completions_ids            -    -         logprobs  ids_missing
llama_cpp_python/completions_ids_stream     -    -         logprobs  ids_missing
llama_cpp_python/completions_logprobs       -    -         logprobs  ids_missing
llama_cpp_python/completions_logprobs_stream -   -         logprobs  ids_missing
llama_cpp_python/completions_n2             -    -         logprobs  ids_missing
llama_cpp_python/completions_n2_stream      -    -         logprobs  ids_missing
llama_cpp_python/completions_plain          -    -         -         ids_missing
llama_cpp_python/completions_prompt_logprobs -   -         logprobs  ids_missing
llama_cpp_python/completions_tokens_as_ids  -    -         logprobs  ids_missing
llama_cpp_python/err_completions_unknown_model - -         -         ids_missing
transformers_serve/completions_batch_prompts -   -         -         error:422
transformers_serve/completions_echo         -    -         -         ids_missing
transformers_serve/completions_echo_ids     -    -         -         error:422
transformers_serve/completions_echo_zero    -    -         -         error:500
transformers_serve/completions_ids          -    -         -         error:422
transformers_serve/completions_ids_stream   -    -         -         error:422
transformers_serve/completions_logprobs     -    -         -         ids_missing
transformers_serve/completions_logprobs_stream - -         -         ids_missing
transformers_serve/completions_n2           -    -         -         error:422
transformers_serve/completions_n2_stream    -    -         -         error:422
transformers_serve/completions_plain        -    -         -         ids_missing
transformers_serve/completions_prompt_logprobs - -         -         error:422
transformers_serve/completions_token_prompt -    -         -         error:422
transformers_serve/completions_tokens_as_ids -   -         -         error:422
transformers_serve/err_completions_unknown_model - -       -         error:400
transformers_serve/noids_completions_batch_prompts - -     -         error:400
transformers_serve/noids_completions_echo   -    -         -         ids_missing
transformers_serve/noids_completions_echo_ids -  -         -         ids_missing
transformers_serve/noids_completions_echo_zero - -         -         error:500
transformers_serve/noids_completions_ids    -    -         -         ids_missing
transformers_serve/noids_completions_ids_stream - -        -         ids_missing
transformers_serve/noids_completions_logprobs -  -         -         ids_missing
transformers_serve/noids_completions_logprobs_stream - -   -         ids_missing
transformers_serve/noids_completions_n2     -    -         -         ids_missing
transformers_serve/noids_completions_n2_stream - -         -         ids_missing
transformers_serve/noids_completions_plain  -    -         -         ids_missing
transformers_serve/noids_completions_prompt_logprobs - -   -         error:422
transformers_serve/noids_completions_token_prompt - -      -         error:400
transformers_serve/noids_completions_tokens_as_ids - -     -         error:422
transformers_serve/oai_completions_ids      -    -         -         error:422
"""
ROWS = rows(TABLE)
ANSWERED = [name for name, row in ROWS.items() if not row[3].startswith("error")]
FAILED = [name for name, row in ROWS.items() if row[3].startswith("error")]
# With `echo`, where the prompt's logprobs come first: how many of them are the completion's (usage, engines.md 5.8).
ECHOED = {"vllm/completions_echo": 4, "vllm/completions_echo_ids": 4, "llama_cpp_python/completions_echo_zero": 4}
# What an engine says otherwise when it streams: no usage, or nothing of a character that was never completed.
PAIRS: dict[str, set[str]] = {
    "vllm/completions_ids": set(),
    "vllm/completions_logprobs": set(),
    "llama_cpp_python/completions_ids": {"usage"},
    "llama_cpp_python/completions_logprobs": {"usage"},
    "llama_server/completions_ids": {"completion"},
    "llama_server/completions_logprobs": {"completion"},
    "transformers_serve/completions_logprobs": {"completion"},
    "transformers_serve/noids_completions_ids": {"completion"},
    "transformers_serve/noids_completions_logprobs": {"completion"},
}


def choices_of(name: str) -> dict[int, list[dict[str, Any]]]:
    """The choices of an answer, each as its parts in order, by index."""
    found: dict[int, list[dict[str, Any]]] = {}
    for body in bodies(recorded(COMPLETIONS)[name]):
        for choice in body.get("choices", ()):
            found.setdefault(choice["index"], []).append(choice)
    return found


def ids_in(name: str, parts: list[dict[str, Any]]) -> tuple[list[int] | None, list[int] | None]:
    """Prompt and completion ids, wherever these engines put them."""
    sent = asked(COMPLETIONS, name)["prompt"]
    prompts = [part["prompt_token_ids"] for part in parts if part.get("prompt_token_ids")]
    prompt = prompts[0] if prompts else sent if isinstance(sent[0], int) else None
    ids = concatenated(part["token_ids"] for part in parts if part.get("token_ids") is not None)
    if ids is None:
        entries = concatenated(p["logprobs"]["content"] for p in parts if (p.get("logprobs") or {}).get("content"))
        tokens = concatenated(p["logprobs"]["tokens"] for p in parts if (p.get("logprobs") or {}).get("tokens"))
        if entries:
            ids = [entry["id"] for entry in entries]
        elif tokens and all(token.startswith("token_id:") for token in tokens):
            ids = [int(token.removeprefix("token_id:")) for token in tokens]
    return prompt, ids


def logprobs_in(name: str, parts: list[dict[str, Any]]) -> tuple[list[float] | None, list[Any]]:
    """Logprobs and alternatives of the completion, from arrays or from entries."""
    found = [part["logprobs"] for part in parts if part.get("logprobs")]
    values = concatenated(
        each["token_logprobs"] if "token_logprobs" in each else [entry["logprob"] for entry in each["content"]]
        for each in found
    )
    tops: list[Any] = []
    for each in found:
        for top in each.get("top_logprobs") or [entry["top_logprobs"] for entry in each.get("content", ())]:
            named = top.items() if isinstance(top, dict) else ()
            tops.append(top if isinstance(top, list) else [{"token": t, "logprob": value} for t, value in named])
    kept = ECHOED.get(name, 0)
    return (None if values is None else values[-kept:]), tops[-kept:]


def test_the_table_names_every_recorded_exchange() -> None:
    """No recording is left out of the tests below."""
    assert sorted(ROWS) == sorted(recorded(COMPLETIONS))


@pytest.mark.parametrize("name", ROWS)
def test_ids_and_logprobs_are_there_or_the_step_says_why_not(name: str) -> None:
    """Each step has exactly the token facts, or the reason for their absence, that the table names."""
    prompt, ids, logprobs, why = ROWS[name]
    reasons = set()
    for step in steps_of(COMPLETIONS, name):
        assert ("-" if step.prompt_token_ids is None else "ids") == prompt
        assert (step.token_source or "-") == ids
        assert (step.completion_token_ids is None) == (ids == "-")
        assert ("-" if step.logprobs is None else "logprobs") == logprobs
        if step.error is not None:
            reasons.add(f"error:{step.error.status}")
        else:
            reasons.add(step.token_issue.code if step.token_issue else "-")
    assert "|".join(sorted(reasons)) == why


@pytest.mark.parametrize("name", ANSWERED)
def test_what_is_there_equals_the_raw_bytes(name: str) -> None:
    """Ids, logprobs, alternatives, text and reasons are the bytes' own, number for number."""
    expected = choices_of(name)
    steps = steps_of(COMPLETIONS, name)
    assert [step.choice for step in steps] == sorted(expected)
    for step in steps:
        parts = expected[step.choice]
        prompt, ids = ids_in(name, parts)
        logprobs, tops = logprobs_in(name, parts)
        if step.prompt_token_ids is not None:
            assert numbers(step.prompt_token_ids) == prompt
        if step.completion_token_ids is not None:
            assert numbers(step.completion_token_ids) == ids
        if step.logprobs is not None:
            assert numbers(step.logprobs) == float32(logprobs)
            assert step.top_logprobs == tops
        assert step.completion is not None
        assert step.completion.content == "".join(part["text"] for part in parts)
        assert step.finish_reason == next(part["finish_reason"] for part in parts if part.get("finish_reason"))
        assert step.stop_reason is None
        assert (step.status, step.error) == ("ok", None)


@pytest.mark.parametrize("name", ANSWERED)
def test_names_and_usage_equal_the_raw_bytes(name: str) -> None:
    """Response id, models and the engine's own counts are kept, for each choice alike."""
    answer = bodies(recorded(COMPLETIONS)[name])
    usages = [body["usage"] for body in answer if body.get("usage")]
    for step in steps_of(COMPLETIONS, name):
        assert step.response_id == answer[0]["id"]
        assert step.response_model == answer[0]["model"]
        assert step.model == asked(COMPLETIONS, name)["model"]
        if usages:
            assert step.usage is not None
            counts = (usages[-1]["prompt_tokens"], usages[-1]["completion_tokens"])
            assert (step.usage.input, step.usage.output) == counts
        else:
            assert step.usage is None


@pytest.mark.parametrize("name", FAILED)
def test_a_refused_request_is_one_step_that_holds_the_servers_error(name: str) -> None:
    """Whatever the shape of the error: its text is kept, nothing else is there."""
    exchange = recorded(COMPLETIONS)[name]
    (step,) = steps_of(COMPLETIONS, name)
    assert step.error is not None
    assert step.status == "error"
    body = exchange.response.decode()
    said: dict[str, Any] = json.loads(body) if body.startswith("{") else {"detail": body}
    message = said["detail"] if "detail" in said else said["error"]["message"]
    # llama-cpp-python's says nothing.
    assert step.error.message == message or not message
    assert (step.completion, step.usage, step.finish_reason, step.response_id) == (None, None, None, None)


def test_several_prompts_are_each_choices_own() -> None:
    """Two prompts in one request: each step has its prompt, as text and as ids."""
    one, two = steps_of(COMPLETIONS, "vllm/completions_batch_prompts")
    assert (one.messages, two.messages) == (["a b c"], ["x = 1"])
    assert (numbers(one.prompt_token_ids), numbers(two.prompt_token_ids)) == ([64, 297, 284], [87, 273, 220, 16])
    both = steps_of(COMPLETIONS, "vllm/completions_n2")
    assert [step.messages for step in both] == [["def naïve(x):\n    return"]] * 2


def test_echoed_logprobs_are_cut_where_the_prompt_ends() -> None:
    """The last four of fourteen, which are those of the same request without echo; never the prompt's."""
    (plain,) = steps_of(COMPLETIONS, "vllm/completions_ids")
    for name in ("vllm/completions_echo", "vllm/completions_echo_ids"):
        (step,) = steps_of(COMPLETIONS, name)
        assert numbers(step.logprobs) == (numbers(plain.logprobs) or [])[:4]
        assert step.top_logprobs == (plain.top_logprobs or [])[:4]


def test_why_an_echo_is_not_resolved_names_the_counts() -> None:
    """llama-cpp-python gives 13 logprobs for 10 + 4 tokens; vLLM with max_tokens 0 gives the prompt's ten alone."""
    (lossy,) = steps_of(COMPLETIONS, "llama_cpp_python/completions_echo")
    (prompt_only,) = steps_of(COMPLETIONS, "vllm/completions_echo_zero")
    assert lossy.token_issue is not None
    assert lossy.token_issue.message == (
        "the prompt was to be echoed: 13 logprobs are not 10 of the prompt and 4 of the completion."
    )
    assert prompt_only.token_issue is not None
    assert prompt_only.token_issue.message == "max_tokens is 0: all 10 logprobs are of the echoed prompt."


@pytest.mark.parametrize(("name", "other"), PAIRS.items())
def test_a_streamed_step_equals_the_unstreamed_one(name: str, other: set[str]) -> None:
    """Field by field: only what the engine itself says otherwise differs (no usage, half a character left out)."""
    stream = f"{name}_stream"
    assert {**asked(COMPLETIONS, name), "stream": True, "stream_options": {"include_usage": True}} == (
        asked(COMPLETIONS, stream)
    )
    (one,), (two,) = steps_of(COMPLETIONS, name), steps_of(COMPLETIONS, stream)
    assert differing(one, two) == other
    assert one.completion is not None
    assert two.completion is not None
    assert str(one.completion.content).startswith(str(two.completion.content))


@pytest.mark.parametrize("name", ["vllm/completions_n2_stream", "vllm/completions_ids_stream"])
def test_a_stream_cut_at_any_byte_gives_what_came(name: str) -> None:
    """No cut raises, mis-pairs, or turns into an error."""
    exchange = recorded(COMPLETIONS)[name]
    check_cuts(COMPLETIONS, exchange.request, exchange.response)


@pytest.mark.parametrize(
    "name",
    [
        "llama_server/completions_n2_stream",
        "llama_cpp_python/completions_ids_stream",
        "transformers_serve/completions_logprobs_stream",
    ],
)
def test_other_engines_streams_cut_anywhere_give_what_came(name: str) -> None:
    """As above, at every seventh byte."""
    exchange = recorded(COMPLETIONS)[name]
    check_cuts(COMPLETIONS, exchange.request, exchange.response, stride=7)
