"""llama-server leaves out the entries of tokens that end inside a character: bytes of a live server that deceived."""

from __future__ import annotations

import json

from rollout_trace.data.model import Step, TokenIssue
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode
from tests.wire.recorded import DATA


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


def test_a_chat_stream_that_ends_by_itself_has_no_entry_for_its_stop_token() -> None:
    """Recorded, b11549: the usage counts it, and a step with 6 of 7 tokens would never learn to stop. Unstreamed all
    come, and completions have it in streams too."""
    found = {one.name: one for one in load_exchanges(DATA / "wire_llama_server_b11549.jsonl.xz")}

    def step_of(name: str, protocol: str = "openai.chat") -> Step:
        one = found[name]
        (step,) = decode(protocol, one.request, one.response, content_type=one.content_type)
        return step

    whole, streamed = step_of("chat_ends"), step_of("chat_ends_stream")
    assert whole.completion_token_ids is not None
    assert (len(whole.completion_token_ids), whole.completion_token_ids[-1], whole.token_issue) == (7, 2041, None)
    assert (streamed.completion, streamed.finish_reason) == (whole.completion, "stop")
    assert (streamed.completion_token_ids, streamed.logprobs) == (None, None)
    assert streamed.token_issue == TokenIssue(code="usage_differs", message="6 tokens arrived, usage says 7.")
    uncounted = step_of("chat_ends_stream_uncounted")
    assert uncounted.token_issue is not None
    assert (uncounted.completion_token_ids, uncounted.token_issue.code) == (None, "ids_unconfirmed")
    for name, protocol in (("chat_stream", "openai.chat"), ("completions_ends_stream", "openai.completions")):
        assert step_of(name, protocol).completion_token_ids is not None


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
