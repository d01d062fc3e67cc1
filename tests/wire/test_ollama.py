"""Ollama's answers: streamed as unstreamed, texts and no ids, errors, and what its logprobs and `context` are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rollout_trace.data.model import STEP_FIELDS, Step, Usage
from rollout_trace.data.tokens import same_array
from rollout_trace.testing import Reply, ScriptedServer, ToolCall
from rollout_trace.wire import decode
from rollout_trace.wire.chat_messages import answer, to_chat, tools_of

LINES = "application/x-ndjson"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GENERATE: dict[str, Any] = {"model": "m", "prompt": "hi", "system": "be brief"}
PATHS = {"ollama.chat": ("/api/chat", CHAT), "ollama.generate": ("/api/generate", GENERATE)}
OF_THE_EXCHANGE = {"id", "call_id"}


def chunk(text: str = "", **fields: Any) -> dict[str, Any]:
    """One object of a chat's stream."""
    return {"model": "m", "message": {"role": "assistant", "content": text}, "done": False, **fields}


END = chunk(done=True, done_reason="stop", prompt_eval_count=7, eval_count=3, total_duration=12)


def lines(*values: Any) -> bytes:
    """A stream of objects."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def step_of(response: bytes, protocol: str = "ollama.chat", request: Any = CHAT, status: int = 200) -> Step:
    """The step of an answer; a stream unless the request says otherwise."""
    kind = "application/json" if request.get("stream") is False else LINES
    (step,) = decode(protocol, json.dumps(request).encode(), response, content_type=kind, status=status)
    return step


def served(protocol: str, reply: Reply, **request: Any) -> Step:
    """The step of a scripted server's answer."""
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    path, usual = PATHS[protocol]
    body = {**usual, **request}
    with ScriptedServer(reply) as server:
        connection = HTTPConnection(str(urlsplit(server.url).netloc))
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        content, status, kind = response.read(), response.status, response.getheader("content-type")
        connection.close()
    (step,) = decode(protocol, json.dumps(body).encode(), content, content_type=kind, status=status)
    return step


def differing(one: Step, other: Step) -> set[str]:
    """The fields in which two steps differ, save those of the exchange itself."""
    names = set(STEP_FIELDS) - OF_THE_EXCHANGE
    return {name for name in names if not same_array(getattr(one, name), getattr(other, name))}


REPLIES = {
    "text": Reply("hé you"),
    "thinking": Reply("four", reasoning="two and two"),
    "tools": Reply("so", tool_calls=[ToolCall("add", '{"a":1,"b":"é"}'), ToolCall("now")]),
    "length": Reply("cut here", finish_reason="length"),
}


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("protocol", PATHS)
def test_streamed_equals_unstreamed(protocol: str, reply: str, logprobs: bool) -> None:
    asked = {"logprobs": True, "top_logprobs": 3} if logprobs else {}
    streamed = served(protocol, REPLIES[reply], **asked)
    whole = served(protocol, REPLIES[reply], stream=False, **asked)
    calls = [replace(call, id="drawn") for call in whole.completion.tool_calls] if whole.completion else []
    assert differing(streamed, whole) == set()
    assert (streamed.status, streamed.error) == ("ok", None)
    assert streamed.completion is not None
    assert streamed.completion.content == (REPLIES[reply].text)
    assert streamed.completion.reasoning == REPLIES[reply].reasoning
    assert streamed.finish_reason == ("length" if reply == "length" else "stop")
    assert [(call.name, call.arguments) for call in calls] == (
        [("add", '{"a":1,"b":"é"}'), ("now", "{}")] if reply == "tools" else []
    )


def test_counts_and_durations() -> None:
    step = step_of(lines(chunk("a"), chunk("b"), END))
    assert step.completion is not None
    assert (step.completion.content, step.status, step.finish_reason) == ("ab", "ok", "stop")
    assert step.usage == Usage(input=7, output=3)
    assert step.extra == {"total_duration": 12}
    assert (step.model, step.response_model, step.sampling) == ("m", "m", {})


def test_a_count_that_is_left_out_is_not_zero() -> None:
    """Ollama leaves out zeros: with a cached prompt, older ones have no count of it."""
    step = step_of(lines(chunk("a"), {name: value for name, value in END.items() if name != "prompt_eval_count"}))
    assert step.usage == Usage(input=None, output=3)


def test_a_count_below_zero_is_none() -> None:
    step = step_of(lines(chunk("a"), {**END, "prompt_eval_count": -1}))
    assert step.usage == Usage(input=None, output=3)
    assert step_of(lines(chunk("a"), {**END, "prompt_eval_count": -1, "eval_count": -1})).usage is None


@pytest.mark.parametrize("stream", ["\ud800", 1, {}, "true"])
def test_a_request_whose_stream_is_no_truth_value(stream: Any) -> None:
    """It is read all the same, by the reader of odd bodies too."""
    (step,) = decode("ollama.chat", json.dumps({**CHAT, "stream": stream}).encode(), json.dumps(END).encode())
    assert (step.status, step.model) == ("ok", "m")


def test_options_are_sampling_parameters() -> None:
    request = {**CHAT, "options": {"temperature": 0.5, "num_predict": 9}, "keep_alive": "5m", "stream": True}
    step = step_of(lines(chunk("a"), END), request=request)
    assert step.sampling == {"temperature": 0.5, "num_predict": 9, "keep_alive": "5m"}


def test_the_text_of_arguments_is_kept() -> None:
    raw = b'{"model":"m","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":'
    raw += b'{"x": 1.50, "y":1e-1,\t"z":"\\u00e9"}}}]},"done":false}\n'
    step = step_of(raw + lines(END))
    assert step.completion is not None
    (call,) = step.completion.tool_calls
    assert (call.id, call.name, call.arguments) == (None, "f", '{"x": 1.50, "y":1e-1,\t"z":"\\u00e9"}')
    assert step.completion.content is None


def test_logprobs_without_a_gap() -> None:
    entries = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5}]}]
    end = {**END, "eval_count": 2}
    step = step_of(lines(chunk("a", logprobs=entries), chunk("b", logprobs=entries), end))
    assert step.logprobs is not None
    assert step.logprobs.tolist() == [-0.5, -0.5]
    assert step.top_logprobs == [[{"token": "a", "logprob": -0.5}]] * 2
    assert (step.token_issue and step.token_issue.code, step.extra) == ("ids_missing", {"total_duration": 12})


def test_logprobs_that_lack_the_stop_token() -> None:
    """Ollama has none of tokens without a text: which they are is not known, so none is put beside another's."""
    entries = [{"token": "a", "logprob": -0.5}]
    step = step_of(lines(chunk("a", logprobs=entries), END))
    assert step.logprobs is None
    assert step.token_issue is not None
    assert (step.token_issue.code, step.token_issue.message) == ("usage_differs", "1 tokens arrived, usage says 3.")
    assert step.extra == {"total_duration": 12, "logprobs": [{"logprob": -0.5, "token": "a"}]}


def test_context_is_no_ids() -> None:
    step = served("ollama.generate", Reply("fine"))
    assert step.extra is not None
    assert step.extra["context"]
    assert step.completion_token_ids is None
    assert step.prompt_token_ids is None
    assert step.token_source is None
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"
    assert "tokenised once more" in step.token_issue.message
    raw = served("ollama.generate", Reply("fine"), raw=True)
    assert "context" not in (raw.extra or {})
    assert raw.token_issue is not None
    assert raw.token_issue.message == "ollama.generate has no place for token ids."


@pytest.mark.parametrize("protocol", PATHS)
def test_an_error_response(protocol: str) -> None:
    step = step_of(b'{"error":"model \'m\' not found"}', protocol, PATHS[protocol][1], status=404)
    assert step.error is not None
    assert (step.status, step.error.status, step.error.message) == ("error", 404, "model 'm' not found")


def test_an_error_in_a_stream() -> None:
    step = step_of(lines(chunk("a"), {"error": "out of memory"}))
    assert step.error is not None
    assert (step.status, step.error.type, step.error.message) == ("error", "ProviderError", "out of memory")
    assert step.completion is not None
    assert step.completion.content == "a"
    alone = step_of(b'{"error":"out of memory"}', request={**CHAT, "stream": False})
    assert alone.error == step.error


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_stream_that_is_cut(cut: int) -> None:
    whole = lines(chunk("a"), chunk("b"), END)
    step = step_of(whole[:cut])
    assert (step.status, step.error) == ("abandoned", None)
    text = "".join(json.loads(line)["message"]["content"] for line in whole[:cut].split(b"\n")[:-1])
    assert ((step.completion and step.completion.content) or "") in (text, text + "b", text + "a")


def test_the_last_line_may_lack_its_end() -> None:
    assert step_of(lines(chunk("a"), END)[:-1]).status == "ok"


@pytest.mark.parametrize("reason", ["load", "unload"])
@pytest.mark.parametrize("protocol", PATHS)
def test_loading_a_model_samples_nothing(protocol: str, reason: str) -> None:
    body = {**END, "response": "", "done_reason": reason}
    if protocol == "ollama.generate":
        del body["message"]
    step = step_of(lines(body), protocol, PATHS[protocol][1])
    assert step.completion is None
    assert step.error is not None
    assert (step.status, step.error.type) == ("error", "UnexpectedBody")


@pytest.mark.parametrize("response", [b"<html>", b"[]", b"null", b'{"reply": "hi"}', b"not json\n", b"12"])
@pytest.mark.parametrize("streamed", [True, False])
def test_what_is_no_answer(response: bytes, streamed: bool) -> None:
    step = step_of(response, request={**CHAT, "stream": streamed})
    assert step.completion is None
    assert step.error is not None
    assert step.status == "error"
    assert step.error.type in ("InvalidJSON", "UnexpectedBody")


def test_fields_without_a_place_are_kept() -> None:
    first = chunk("a", remote_model="far/m")
    first["message"]["images"] = ["aW1n"]
    first["message"]["audio"] = "x"
    step = step_of(lines(first, END))
    assert step.completion is not None
    assert step.completion.extra == {"images": ["aW1n"], "audio": "x"}
    assert step.extra == {"remote_model": "far/m", "total_duration": 12}


def test_a_field_of_another_type() -> None:
    step = step_of(lines({**chunk("a"), "eval_count": "many"}, END))
    assert step.completion is not None
    assert (step.completion.content, step.status) == ("a", "ok")
    assert step.token_issue is not None
    assert step.token_issue.code == "response_malformed"


def test_chat_messages() -> None:
    sent = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "what", "images": ["iVBORw0KGgo="]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"x": "é"}}}],
        },
        {"role": "tool", "content": "4", "tool_name": "f", "tool_call_id": "c1"},
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    step = step_of(lines(chunk("4"), END), request={"model": "m", "messages": sent, "tools": [tool]})
    assert to_chat(step) == [
        sent[0],
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ],
        },
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":"é"}'}}],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "f"},
    ]
    assert tools_of(step) == [tool]
    assert answer(step) == {"role": "assistant", "content": "4"}


def test_a_prompt_as_messages() -> None:
    step = served("ollama.generate", Reply("fine"))
    assert step.messages is not None
    assert list(step.messages) == [{"role": "system", "content": "be brief"}, "hi"]
    assert to_chat(step) == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
