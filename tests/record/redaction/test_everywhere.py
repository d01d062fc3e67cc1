"""A client's key is in no value of a step, whatever field of an answer brings it: in memory, in pickles, in exports."""

from __future__ import annotations

import dataclasses
import http.server
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import rollout_trace as rt
from rollout_trace import credentials
from rollout_trace.clients.httpx import wrap_httpx
from rollout_trace.data.model import STEP_FIELDS
from rollout_trace.export import atif, chat
from rollout_trace.integration import AgentFrame, ModelFrame
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.wire import decode

KEY = "sk-proj-Ab3_dEf6hIj9"
MASK = credentials.MASK


@pytest.fixture(autouse=True)
def _no_keys_of_other_tests() -> Iterator[None]:
    credentials.forget_all()
    yield
    credentials.forget_all()


@contextmanager
def answering(body: bytes, headers: dict[str, str]) -> Iterator[str]:
    """A server that answers every request with the same bytes; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chat_answer() -> dict[str, Any]:
    """One of the widest answers of a chat. Each text of it is a place where a key may come back."""
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}, "x_note": "n"}
    entry = {"token": "hi", "logprob": -0.5, "bytes": [104, 105], "top_logprobs": [{"token": "hi", "logprob": -0.5}]}
    message = {
        "role": "assistant", "content": "hi", "reasoning_content": "so", "refusal": "no", "tool_calls": [call],
        "annotations": [{"url": "u"}],
    }  # fmt: skip
    choice = {
        "index": 0, "message": message, "finish_reason": "tool_calls", "stop_reason": "</s>", "token_ids": [7],
        "logprobs": {"content": [entry]}, "weight_versions": "v1", "note": {"deep": ["n"]},
    }  # fmt: skip
    return {
        "id": "chat-1", "object": "chat.completion", "model": "m-1", "choices": [choice], "prompt_token_ids": [1, 2],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3, "service": "s"},
        "system_fingerprint": "fp", "service_tier": "t",
    }  # fmt: skip


def messages_answer() -> dict[str, Any]:
    content = [
        {"type": "thinking", "thinking": "so", "signature": "s"},
        {"type": "text", "text": "hi", "citations": [{"type": "c", "cited_text": "c"}]},
        {"type": "tool_use", "id": "toolu-1", "name": "look", "input": {"a": "b"}},
    ]
    return {
        "id": "msg-1", "type": "message", "role": "assistant", "model": "m-1", "content": content,
        "stop_reason": "tool_use", "stop_sequence": "###", "usage": {"input_tokens": 2, "output_tokens": 1},
        "container": {"id": "c-1"},
    }  # fmt: skip


def responses_answer() -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": "so"}]
    output = [
        {"type": "reasoning", "id": "rs-1", "summary": summary, "encrypted_content": "e"},
        {"type": "message", "id": "msg-1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "hi", "annotations": []}]},
        {"type": "function_call", "id": "fc-1", "call_id": "call-1", "name": "look", "arguments": "{}"},
    ]  # fmt: skip
    return {
        "id": "resp-1", "object": "response", "status": "completed", "model": "m-1", "output": output,
        "usage": {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3}, "service_tier": "t",
    }  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts of an answer stand."""
    if isinstance(value, str):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def planted(value: Any, path: tuple[Any, ...], text: str) -> Any:
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = text
    return copy


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
    elif dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            yield from texts_of(getattr(value, item.name))
    elif isinstance(value, dict):
        yield from texts_of([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from texts_of(part)


def all_texts(step: rt.Step) -> str:
    return "\n".join(text for name in STEP_FIELDS for text in texts_of(getattr(step, name)))


ANSWERS = {
    "openai.chat": chat_answer(),
    "anthropic.messages": messages_answer(),
    "openai.responses": responses_answer(),
}


@pytest.mark.parametrize("protocol", ANSWERS)
def test_no_field_of_an_answer_brings_a_key_into_a_step(protocol: str) -> None:
    credentials.remember(KEY)
    answer = ANSWERS[protocol]
    for path in places(answer):
        for text in (KEY, f"x-{KEY}-x"):
            body = json.dumps(planted(answer, path, text)).encode()
            for step in decode(protocol, b'{"messages": []}', body):
                assert KEY not in all_texts(step), path
                assert KEY.encode() not in pickle.dumps(step), path


def test_what_takes_no_part_in_the_completion_costs_no_ids() -> None:
    credentials.remember(KEY)
    answer = chat_answer()
    kept = {("id",), ("model",), ("choices", 0, "finish_reason"), ("system_fingerprint",), ("usage", "service")}
    for path in places(answer):
        (step,) = decode("openai.chat", b'{"messages": []}', json.dumps(planted(answer, path, KEY)).encode())
        if path in kept:
            assert step.completion_token_ids is not None, path
            assert step.completion_token_ids.tolist() == [7], path
            assert step.prompt_token_ids is not None
            assert step.trainable
        if path[:3] == ("choices", 0, "message"):
            assert step.completion_token_ids is None, path
            assert step.token_issue is not None
            assert step.token_issue.code == "redacted"
            assert not step.trainable
    (step,) = decode("openai.chat", b'{"messages": []}', json.dumps(planted(answer, ("id",), KEY)).encode())
    assert (step.response_id, step.response_model, step.finish_reason) == (MASK, "m-1", "tool_calls")


def ask(url: str, **options: Any) -> Any:
    client = rt.wrap_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0))
    with client:
        made = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **options)
        return list(made) if options.get("stream") else made


FIELDS: list[tuple[Any, ...]] = [
    ("id",),
    ("model",),
    ("choices", 0, "finish_reason"),
    ("choices", 0, "message", "role"),
    ("choices", 0, "message", "tool_calls", 0, "id"),
    ("choices", 0, "message", "tool_calls", 0, "type"),
]


def streamed(answer: dict[str, Any]) -> bytes:
    choice = answer["choices"][0]
    head = {name: answer[name] for name in ("id", "model")} | {"object": "chat.completion.chunk"}
    calls = [{"index": 0, **one} for one in choice["message"]["tool_calls"]]
    deltas: list[tuple[dict[str, Any], Any]] = [
        ({"role": choice["message"]["role"], "content": "h"}, None),
        ({"content": "i", "tool_calls": calls}, None),
        ({}, choice["finish_reason"]),
    ]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} for delta, reason in deltas]
    return b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in chunks) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_a_live_trajectory_is_clean_in_pickles_and_exports(is_stream: bool, tmp_path: Path) -> None:
    for number, path in enumerate(FIELDS):
        answer = planted(chat_answer(), path, KEY)
        body = streamed(answer) if is_stream else json.dumps(answer).encode()
        kind = "text/event-stream" if is_stream else "application/json"
        with answering(body, {"content-type": kind, "x-request-id": KEY}) as url:
            with rt.recording(tmp_path / f"{number}.jsonl"), rt.trajectory() as trajectory:
                ask(url, stream=is_stream)
                (step,) = trajectory.steps
                assert KEY not in all_texts(step), path
                assert KEY.encode() not in pickle.dumps(trajectory.steps), path
        assert KEY not in json.dumps(atif([trajectory]), default=str), path
        assert KEY not in json.dumps(chat([trajectory]), default=str), path
        assert KEY.encode() not in pickle.dumps(trajectory), path
        (kept,) = rt.read(tmp_path / f"{number}.jsonl")
        # What was cut once is the same wherever it is.
        assert kept == trajectory, path


def test_a_tool_run_is_linked_by_an_id_that_was_cut() -> None:
    answer = planted(chat_answer(), ("choices", 0, "message", "tool_calls", 0, "id"), f"c-{KEY}")
    with answering(json.dumps(answer).encode(), {"content-type": "application/json"}) as url, rt.trajectory() as one:
        (call,) = ask(url).choices[0].message.tool_calls
        assert call.id == f"c-{KEY}"
        with rt.tool_run("look", tool_call_id=call.id, arguments={"a": 1}) as run:
            run.result = "fine"
    (run,) = one.tool_runs
    assert run.tool_call_id == f"c-{MASK}"
    assert run.step_id == one.steps[0].id


def test_a_frame_is_joined_by_an_id_that_was_cut() -> None:
    answer = json.dumps(planted(chat_answer(), ("id",), f"r-{KEY}")).encode()
    with answering(answer, {"content-type": "application/json"}) as url, rt.trajectory() as one:
        ask(url)
        frame = ModelFrame("a-framework", parent=AgentFrame("solver"), metadata={"from": "hook"})
        frame.answered(response_id=f"r-{KEY}")
        frame.end()
    (step,) = one.steps
    assert step.response_id == f"r-{MASK}"


def test_reported_steps_are_clean_in_every_field() -> None:
    credentials.remember(KEY)
    calls = (rt.ToolCall(id=KEY, name="look", arguments="{}", type=KEY),)
    reported = {
        "completion": rt.Completion(role=KEY, content="hi", tool_calls=calls),
        "finish_reason": KEY, "response_model": KEY, "model": KEY, "engine": KEY, "policy_version": KEY,
        "usage": rt.Usage(input=1, extra={KEY: 1}), "metadata": {"a": {KEY: KEY}}, "token_texts": [KEY[:4], KEY[4:]],
        "completion_token_ids": [1, 2], "policy_spans": [(0, 2, KEY)],
    }  # fmt: skip
    with rt.trajectory(name=f"a {KEY}", group=KEY, task=KEY, metadata={"key": KEY}) as trajectory:
        frame = ModelFrame("a-framework", messages=[{"role": KEY, "content": "hi", "id": KEY}])
        frame.answered(reported, response_id=KEY)
        frame.end()
        (step,) = trajectory.steps
        assert KEY not in all_texts(step)
        trajectory.rewards = {KEY: 1.0}
        trajectory.metrics = {KEY: 1.0}
        trajectory.environment = {"command": ["agent.py", f"--key={KEY}"]}
    assert trajectory.environment == {"command": ["agent.py", f"--key={MASK}"]}
    assert KEY.encode() not in pickle.dumps(trajectory)
    assert KEY not in json.dumps(trajectory.to_dict())
    assert trajectory.rewards == {MASK: 1.0}


def test_numbers_of_tokens_are_not_looked_at() -> None:
    """Ids are numbers: what they look like as text is no key."""
    credentials.remember("1234567a", "12345678")
    answer = chat_answer()
    answer["choices"][0]["token_ids"] = [12345678]
    (step,) = decode("openai.chat", b'{"messages": []}', json.dumps(answer).encode())
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == [12345678]


def test_the_texts_of_alternatives_are_looked_at_as_what_they_say() -> None:
    credentials.remember("a/b+C9d8e7f6==")
    entry = {"token": "hi", "logprob": -0.5, "top_logprobs": [{"token": "PLACE", "logprob": -0.5}]}
    choice = {"message": {"content": "hi"}, "token_ids": [1], "logprobs": {"content": [entry]}}
    for escaped in (b"a/b+C9d8e7f6==", b"a\\/b+C9d8e7f6==", b"a/b\\u002bC9d8e7f6=="):
        body = json.dumps({"choices": [choice]}).encode().replace(b"PLACE", escaped)
        (step,) = decode("openai.chat", b'{"messages": []}', body)
        assert step.top_logprobs is None, escaped
        assert step.completion_token_ids is not None


def test_a_call_that_runs_is_clean_already() -> None:
    headers = {"content-type": "text/event-stream", "x-request-id": KEY}
    with answering(streamed(chat_answer()), headers) as url, rt.trajectory() as trajectory:
        made = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
        with rt.wrap_openai(made) as client, client.chat.completions.create(model="m", messages=[], stream=True):
            (step,) = trajectory.steps
            assert step.status == "running"
            assert step.attempts[0].request_id == MASK


def test_attempts_that_a_step_takes_over_are_clean() -> None:
    headers = {"x-request-id": f"r-{KEY}"}
    with ScriptedServer([Fault(status=429, headers=headers), Reply("fine", headers=headers)]) as server:
        with httpx.Client(headers={"x-api-key": KEY}) as made, rt.trajectory() as trajectory:
            client = wrap_httpx(made)
            for _ in range(2):
                client.post(f"{server.base_url}/chat/completions", json={"model": "m", "messages": []})
                assert all(KEY not in all_texts(step) for step in trajectory.steps)
    (step,) = trajectory.steps
    assert [attempt.request_id for attempt in step.attempts] == [f"r-{MASK}", f"r-{MASK}"]


def test_a_call_that_could_not_be_decoded_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError(f"what is {KEY}?")

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr("rollout_trace.record.call_steps.exchange_of", fails)
    answer = json.dumps(planted(chat_answer(), ("id",), KEY)).encode()
    with answering(answer, {"content-type": "application/json"}) as url, rt.trajectory() as trajectory:
        ask(url)
    (step,) = trajectory.steps
    assert step.response_bytes is not None
    assert KEY not in all_texts(step)
