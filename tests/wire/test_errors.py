"""Answers that are errors, in every shape a server or a proxy gives them: one step, which says what was said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.data.model import ErrorInfo
from rollout_trace.wire import decode
from tests.wire.anthropic import raw as messages
from tests.wire.raw import JSON, SSE, delta, exchanges, read, sse, tokens, unary

OBJECT = {"message": "too long", "type": "BadRequestError", "param": "input", "code": 400}
HTML = "<html><body>502 Bad Gateway</body></html>"

SHAPES: dict[str, tuple[bytes, int, str, str, str | int | None]] = {
    "object": (json.dumps({"error": OBJECT}).encode(), 400, "BadRequestError", "too long", 400),
    "text": (b'{"error": "model not loaded"}', 404, "HTTPError", "model not loaded", None),
    "flat": (json.dumps({"object": "error", **OBJECT}).encode(), 400, "BadRequestError", "too long", 400),
    "text code": (b'{"error": {"message": "slow", "code": "rate_limit"}}', 429, "HTTPError", "slow", "rate_limit"),
    "detail": (b'{"detail": "Not Found"}', 404, "HTTPError", "Not Found", None),
    "detail list": (
        b'{"detail": [{"loc": ["body", "n"], "msg": "bad"}]}',
        422, "HTTPError", "[{'loc': ['body', 'n'], 'msg': 'bad'}]", None,
    ),
    "detail in error": (b'{"error": {"detail": "no"}}', 400, "HTTPError", "no", None),
    "anthropic": (
        b'{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}',
        529, "overloaded_error", "busy", None,
    ),
    "plain text": (b"Internal Server Error\n", 500, "HTTPError", "Internal Server Error", None),
    "html": (HTML.encode(), 502, "HTTPError", HTML, None),
    "empty": (b"", 503, "HTTPError", "empty body", None),
    "blank": (b" \n", 503, "HTTPError", "empty body", None),
    "no utf-8": (b"caf\xe9", 500, "HTTPError", "caf\N{REPLACEMENT CHARACTER}", None),
    "json text": (b'"boom"', 500, "HTTPError", "boom", None),
    "message of another type": (b'{"error": {"message": {"a": 1}, "code": true}}', 500, "HTTPError", "{'a': 1}", None),
    "cut": (b'{"error": {"mess', 500, "HTTPError", '{"error": {"mess', None),
}  # fmt: skip


@pytest.mark.parametrize("content_type", [JSON, SSE, "text/html", None])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_http_error_says_what_the_server_said(shape: str, content_type: str | None) -> None:
    """Type, message, code and status, whatever the body is and is said to be."""
    body, status, kind, message, code = SHAPES[shape]
    (step,) = decode("openai.chat", b'{"model": "m"}', body, content_type=content_type, status=status)
    assert step.error == ErrorInfo(type=kind, message=message, code=code, status=status)
    assert (step.status, step.model, step.completion) == ("error", "m", None)
    assert (step.completion_token_ids, step.logprobs, step.usage) == (None, None, None)


@pytest.mark.parametrize("value", [None, [], {}, 0, 5, [1], "", False])
def test_an_http_error_of_any_json_is_an_error(value: Any) -> None:
    """Also where the body holds no error at all, under `error` or as a whole."""
    for body in (value, {"error": value}, {"detail": value}):
        step = read(json.dumps(body).encode(), status=500)
        assert step.status == "error"
        assert step.error is not None
        assert step.error.status == 500
        assert step.error.message


def test_a_long_error_page_is_shortened() -> None:
    """Two thousand characters of a page are enough."""
    step = read(b"x" * 100_000, status=502)
    assert step.error is not None
    assert step.error.message == "x" * 2000


@pytest.mark.parametrize("error", [OBJECT, "too long", {"detail": "too long"}])
def test_an_error_under_status_200_is_an_error(error: Any) -> None:
    """Proxies answer 200 and put the error in the body."""
    step = read(json.dumps({"error": error}).encode())
    assert (step.status, step.completion) == ("error", None)
    assert step.error is not None
    assert step.error.message == "too long"


@pytest.mark.parametrize("body", [b"", b"null", b"5", b"[]", b'"x"', b"{}", b"<html>", b'{"choices": []}', b'{"a": 1'])
def test_a_200_that_is_no_answer_is_an_error(body: bytes) -> None:
    """An unstreamed answer without a choice is never silently nothing."""
    step = read(body)
    assert (step.status, step.completion, step.completion_token_ids) == ("error", None, None)
    assert step.error is not None
    assert step.error.message


def test_an_unstreamed_answer_cut_at_any_byte_is_an_error() -> None:
    """Half an object is never read as a whole one."""
    exchange = exchanges()["chat_forced_eos"]
    body = exchange.response.rstrip()
    for cut in range(len(body)):
        step = read(body[:cut], request=exchange.request)
        assert (step.status, step.completion, step.completion_token_ids, step.logprobs) == ("error", None, None, None)
        assert step.error is not None
        assert step.error.type == "InvalidJSON"
    assert read(body, request=exchange.request).status == "ok"


@pytest.mark.parametrize("error", [OBJECT, "too long"])
def test_an_error_inside_a_stream_keeps_what_came_before(error: Any) -> None:
    """The choice has its text and its ids so far, and the error of the server."""
    step = read(sse(delta({"content": "hi"}, token_ids=[5]), {"error": error}))
    assert step.status == "error"
    assert step.error is not None
    assert step.error.message == "too long"
    assert step.completion is not None
    assert step.completion.content == "hi"
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == [5]


def test_an_error_after_the_finish_leaves_the_finished_choice_ok() -> None:
    """A choice that ended before the error is whole; its sibling is not."""
    body = sse(delta({"content": "a"}, finish_reason="stop"), delta({"content": "b"}, index=1), {"error": "lost"})
    one, other = decode("openai.chat", b"{}", body, content_type=SSE)
    assert (one.status, other.status) == ("ok", "error")
    assert other.error is not None
    assert other.error.message == "lost"


def test_bad_json_inside_a_stream_is_an_error() -> None:
    """What came before is kept; what comes after cannot be trusted to follow on it, and is not read."""
    step = read(sse(delta({"content": "a"}, token_ids=[1]), b'{"choices": [', delta({"content": "c"}, token_ids=[3])))
    assert step.status == "error"
    assert step.error is not None
    assert step.error.type == "InvalidJSON"
    assert step.completion is not None
    assert step.completion.content == "a"
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == [1]


@pytest.mark.parametrize("error", [None, "", {}, [], False])
def test_an_empty_error_field_is_no_error(error: Any) -> None:
    """Some servers send the key on every answer."""
    step = read(unary(tokens([1], None), error=error))
    assert (step.status, step.error) == ("ok", None)


UNSAID = {
    "choices of a wrong type": sse({"choices": "x"}),
    "choice of a wrong type": sse({"choices": [5]}),
    "error event in plain text": b"event: error\ndata: upstream died\n\n",
    "error without the `error` key": sse({"object": "error", **OBJECT}),
    "FastAPI detail": sse({"detail": "internal error"}),
    "one JSON error, not framed": json.dumps({"error": OBJECT}).encode(),
}


@pytest.mark.parametrize("shape", UNSAID)
def test_a_stream_of_something_else_says_so(shape: str) -> None:
    """Bytes came, and none of them were an answer: an error or an issue, not a silent `abandoned`."""
    step = read(UNSAID[shape], content_type=SSE)
    assert step.error is not None or step.token_issue is not None


@pytest.mark.parametrize("body", [HTML.encode(), b"Bad Gateway"])
def test_a_page_of_unknown_type_says_so(body: bytes) -> None:
    """Without a content type, text that is neither JSON nor a stream is an error."""
    (step,) = decode("openai.chat", b"{}", body)
    assert step.error is not None or step.token_issue is not None


# Errors inside a 200 that are no `{"error": ...}`: what SDKs pass over in silence.

OTHER_ERRORS = {
    "vLLM's unstreamed one": b'data: {"object": "error", "message": "too long", "code": 400}\n\n',
    "fms-guardrails": b'event: error\ndata: {"code": 400, "details": "too long"}\n\n',
    "code and message": b'event: error\ndata: {"code": 503, "message": "too long"}\n\n',
    "DashScope": b'id:1\nevent:error\n:HTTP_STATUS/400\ndata:{"code": "InvalidParameter", "message": "too long"}\n\n',
    "a text": b"event: error\ndata: too long\n\n",
    "llama.cpp until 2025": b'error: {"code": 500, "message": "too long", "type": "server_error"}\n\n',
}
PROTOCOLS = {
    "openai.chat": {"choices": [{"index": 0, "delta": {"content": "a"}}]},
    "openai.completions": {"choices": [{"index": 0, "text": "a"}]},
    "sglang.generate": {"text": "a", "output_ids": [1], "meta_info": {"id": "i"}},
    "openai.responses": {"type": "response.output_text.delta", "output_index": 0, "delta": "a"},
    "anthropic.messages": {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
    "google.generate_content": {"candidates": [{"content": {"parts": [{"text": "a"}]}}]},
}
ONES = [
    (protocol, case)
    for case in OTHER_ERRORS
    for protocol in PROTOCOLS
    if "vLLM" not in case or protocol in ("openai.chat", "openai.completions")
]


@pytest.mark.parametrize(("protocol", "case"), ONES)
@pytest.mark.parametrize("behind", [b"", b"data: [DONE]\n\n"])
@pytest.mark.parametrize("before", [True, False])
def test_an_error_of_another_shape_is_one(protocol: str, case: str, behind: bytes, before: bool) -> None:
    text = sse(PROTOCOLS[protocol], done=False) if before else b""
    (step,) = decode(protocol, b'{"stream": true}', text + OTHER_ERRORS[case] + behind, content_type=SSE)
    assert step.status == "error"
    assert step.error is not None
    assert step.error.message == "too long"
    assert step.token_issue is None or step.token_issue.code != "background_not_fetched"


@pytest.mark.parametrize("error", [{"code": 502, "message": "lost"}, None])
@pytest.mark.parametrize("protocol", ["openai.chat", "openai.completions"])
def test_an_error_of_a_choice_is_of_that_choice(protocol: str, error: Any) -> None:
    """OpenRouter's; vLLM's has the finish reason alone."""
    failed = {"index": 1, "finish_reason": "error", **({} if error is None else {"error": error})}
    parts = {"text": "a", "delta": {"content": "a"}}
    stream = sse({"choices": [{"index": 0, **parts, "finish_reason": "stop"}, {**failed, **parts}]})
    whole = {"text": "a", "message": {"role": "assistant", "content": "a"}}
    body = json.dumps({"choices": [{"index": 0, **whole, "finish_reason": "stop"}, {**failed, **whole}]}).encode()
    for answer, kind in ((stream, SSE), (body, JSON)):
        good, bad = decode(protocol, b"{}", answer, content_type=kind)
        assert (good.status, good.error, bad.status) == ("ok", None, "error")
        assert bad.error is not None
        assert (bad.error.code, "lost" in bad.error.message) == ((None, False) if error is None else (502, True))


def test_the_only_choice_of_a_usual_answer_may_have_failed() -> None:
    message = {"message": {"role": "assistant", "content": "a"}, "finish_reason": "error"}
    assert read(unary(message)).status == "error"


BARE = json.dumps({"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}, indent=2)
BEGUN: dict[str, dict[str, Any]] = {
    "openai.chat": delta({"content": "a"}),
    "openai.responses": {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}},
    "anthropic.messages": {"type": "message_start", "message": {"content": [{"type": "text", "text": "a"}]}},
    "google.generate_content": {"candidates": [{"content": {"parts": [{"text": "a"}]}}]},
}


@pytest.mark.parametrize("protocol", BEGUN)
@pytest.mark.parametrize("error", [BARE, BARE + "\n" + BARE, BARE + BARE, json.dumps(json.loads(BARE)) + "\n\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_error_that_is_no_event_of_its_stream(protocol: str, error: str, newline: str) -> None:
    """Google's comes in lines without a field, sometimes twice; its SDK raises it. Proxies write theirs so, too."""
    body = f"data: {json.dumps(BEGUN[protocol])}\n\n{error}".replace("\n", newline).encode()
    (step,) = decode(protocol, b'{"stream": true}', body, content_type=SSE)
    assert step.status == "error"
    assert step.error == ErrorInfo(type="UNAVAILABLE", message="busy", code=503)


def test_an_object_that_is_no_event_of_its_stream_is_none() -> None:
    """An unknown field, as SDKs take it."""
    body = b'data: %b\n\n{"warning": 1}\n\n' % json.dumps(delta({"content": "a"}, finish_reason="stop")).encode()
    (step,) = decode("openai.chat", b'{"stream": true}', body, content_type=SSE)
    assert (step.status, step.error) == ("ok", None)


@pytest.mark.parametrize("last", [messages.STOP, b"data: [DONE]\n\n"], ids=["stop", "done"])
def test_an_error_behind_the_end_of_a_message(last: Any) -> None:
    """Anthropic's SDK raises it; what stands behind the end otherwise is nothing of the message."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    events = [messages.start(), *messages.text("a"), messages.end()[0], last]
    step = messages.read(messages.sse(*events, *messages.text("b", index=1), b"data: {\n\n"))
    assert step.completion is not None
    assert (step.status, step.completion.content, step.error) == ("ok", "a", None)
    step = messages.read(messages.sse(*events, error))
    said = None if last == b"data: [DONE]\n\n" else ErrorInfo(type="overloaded_error", message="busy")
    assert (step.status, step.error) == ("ok", said)
