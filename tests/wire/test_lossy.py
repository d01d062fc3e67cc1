"""llama-server leaves out the entries of tokens that end inside a character: bytes of a live server that deceived."""

from __future__ import annotations

import json

from rollout_trace.wire import decode


def events(*bodies: object) -> bytes:
    return "".join(f"data: {json.dumps(body)}\n\n" for body in (*bodies,)).encode() + b"data: [DONE]\n\n"


def entry(token: int) -> dict[str, object]:
    return {"id": token, "token": "x", "logprob": -1.0, "top_logprobs": []}


def chunk(index: int, *tokens: int, finish: str | None = None) -> dict[str, object]:
    logprobs = {"content": [entry(token) for token in tokens]}
    return {"choices": [{"index": index, "delta": {"content": "x"}, "logprobs": logprobs, "finish_reason": finish}]}


def test_a_chat_stream_without_usage_is_not_believed() -> None:
    """Eleven entries of sixteen tokens look like eleven tokens, where nothing counts them."""
    body = events(*(chunk(0, token) for token in range(11)), chunk(0, finish="length"))
    (step,) = decode("openai.chat", b"{}", body, content_type="text/event-stream")
    assert (step.completion_token_ids, step.logprobs) == (None, None)
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_unconfirmed"


def test_a_usage_of_one_choice_does_not_count_two() -> None:
    """3 + 21 entries of 4 + 24 tokens, and a usage of 24."""
    body = events(
        *(chunk(0, token) for token in range(3)), chunk(0, finish="stop"),
        *(chunk(1, token) for token in range(21)), chunk(1, finish="length"),
        {"choices": [], "usage": {"completion_tokens": 24}},
    )  # fmt: skip
    for step in decode("openai.chat", b"{}", body, content_type="text/event-stream"):
        assert (step.completion_token_ids, step.logprobs) == (None, None)
        assert step.token_issue is not None


def test_a_null_event_is_nothing() -> None:
    """It comes where the first token is half a character; the SDKs pass over it."""
    first = b"data: null\n\n"
    rest = events({"choices": [{"index": 0, "text": "\u00e9", "finish_reason": "stop"}]})
    (step,) = decode("openai.completions", b"{}", first + rest, content_type="text/event-stream")
    assert (step.status, step.error) == ("ok", None)
    assert step.completion is not None
    assert step.completion.content == "\u00e9"


def test_exact_ids_of_a_completion_are_taken() -> None:
    """They stand in `__verbose`; the entries beside them are too few for logprobs."""
    choice = {"index": 0, "text": "xx", "finish_reason": "stop", "logprobs": {"content": [entry(8)]}}
    body = {"choices": [choice], "usage": {"completion_tokens": 2}, "__verbose": {"tokens": [7, 8]}}
    (step,) = decode("openai.completions", b"{}", json.dumps(body).encode(), content_type="application/json")
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == [7, 8]
    assert step.logprobs is None
    assert step.token_issue is not None
    assert step.token_source == "engine"
