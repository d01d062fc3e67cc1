"""The scripted server: token ids that agree with the template, streams, requests and connections."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, AzureOpenAI, OpenAI

from rollout_trace.testing import ByteTokenizer, Fault, Reply, RequestRecord, Script, ScriptedServer, ToolCall
from tests.amount import amount

USER = {"role": "user", "content": "hi"}
CAPTURE: dict[str, Any] = {"return_token_ids": True, "logprobs": True}

CALL = ToolCall("get_weather", '{"city": "Paris"}')


def events(body: bytes) -> list[Any]:
    lines = body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def post(server: ScriptedServer, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def tool_loop(request: Any) -> Reply:
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    if turn == 2:
        return Reply("naïve 🙂", reasoning="all known")
    return Reply("Let me see. " * turn, tool_calls=[("add", f'{{"a":  {turn}, "b": "é"'), ("now", "")])


@pytest.mark.parametrize("stream", [False, True])
def test_every_prompt_of_a_tool_loop_extends_the_one_before(stream: bool) -> None:
    messages: list[Any] = [USER]
    known: list[int] = []
    with ScriptedServer(tool_loop) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        for _ in range(3):
            final = complete(client, messages, stream)
            prompt, sampled = ids_of(server.requests[-1])
            assert prompt[: len(known)] == known
            known = prompt + sampled
            message = final.choices[0].message.model_dump()
            messages.append(message)
            messages += [{"role": "tool", "tool_call_id": c["id"], "content": "1"} for c in message["tool_calls"] or ()]
    again = server.tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert again[: len(known)] == known
    assert len({call["id"] for message in messages for call in message.get("tool_calls") or ()}) == 4


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CALLS = st.lists(st.tuples(TEXTS, TEXTS), max_size=2)


@settings(max_examples=amount(5, 15, 300))
@given(TEXTS, CALLS, TEXTS)
def test_any_reply_sent_back_renders_to_the_ids_that_were_sampled(
    text: str, calls: list[tuple[str, str]], reasoning: str
) -> None:
    with ScriptedServer(Reply(text, calls, reasoning)) as server:
        first = chat(server, **CAPTURE)
        second = chat(server, **CAPTURE, messages=[USER, first["choices"][0]["message"], USER])
    known = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(known)] == known


def complete(client: OpenAI, messages: list[Any], stream: bool) -> Any:
    if not stream:
        return client.chat.completions.create(model="m", messages=messages, extra_body=CAPTURE)
    with client.beta.chat.completions.stream(model="m", messages=messages, extra_body=CAPTURE) as chunks:
        return chunks.get_final_completion()


def ids_of(record: RequestRecord) -> tuple[list[int], list[int]]:
    """Prompt and completion ids of a response, whichever way it was sent."""
    if record.json.get("stream"):
        chunks = events(record.response_body)
        sampled = [i for chunk in chunks for choice in chunk["choices"] for i in choice.get("token_ids") or ()]
        return chunks[0]["prompt_token_ids"], sampled
    body = json.loads(record.response_body)
    return body["prompt_token_ids"], body["choices"][0]["token_ids"]


@pytest.mark.parametrize("chunk_tokens", [1, 3, 1000])
@pytest.mark.parametrize(
    "reply",
    [
        Reply("a naïve 🙂 café"),
        Reply("x", tool_calls=[("f", '{"é": 1}'), ("g", "no json")]),
        Reply("so", reasoning="wéll"),
        Reply(token_ids=[0xC3, 0xC3, 0xA9, 65, 257]),
        Reply("never ended", finish_reason="length"),
        Reply(""),
    ],
)
def test_a_stream_says_what_the_same_answer_says_unstreamed(reply: Reply, chunk_tokens: int) -> None:
    with ScriptedServer(reply, chunk_tokens=chunk_tokens) as server:
        body = json.dumps({"messages": [USER], "n": 2, **CAPTURE, "top_logprobs": 2}).encode()
        whole = json.loads(post(server, "/v1/chat/completions", body)[1])
        streamed = events(post(server, "/v1/chat/completions", body[:-1] + b', "stream": true}')[1])
    assert [chunk["prompt_token_ids"] for chunk in streamed[:2]] == [whole["prompt_token_ids"]] * 2
    assert len(whole["choices"]) == 2
    for choice in whole["choices"]:
        joined = join_choice([e["choices"][0] for e in streamed if e["choices"][0]["index"] == choice["index"]])
        assert joined["content"] == (choice["message"]["content"] or "")
        assert joined["reasoning"] == (choice["message"]["reasoning"] or "")
        assert joined["calls"] == [
            (c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls", [])
        ]
        assert joined["entries"] == choice["logprobs"]["content"]
        assert joined["ids"] == choice["token_ids"]
        assert joined["finish_reason"] == choice["finish_reason"]


def join_choice(parts: list[Any]) -> dict[str, Any]:
    calls: dict[int, list[str]] = {}
    for part in parts:
        for call in part["delta"].get("tool_calls", ()):
            name, arguments = calls.setdefault(call["index"], ["", ""])
            function = call["function"]
            calls[call["index"]] = [name + function.get("name", ""), arguments + function.get("arguments", "")]
    return {
        "content": "".join(part["delta"].get("content") or "" for part in parts),
        "reasoning": "".join(part["delta"].get("reasoning") or "" for part in parts),
        "calls": [tuple(call) for call in calls.values()],
        "entries": [entry for part in parts for entry in (part["logprobs"] or {"content": []})["content"]],
        "ids": [i for part in parts for i in part.get("token_ids", ())],
        "finish_reason": parts[-1]["finish_reason"],
    }


def chat(server: ScriptedServer, **fields: Any) -> Any:
    body = {"model": "m", "messages": [USER], **fields}
    return json.loads(post(server, "/v1/chat/completions", json.dumps(body).encode())[1])


def test_the_stop_token_is_in_the_ids_and_not_in_the_content() -> None:
    with ScriptedServer("four") as server:
        answer = chat(server, **CAPTURE)
    choice = answer["choices"][0]
    assert choice["token_ids"] == [*b"four", ByteTokenizer().eos_token_id]
    assert choice["message"]["content"] == "four"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["f", "o", "u", "r", "<|im_end|>"]
    assert answer["usage"]["completion_tokens"] == 5


def test_logprobs_are_finite_negative_float32_and_the_same_in_every_run() -> None:
    runs = []
    for _ in range(2):
        with ScriptedServer("x" * 500, seed=3) as server:
            content = chat(server, **CAPTURE, top_logprobs=3)["choices"][0]["logprobs"]["content"]
        runs.append(content)
    assert runs[0] == runs[1]
    assert all(math.isfinite(e["logprob"]) and e["logprob"] <= 0 for e in content)
    assert all(sum(math.exp(top["logprob"]) for top in e["top_logprobs"]) <= 1 for e in content)
    with ScriptedServer("x" * 500, seed=4) as server:
        assert chat(server, **CAPTURE)["choices"][0]["logprobs"]["content"][0]["logprob"] != content[0]["logprob"]


def test_max_tokens_and_stop_cut_the_answer() -> None:
    with ScriptedServer("one two three") as server:
        cut = chat(server, max_tokens=3, return_token_ids=True)["choices"][0]
        stopped = chat(server, stop=["zzz", "tw"], return_token_ids=True)["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"], cut["token_ids"]) == ("one", "length", [*b"one"])
    assert (stopped["message"]["content"], stopped["finish_reason"], stopped["stop_reason"]) == ("one ", "stop", "tw")
    assert stopped["token_ids"] == [*b"one tw"]


def test_a_tool_call_that_is_cut_short_is_told_as_vllm_tells_it() -> None:
    with ScriptedServer(Reply(tool_calls=[CALL])) as server:
        choice = chat(server, max_tokens=30)["choices"][0]
    assert choice["message"]["content"].startswith('<tool_call>\n{"name": "get')
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"


def test_the_script_sees_the_choice_and_the_record() -> None:
    seen = []

    def script(request: Any, choice: int, *, record: RequestRecord) -> str:
        seen.append((request["messages"], record.headers["content-type"]))
        return f"choice {choice}"

    with ScriptedServer(script) as server:
        answer = chat(server, n=3)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["choice 0", "choice 1", "choice 2"]
    assert seen == [([USER], "application/json")] * 3


def test_a_reply_may_set_what_the_server_would_have_made() -> None:
    reply = Reply(
        "ab",
        logprobs=[-1.0],
        finish_reason="content_filter",
        usage={"completion_tokens": 7},
        extra_message={"refusal": "no"},
        extra={"weight_version": "3"},
        headers={"x-request-id": "r1"},
    )
    with ScriptedServer(reply) as server:
        answer = chat(server, **CAPTURE)
        (record,) = server.requests
    assert [e["logprob"] for e in answer["choices"][0]["logprobs"]["content"]] == [-1.0]
    assert answer["choices"][0]["finish_reason"] == "content_filter"
    assert answer["choices"][0]["message"]["refusal"] == "no"
    assert (answer["usage"]["completion_tokens"], answer["weight_version"]) == (7, "3")
    assert ("x-request-id", "r1") in record.response_headers


@pytest.mark.parametrize(("tool_index", "found"), [("normal", [0, 1]), ("null", [None]), ("missing", ["none"])])
def test_the_index_of_streamed_tool_calls_can_be_left_out(tool_index: Any, found: list[object]) -> None:
    reply = Reply(tool_calls=[("f", "{}"), ("g", "{}")], tool_index=tool_index)
    with ScriptedServer(reply) as server:
        body = json.dumps({"messages": [USER], "stream": True}).encode()
        chunks = events(post(server, "/v1/chat/completions", body)[1])
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert sorted({call.get("index", "none") for call in deltas}, key=str) == found


def test_other_addresses_and_apis() -> None:
    with ScriptedServer("hello") as server:
        with OpenAI(base_url=server.base_url, api_key="none") as client:
            assert client.responses.create(model="m", input="a").output_text == "hello"
            with client.responses.stream(model="m", input="a") as stream:
                assert stream.get_final_response().output_text == "hello"
            assert [model.id for model in client.models.list()] == ["scripted"]
            text = client.completions.create(model="m", prompt=[104, 105], extra_body={"return_token_ids": True})
            assert text.choices[0].model_extra is not None
            assert text.choices[0].model_extra["prompt_token_ids"] == [104, 105]
        with AzureOpenAI(azure_endpoint=server.url, api_key="none", api_version="2024-10-21") as azure:
            answer = azure.chat.completions.create(model="dep", messages=[{"role": "user", "content": "a"}])
            assert answer.choices[0].message.content == "hello"
    assert server.requests[-1].path == "/openai/deployments/dep/chat/completions"
    assert server.requests[-1].query == "api-version=2024-10-21"


def test_the_async_client_is_served() -> None:
    async def ask(base_url: str) -> str | None:
        async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
            answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        return answer.choices[0].message.content

    with ScriptedServer("hello") as server:
        assert asyncio.run(ask(server.base_url)) == "hello"


def test_the_log_tells_requests_answers_and_connections() -> None:
    with ScriptedServer("hello") as server:
        with OpenAI(base_url=server.base_url, api_key="none") as client:
            for _ in range(3):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert server.connections == 1
        assert chat(server)["choices"][0]["message"]["content"] == "hello"
        assert server.connections == 2
    assert [r.index for r in server.requests] == [0, 1, 2, 3]
    assert all(r.completed and r.status == 200 and r.method == "POST" for r in server.requests)
    assert json.loads(server.requests[0].response_body)["usage"]["completion_tokens"] == 6
    assert server.requests[3].json == {"model": "m", "messages": [USER]}


def test_a_script_in_order_and_its_end() -> None:
    script = Script(["one", "two"], repeat_last=True)
    with ScriptedServer(script) as server:
        assert [chat(server)["choices"][0]["message"]["content"] for _ in range(3)] == ["one", "two", "two"]
    server = ScriptedServer(["one"]).start()
    chat(server)
    with pytest.raises(IndexError, match="request 2 came, but the script has 1 answer:"), server:
        assert "request 2 came" in chat(server)["error"]["message"]


def test_a_script_that_gives_something_else_is_told_so() -> None:
    with pytest.raises(TypeError, match=r"the script gave 1\.5: return a str"):
        with ScriptedServer(lambda request: 1.5) as server:  # type: ignore[arg-type, return-value]
            chat(server)


def test_many_connections_at_once() -> None:
    """All of 64 are open at the same time, and none waits for another."""
    with ScriptedServer(lambda request: Fault(request["messages"][0]["content"], hold=True)) as server:
        with ThreadPoolExecutor(64) as pool:
            asked = [pool.submit(chat, server, messages=[{"role": "user", "content": str(i)}]) for i in range(64)]
            server.wait_held(64)
            server.release()
            answers = [future.result()["choices"][0]["message"]["content"] for future in asked]
    assert answers == [str(i) for i in range(64)]
    assert server.connections == 64


def test_nothing_is_left_after_closing() -> None:
    before = set(threading.enumerate())
    with ScriptedServer(Fault("x", hold=True)) as server, ThreadPoolExecutor(1) as pool:
        with OpenAI(base_url=server.base_url, max_retries=0, api_key="none") as client:
            waiting = pool.submit(lambda: client.chat.completions.create(model="m", messages=[]))
            server.wait_held()
            server.close()
            with pytest.raises(openai.APIConnectionError):
                waiting.result()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="is not running"):
        _ = server.url
    assert [r.completed for r in server.requests] == [False]
