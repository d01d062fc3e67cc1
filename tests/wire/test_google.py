"""``google.generate_content``: Google's answers, whole, streamed in both ways, cut, blocked and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.report import ExportReport
from rollout_trace.wire import decode
from rollout_trace.wire.chat_messages import answer, to_chat, tools_of

NAME = "google.generate_content"
CONTENTS = [{"role": "user", "parts": [{"text": "hi"}]}]
USAGE = {"promptTokenCount": 8, "candidatesTokenCount": 18, "thoughtsTokenCount": 240, "totalTokenCount": 266}


def asked(**fields: Any) -> bytes:
    return json.dumps({"contents": CONTENTS, **fields}).encode()


def chunk(*parts: Any, index: int = 0, answer: Any = None, **fields: Any) -> dict[str, Any]:
    candidate = {"content": {"parts": list(parts), "role": "model"}, **({"index": index} if index else {}), **fields}
    return {"candidates": [candidate], "modelVersion": "gemini-2.5", "responseId": "r1", **(answer or {})}


def sse(chunks: list[Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in chunks)


def array(chunks: list[Any]) -> bytes:
    return b"[" + b",\r\n".join(json.dumps(one).encode() for one in chunks) + b"]\n"


def read(body: bytes, request: bytes | None = None, **options: Any) -> list[rt.Step]:
    kind = "text/event-stream" if body.startswith(b"data:") else "application/json"
    options = {"content_type": kind, "model": "gemini-2.5-flash", **options}
    return decode(NAME, asked() if request is None else request, body, **options)


def one(body: bytes, request: bytes | None = None, **options: Any) -> rt.Step:
    (step,) = read(body, request, **options)
    return step


FIELDS = ("completion", "finish_reason", "usage", "extra", "response_model", "response_id", "status", "error")

WHOLE = chunk(
    {"text": "think hard", "thought": True},
    {"text": "An answer"},
    {"functionCall": {"name": "f", "args": {"a": 1.5, "b": "é"}}, "thoughtSignature": "c2ln"},
    finishReason="STOP",
    safetyRatings=[{"category": "HARM", "probability": "LOW"}],
    answer={"usageMetadata": USAGE, "createTime": "2026"},
)
CHUNKS = [
    chunk({"text": "think ", "thought": True}, answer={"usageMetadata": {"promptTokenCount": 8}}),
    chunk({"text": "hard", "thought": True}),
    chunk({"text": "An "}),
    chunk({"text": "answer"}, safetyRatings=[{"category": "HARM", "probability": "LOW"}]),
    chunk(WHOLE["candidates"][0]["content"]["parts"][2]),
    chunk({"text": ""}, finishReason="STOP", answer={"usageMetadata": USAGE, "createTime": "2026"}),
]


@pytest.mark.parametrize("body", [sse(CHUNKS), array(CHUNKS), array([WHOLE]), sse([WHOLE])])
def test_a_stream_is_the_answer_unstreamed(body: bytes) -> None:
    """Events and arrays give the step of the whole answer."""
    whole, streamed = one(json.dumps(WHOLE).encode()), one(body)
    assert {name: getattr(streamed, name) for name in FIELDS} == {name: getattr(whole, name) for name in FIELDS}
    assert whole.completion is not None
    assert (whole.completion.content, whole.completion.reasoning) == ("An answer", "think hard")
    assert [(c.name, c.extra) for c in whole.completion.tool_calls] == [("f", {"thoughtSignature": "c2ln"})]
    assert whole.completion.extra == {"parts": WHOLE["candidates"][0]["content"]["parts"]}
    assert whole.extra == {"createTime": "2026", "safetyRatings": [{"category": "HARM", "probability": "LOW"}]}


def test_arguments_are_as_the_server_spelled_them() -> None:
    """Numbers and escapes stay: the arguments are not encoded anew."""
    raw = '{"a": 1e-1, "b": "\\u00e9"}'
    body = json.dumps(chunk({"functionCall": {"name": "f", "args": "HERE"}}, finishReason="STOP"))
    completion = one(body.replace('"HERE"', raw).encode()).completion
    assert completion is not None
    assert completion.tool_calls[0].arguments == raw


def test_thoughts_are_part_of_the_output() -> None:
    """Google counts thoughts beside the candidates: prompt, candidates and thoughts make the total."""
    usage = one(json.dumps(WHOLE).encode()).usage
    assert usage == rt.Usage(input=8, output=258, reasoning=240)
    cached = {"promptTokenCount": 100, "toolUsePromptTokenCount": 7, "cachedContentTokenCount": 64}
    details = {"candidatesTokenCount": 3, "totalTokenCount": 110, "serviceTier": "standard"}
    usage = one(json.dumps({**WHOLE, "usageMetadata": {**cached, **details}}).encode()).usage
    extra = {"toolUsePromptTokenCount": 7, "serviceTier": "standard"}
    assert usage == rt.Usage(input=107, output=3, cache_read=64, extra=extra)


def test_zeros_that_are_left_out() -> None:
    """An answer that was all thought has no count of candidates; without a total nothing is known."""
    counts = {"promptTokenCount": 8, "thoughtsTokenCount": 50}
    for total, output in (({"totalTokenCount": 58}, 50), ({}, None)):
        usage = one(json.dumps({**WHOLE, "usageMetadata": {**counts, **total}}).encode()).usage
        assert usage is not None
        assert (usage.output, usage.reasoning) == (output, 50)


def scored(*entries: tuple[Any, float], top: bool = True) -> dict[str, Any]:
    chosen = [{"token": "t", "tokenId": token, "logProbability": value} for token, value in entries]
    rows = [{"candidates": [entry, {"token": "u", "tokenId": 9, "logProbability": -9.0}]} for entry in chosen]
    return {"logprobsResult": {"chosenCandidates": chosen, **({"topCandidates": rows} if top else {})}}


COUNTED = {"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "totalTokenCount": 3}}
SCORED = [
    chunk({"text": "a"}, **scored((5, -0.5))),
    chunk({"text": "b"}, **scored((6, -0.25)), finishReason="STOP", answer=COUNTED),
]


def test_ids_and_logprobs() -> None:
    """They are those of every chunk; alternatives are arrays too."""
    step = one(sse(SCORED), asked(generationConfig={"responseLogprobs": True, "logprobs": 2}))
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert (step.completion_token_ids.tolist(), step.logprobs.tolist()) == ([5, 6], [-0.5, -0.25])
    assert (step.token_source, step.token_issue, step.prompt_token_ids) == ("logprobs", None, None)
    assert step.top_tokens is not None
    assert step.top_tokens.ids.tolist() == [[5, 9], [6, 9]]
    assert step.top_logprobs is not None
    assert [row[1]["logprob"] for row in step.top_logprobs] == [-9.0, -9.0]
    assert step.sampling == {"responseLogprobs": True, "logprobs": 2}


def test_logprobs_without_all_ids() -> None:
    """Where a token has no id, none is taken; logprobs stay."""
    result = scored((5, -0.5), (None, -0.25), top=False)
    del result["logprobsResult"]["chosenCandidates"][1]["tokenId"]
    step = one(json.dumps(chunk({"text": "ab"}, **result, finishReason="STOP", answer=COUNTED)).encode())
    assert step.completion_token_ids is None
    assert step.logprobs is not None
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"


def test_logprobs_of_the_answer_without_its_thoughts() -> None:
    """They are withheld: the tokens of a completion begin with its thoughts."""
    answer = {"usageMetadata": {**COUNTED["usageMetadata"], "thoughtsTokenCount": 4, "totalTokenCount": 7}}
    step = one(
        json.dumps(chunk({"text": "ab"}, **scored((5, -0.5), (6, -1.0)), finishReason="STOP", answer=answer)).encode()
    )
    assert (step.completion_token_ids, step.logprobs) == (None, None)
    assert step.token_issue is not None
    assert step.token_issue.code == "logprobs_partial"
    assert step.usage is not None
    assert step.usage.output == 6


def test_thoughts_without_a_count() -> None:
    """Their ids are missing all the same, as where the stream is cut before its usage."""
    whole = chunk({"text": "th", "thought": True}, {"text": "ab"}, **scored((5, -0.5), (6, -0.25)), answer=COUNTED)
    for body in (json.dumps(whole).encode(), sse([whole])):
        step = one(body)
        assert (step.completion_token_ids, step.logprobs) == (None, None)
        assert step.token_issue is not None
        assert step.token_issue.code == "logprobs_partial"


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream", None])
def test_events_of_another_content_type(kind: str | None) -> None:
    """As proxies send them: neither the type nor the body of the request shows that it is a stream."""
    step, usual = one(sse(CHUNKS), content_type=kind), one(sse(CHUNKS))
    assert {name: getattr(step, name) for name in FIELDS} == {name: getattr(usual, name) for name in FIELDS}
    assert step.status == "ok"


def test_logprobs_of_another_number_of_tokens() -> None:
    """Ids that the usage does not confirm are withheld."""
    step = one(json.dumps(chunk({"text": "a"}, **scored((5, -0.5)), finishReason="STOP", answer=COUNTED)).encode())
    assert step.completion_token_ids is None
    assert step.token_issue is not None
    assert step.token_issue.code == "usage_differs"


def test_candidates() -> None:
    """Candidates are steps, by index, also where their chunks alternate."""
    chunks = [
        chunk({"text": "a"}),
        chunk({"text": "x"}, index=1),
        chunk({"text": "b"}, finishReason="STOP"),
        chunk({"text": "y"}, index=1, finishReason="MAX_TOKENS"),
    ]
    steps = read(sse(chunks))
    assert [(s.choice, s.completion and s.completion.content, s.finish_reason) for s in steps] == [
        (0, "ab", "STOP"),
        (1, "xy", "MAX_TOKENS"),
    ]


@pytest.mark.parametrize("body", [sse(CHUNKS), array(CHUNKS)])
def test_a_stream_cut_anywhere(body: bytes) -> None:
    """What came before the cut is kept, nothing is an error of the server's."""
    contents = []
    for end in range(len(body)):
        step = one(body[:end], content_type="text/event-stream" if body.startswith(b"d") else "application/json")
        if end == 0 and not body.startswith(b"d"):
            continue  # An empty body is no answer.
        assert step.error is None
        assert step.status in ("abandoned", "ok")
        contents.append(len(step.completion.reasoning or "") if step.completion is not None else 0)
    assert contents == sorted(contents)
    assert contents[-1] == len("think hard")


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "MALFORMED_FUNCTION_CALL", "MAX_TOKENS"])
def test_a_candidate_without_content(reason: str) -> None:
    """It is whole, and has its reason as it was sent."""
    body = {"candidates": [{"finishReason": reason, "finishMessage": "why"}], "usageMetadata": USAGE}
    for data in (json.dumps(body).encode(), sse([body]), array([body])):
        step = one(data)
        assert (step.status, step.finish_reason, step.extra) == ("ok", reason, {"finishMessage": "why"})
        assert step.completion == rt.Completion()


def test_a_blocked_prompt() -> None:
    """No candidate: the step is whole, has no completion, and the reason of the block."""
    body = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 4}}
    for data in (json.dumps(body).encode(), sse([body]), array([body])):
        step = one(data)
        assert (step.status, step.finish_reason, step.completion) == ("ok", "PROHIBITED_CONTENT", None)
        assert step.extra == {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}
        assert step.token_issue is None


ERROR = {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED", "details": []}}


@pytest.mark.parametrize("body", [ERROR, [ERROR]])
def test_a_refused_call(body: Any) -> None:
    """Errors are objects, or lists of one."""
    step = one(json.dumps(body).encode(), status=429)
    assert step.error == rt.ErrorInfo(type="RESOURCE_EXHAUSTED", message="slow down", code=429, status=429)


@pytest.mark.parametrize("body", [sse([CHUNKS[2], ERROR]), array([CHUNKS[2], ERROR])])
def test_an_error_inside_a_stream(body: bytes) -> None:
    """What came before it is kept."""
    step = one(body)
    assert step.completion is not None
    assert (step.status, step.completion.content) == ("error", "An ")
    assert step.error is not None
    assert (step.error.type, step.error.message) == ("RESOURCE_EXHAUSTED", "slow down")


@pytest.mark.parametrize(
    "body", [b"", b"null", b"3", b"[]", b"[3]", b"{}", b"<html>", b'{"candidates": 3}', b'{"candidates": [3]}', b"\xff"]
)
def test_what_is_no_answer(body: bytes) -> None:
    """Never raises; nothing of it is a completion."""
    for kind in ("application/json", "text/event-stream", None):
        (step,) = decode(NAME, asked(), body, content_type=kind)
        assert step.completion is None


def test_parts_of_wrong_types() -> None:
    """A field of the wrong type is reported, and does not hide the rest."""
    step = one(json.dumps(chunk(3, {"text": "fine"}, finishReason="STOP")).encode())
    assert step.completion is not None
    assert step.completion.content == "fine"
    assert step.token_issue is not None
    assert step.token_issue.code == "response_malformed"


def test_arguments_in_pieces() -> None:
    """Vertex streams arguments as values at JSON paths; the call is that of the whole answer."""
    pieces = [
        {"name": "f", "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.city", "stringValue": "Par", "willContinue": True}], "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.city", "stringValue": "is"}], "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.list[1].n", "numberValue": 2}], "willContinue": True},
        {"partialArgs": [{"jsonPath": "$['odd name']", "boolValue": True}, {"jsonPath": "nowhere", "boolValue": True}]},
        {"name": "g", "args": {}},
    ]
    chunks = [chunk({"functionCall": piece}) for piece in pieces]
    completion = one(sse([*chunks, chunk(finishReason="STOP")])).completion
    assert completion is not None
    first, second = completion.tool_calls
    assert json.loads(first.arguments or "") == {"city": "Paris", "list": [None, {"n": 2}], "odd name": True}
    assert first.extra == {"partialArgs": [{"jsonPath": "nowhere", "boolValue": True}]}
    assert (second.name, second.arguments) == ("g", "{}")


@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
def test_the_request(name: str) -> None:
    """The system instruction is the first message; settings are the sampling; the model is that of the path."""
    config = {"temperature": 0.5, "topK": 3}
    body = {name: {"parts": [{"text": "be"}]}, "tools": [{"googleSearch": {}}], "generationConfig": config}
    step = one(json.dumps(WHOLE).encode(), asked(**body, safetySettings=[]))
    assert step.messages == [{"role": "system", "parts": [{"text": "be"}]}, *CONTENTS]
    assert (step.tools, step.model) == ([{"googleSearch": {}}], "gemini-2.5-flash")
    assert step.sampling == {"safetySettings": [], **config}


def test_one_content() -> None:
    """A content that is no list is one message; so it is in a body that the strict reader refuses."""
    for more in (b"", b', "labels": NaN'):
        request = b'{"contents": {"parts": [{"text": "hi"}]}' + more + b"}"
        assert one(json.dumps(WHOLE).encode(), request).messages == [{"parts": [{"text": "hi"}]}]


def test_as_chat() -> None:
    """Contents, calls, results, media and tools in chat's shapes; what has no place is counted."""
    contents = [
        {"role": "user", "parts": [{"text": "what is it?"}, {"inlineData": {"mimeType": "image/png", "data": "QQ=="}}]},
        {
            "role": "model",
            "parts": [{"text": "hm", "thought": True}, {"functionCall": {"name": "f", "args": {"a": 1}}}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": "4"}}}, {"text": "so?"}]},
        {"parts": [{"executableCode": {"code": "1"}}]},
    ]
    schema = {"type": "OBJECT", "properties": {"type": {"type": "STRING", "enum": ["A"]}}}
    tools = [{"functionDeclarations": [{"name": "f", "parameters": schema}]}, {"googleSearch": {}}]
    request = json.dumps({"contents": contents, "systemInstruction": {"parts": [{"text": "be"}]}, "tools": tools})
    step, report = one(json.dumps(WHOLE).encode(), request.encode()), ExportReport()
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert to_chat(step, report) == [
        {"role": "system", "content": "be"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is it?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
            ],
        },
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": None, "name": "f", "content": "4"},
        {"role": "user", "content": "so?"},
        {"role": "user", "content": []},
    ]
    parameters = {"type": "object", "properties": {"type": {"type": "string", "enum": ["A"]}}}
    function = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert tools_of(step, report) == [function]
    message = answer(step, "json", report)
    assert message is not None
    assert (message["content"], message["reasoning_content"]) == ("An answer", "think hard")
    assert set(report.dropped) == {
        "content parts without a place in a chat message: executableCode",
        "tools that the provider runs itself: googleSearch",
    }
