"""``rt.instrument``: every client of the process, once; undone, it leaves no trace."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.wire.protocols import RECORDS
from tests.amount import some
from tests.process import imports_program

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


_made: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def new_client(server: ScriptedServer, kind: Any = openai.OpenAI, **options: Any) -> Any:
    client = kind(**{"base_url": server.base_url, "api_key": "none", "max_retries": 0, **options})
    if not isinstance(client, openai.AsyncOpenAI):
        _made.append(client)
    return client


# The order of imports


ORDERS = [
    name
    for name, value in vars(imports_program).items()
    if callable(value)
    and getattr(value, "__module__", "") == imports_program.__name__
    and name not in ("sdk", "client", "main")
]


@pytest.mark.parametrize("order", some(ORDERS, ORDERS[0]))
def test_the_sdk_is_recorded_whenever_it_is_imported(order: str, server: ScriptedServer) -> None:
    run = subprocess.run(
        [sys.executable, imports_program.__file__, order],
        env={**os.environ, "SERVER": server.base_url},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip() == "[('openai.chat', 'ok', 1)] OpenAI"
    assert len(server.requests) == 1


# Clients of every origin


def test_clients_made_before_after_per_call_and_copied(server: ScriptedServer) -> None:
    class Own(openai.OpenAI):
        requests = 0

        def request(self, *args: Any, **kwargs: Any) -> Any:
            Own.requests += 1
            return super().request(*args, **kwargs)

    before, own, cached = new_client(server), new_client(server, Own), new_client(server)
    create, posted = cached.chat.completions.create, cached.post
    with rt.instrument() as handle, rt.trajectory() as trajectory:
        before.chat.completions.create(**CHAT, seed=0)
        create(**CHAT, seed=1)
        posted("/chat/completions", body={**CHAT, "seed": 2}, cast_to=object)
        own.chat.completions.create(**CHAT, seed=3)
        own.chat.completions.create(**CHAT, seed=4)
        new_client(server, Own).chat.completions.create(**CHAT, seed=5)
        new_client(server).chat.completions.create(**CHAT, seed=6)
        copied = before.with_options(timeout=5)
        copied.chat.completions.create(**CHAT, seed=7)
        assert type(before).__mro__[1] is type(copied).__mro__[1] is openai.OpenAI
        handle.undo()
        assert not handle.is_active
        assert [type(one) for one in (before, own, cached, copied)] == [
            openai.OpenAI,
            Own,
            openai.OpenAI,
            openai.OpenAI,
        ]
        for one in (before, own, copied):
            one.chat.completions.create(**CHAT, seed=9)
    assert [(step.sampling or {})["seed"] for step in trajectory.steps] == list(range(8))
    assert Own.requests == 4
    assert len(server.requests) == 11


def test_a_client_that_cannot_be_hashed(server: ScriptedServer) -> None:
    class Own(openai.OpenAI):
        def __eq__(self, other: object) -> bool:
            return False

    with rt.instrument() as handle, rt.trajectory() as trajectory:
        client = new_client(server, Own)
        client.chat.completions.create(**CHAT)
        handle.undo()
    assert type(client) is Own
    assert len(trajectory.steps) == 1


def test_the_module_level_client(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "api_key", "none")
    monkeypatch.setattr(openai, "base_url", f"{server.base_url}/")
    monkeypatch.setattr(openai, "_client", None)
    with rt.instrument(), rt.trajectory() as trajectory:
        openai.chat.completions.create(**CHAT)
    assert [step.protocol for step in trajectory.steps] == ["openai.chat"]


def test_async_clients_made_for_each_call(server: ScriptedServer) -> None:
    async def ask(seed: int) -> None:
        async with new_client(server, openai.AsyncOpenAI) as client:
            await client.chat.completions.create(**CHAT, seed=seed)

    async def main() -> None:
        await asyncio.gather(*(ask(seed) for seed in range(8)))

    with rt.instrument(), rt.trajectory() as trajectory:
        asyncio.run(main())
    assert sorted((step.sampling or {})["seed"] for step in trajectory.steps) == list(range(8))
    assert len(server.requests) == 8


def test_anthropic(server: ScriptedServer) -> None:
    before = new_client(server, anthropic.Anthropic, base_url=server.url)
    with rt.instrument(), rt.trajectory() as trajectory:
        for client in (before, new_client(server, anthropic.Anthropic, base_url=server.url)):
            client.messages.create(**CHAT, max_tokens=9)
            with client.messages.stream(**CHAT, max_tokens=9) as stream:
                stream.until_done()
    assert [step.protocol for step in trajectory.steps] == ["anthropic.messages"] * 4
    assert [step.completion.content for step in trajectory.steps if step.completion] == ["fine"] * 4
    assert type(before) is anthropic.Anthropic


def test_a_wrapped_client_keeps_its_settings_and_is_recorded_once(server: ScriptedServer) -> None:
    mine = rt.wrap_openai(new_client(server), engine="vllm", keep_bytes=True)
    with rt.trajectory() as trajectory:
        with rt.instrument():
            mine.chat.completions.create(**CHAT)
            later = rt.wrap_openai(new_client(server), engine="vllm")
            later.chat.completions.create(**CHAT)
            new_client(server).chat.completions.create(**CHAT)
        # Wrapped by hand, both go on.
        mine.chat.completions.create(**CHAT)
        later.chat.completions.create(**CHAT)
    assert [step.engine for step in trajectory.steps] == ["vllm", "vllm", None, "vllm", "vllm"]
    assert [step.request_bytes is not None for step in trajectory.steps] == [True, False, False, True, False]


def test_a_bound_client_and_one_that_is_unwrapped(server: ScriptedServer) -> None:
    with rt.instrument(engine="vllm"):
        client = new_client(server)
        with rt.trajectory() as mine:
            pass
        with rt.trajectory() as mine, rt.trajectory() as other:
            rt.bind(client, mine).chat.completions.create(**CHAT)
            rt.unwrap(client)
            client.chat.completions.create(**CHAT)
    assert [[step.engine for step in one.steps] for one in (mine, other)] == [["vllm"], ["vllm"]]


# Undoing


def _state() -> dict[str, Any]:
    """What ``instrument`` may touch."""
    from openai import _base_client

    kinds = [_base_client.SyncAPIClient, _base_client.AsyncAPIClient, anthropic._base_client.SyncAPIClient]
    kinds += [
        httpx.Client,
        httpx.AsyncClient,
        threading.Thread,
        ThreadPoolExecutor,
        ThreadPool,
        Future,
        subprocess.Popen,
    ]
    return {
        "finders": list(sys.meta_path),
        **{f"{kind.__module__}.{kind.__name__}": dict(vars(kind)) for kind in kinds},
    }


def test_a_thousand_times_leave_no_trace(server: ScriptedServer) -> None:
    client = new_client(server)
    before = _state()
    with rt.instrument(), rt.trajectory():
        client.chat.completions.create(**CHAT)
    gc.collect()
    objects = len(gc.get_objects())
    for _ in range(1000):
        handle = rt.instrument(engine="vllm")
        assert _state() != before
        handle.undo()
    gc.collect()
    assert _state() == before
    assert type(client) is openai.OpenAI
    # Not one object for each time.
    assert len(gc.get_objects()) - objects < 500


def test_all_is_put_back_when_the_last_is_undone(server: ScriptedServer) -> None:
    before = _state()
    client = new_client(server)
    with rt.trajectory() as trajectory:
        outer = rt.instrument()
        inner = rt.instrument(engine="vllm", http=False, threads=False)
        client.chat.completions.create(**CHAT)
        outer.undo()
        client.chat.completions.create(**CHAT)
        # `http` went with the outer one.
        assert httpx.Client.send is before["httpx.Client"]["send"]
        inner.undo()
        inner.undo()
        client.chat.completions.create(**CHAT)
        with rt.instrument():
            with rt.instrument(engine="vllm"):
                client.chat.completions.create(**CHAT)
                # Without an engine of its own, that of the outer one counts.
                with rt.instrument():
                    client.chat.completions.create(**CHAT)
                with rt.instrument(engine={}):
                    client.chat.completions.create(**CHAT)
            client.chat.completions.create(**CHAT)
    assert _state() == before
    assert [step.engine for step in trajectory.steps] == ["vllm", "vllm", "vllm", "vllm", None, None]


def test_calls_that_run_are_recorded_to_their_end() -> None:
    with ScriptedServer(Fault(hold_after=1, reply="one two")) as server, rt.trajectory() as trajectory:
        with rt.instrument():
            stream = new_client(server).chat.completions.create(**CHAT, stream=True)
            server.wait_held()
        server.release()
        list(stream)
    assert [(step.status, step.completion and step.completion.content) for step in trajectory.steps] == [
        ("ok", "one two")
    ]


# Other tools on the same classes


def _traced(seen: list[str], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen.append(original.__name__)
        return original(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("who_is_first", ["ours", "theirs"])
def test_a_tracer_that_replaces_methods_of_the_same_classes(
    who_is_first: str, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry and ddtrace replace what is there: whoever comes first is called by the other, both are undone."""
    from openai.resources.chat.completions import Completions

    before = _state()
    seen: list[str] = []
    handle = rt.instrument() if who_is_first == "ours" else None
    with monkeypatch.context() as theirs:
        for kind, name in ((openai.OpenAI, "request"), (Completions, "create"), (httpx.Client, "send")):
            theirs.setattr(kind, name, _traced(seen, getattr(kind, name)))
        handle = handle or rt.instrument()
        with rt.trajectory() as trajectory:
            new_client(server).chat.completions.create(**CHAT)
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
            handle.undo()
            new_client(server).chat.completions.create(**CHAT)
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
        assert len(trajectory.steps) == 2
        assert seen == ["create", "request", "send"] * 2
    if who_is_first == "theirs":
        assert _state() == before


def test_what_was_replaced_over_ours_is_left_alone(server: ScriptedServer) -> None:
    seen: list[str] = []
    original = httpx.Client.send
    try:
        handle = rt.instrument()
        over_ours = _traced(seen, httpx.Client.send)
        httpx.Client.send = over_ours  # type: ignore[method-assign]
        handle.undo()
        assert httpx.Client.send is over_ours
        with rt.trajectory() as trajectory:
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
            # Ours is below theirs still: once again, and above it too.
            with rt.instrument():
                httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
    finally:
        httpx.Client.send = original  # type: ignore[method-assign]
    assert len(trajectory.steps) == 1
    assert seen == ["send", "send"]


# Engines


def test_engines_by_address(server: ScriptedServer) -> None:
    with ScriptedServer("fine") as other, rt.trajectory() as trajectory:
        place = server.url.removeprefix("http://")
        with rt.instrument(engine={place: "vllm"}):
            new_client(server).chat.completions.create(**CHAT)
            new_client(other).chat.completions.create(**CHAT)
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
            httpx.post(f"{other.base_url}/chat/completions", json=CHAT)
        with rt.instrument(engine={server.base_url: rt.Engine("vllm"), "127.0.0.1": "sglang"}):
            new_client(server).chat.completions.create(**CHAT)
            new_client(other).chat.completions.create(**CHAT)
    assert [step.engine for step in trajectory.steps] == ["vllm", None, "vllm", None, "vllm", "sglang"]
    assert [step.completion_token_ids is not None for step in trajectory.steps][:4] == [True, False, True, False]


def test_auto_finds_the_engine_behind_an_sdk(server: ScriptedServer) -> None:
    async def ask() -> None:
        async with new_client(server, openai.AsyncOpenAI) as client:
            await client.chat.completions.create(**CHAT)

    with rt.instrument(engine="auto"), rt.trajectory() as trajectory:
        new_client(server).chat.completions.create(**CHAT)
        asyncio.run(ask())
        # Made by no SDK: nothing is detected.
        httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
    assert [step.engine for step in trajectory.steps] == ["vllm", "vllm", None]
    assert [step.completion_token_ids is None for step in trajectory.steps] == [False, False, True]
    # Detected once.
    assert [request.path for request in server.requests].count("/v1/models") == 1


def test_the_api_of_a_provider_is_not_asked_for_what_the_own_server_has() -> None:
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(200, json={"choices": [{"message": {"role": "assistant", "content": "fine"}}]})

    with rt.instrument(engine="vllm"), rt.trajectory(), httpx.Client(transport=httpx.MockTransport(answer)) as client:
        for base_url in ("https://api.openai.com/v1", "http://gpu1:8000/v1"):
            client.post(f"{base_url}/chat/completions", json=CHAT)
    assert [b"return_token_ids" in body for body in sent] == [False, True]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "vlm"}, ValueError, "vlm"),
        ({"engine": {"gpu1": "vlm"}}, ValueError, "vlm"),
        ({"engine": {8000: "vllm"}}, TypeError, "address of a server"),
        ({"threads": 1}, TypeError, "threads=1"),
        ({"http": None}, TypeError, "http=None"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    before = _state()
    with pytest.raises(error, match=message):
        rt.instrument(**options)
    assert _state() == before


# What is a call, and what only looks like one


def _transport(*answers: httpx.Response) -> httpx.MockTransport:
    left = list(answers)
    return httpx.MockTransport(lambda request: left.pop(0))


FINE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        # Of an app's own, of a log sink, of a form.
        ("/api/v1/chat/completions", CHAT, {"stored": True}),
        ("/logs/chat/completions", {"messages": ["a line"]}, "OK"),
        ("/v1/responses", {"model": "survey", "input": {"q1": "yes"}}, {"id": 7, "accepted": 1}),
        ("/v1/messages", {"messages": [], "max_tokens": 1}, []),
    ],
)
def test_a_request_whose_answer_is_none_is_dropped_and_counted(path: str, body: Any, answer: Any) -> None:
    before = rt.stats().not_model_calls
    transport = _transport(httpx.Response(200, json=answer))
    with rt.instrument(), rt.trajectory() as trajectory, httpx.Client(transport=transport) as client:
        assert client.post(f"http://server{path}", json=body).json() == answer
        assert trajectory.steps == []
    assert trajectory.steps == []
    assert rt.stats().not_model_calls == before + 1


FAILED = b'{"error":{"code":502,"message":"Provider returned error"}}'
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "max_tokens": 1},
    "/v1/responses": {"model": "m", "input": "a"},
    "/v1beta/models/g:generateContent": {"contents": []},
    "/v1beta/models/g:streamGenerateContent": {"contents": []},
    "/api/chat": {**CHAT, "stream": False},
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("answer", [FAILED, b'{"choices":[{"index":0,"message":{"content":"hal', b""])
def test_a_call_that_failed_with_a_status_of_success_is_no_other_request(path: str, answer: bytes) -> None:
    """An error of a gateway's, an answer that broke off, and none at all are the call's: nothing is lost."""
    before = rt.stats().not_model_calls
    transport = _transport(httpx.Response(200, content=answer, headers={"content-type": "application/json"}))
    with rt.instrument(), rt.trajectory() as trajectory, httpx.Client(transport=transport) as client:
        client.post(f"http://server{path}", json=ASKED[path])
    (step,) = trajectory.steps
    assert (step.status, rt.stats().not_model_calls) == ("error", before)
    if answer == FAILED:
        assert step.error == rt.ErrorInfo(type="ProviderError", message="Provider returned error", code=502)


@pytest.mark.parametrize("body", ["OK", '{"token":"a"}\n{"token":"b"}\n', 'data: {"delta":"a"}\n\n', "<html></html>"])
def test_other_kinds_of_answers_are_those_of_other_requests(body: str) -> None:
    transport = _transport(httpx.Response(200, text=body))
    with rt.instrument(), rt.trajectory() as trajectory, httpx.Client(transport=transport) as client:
        client.post("http://server/logs/chat/completions", json=CHAT)
    assert trajectory.steps == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/chat/completions", None),
        ("POST", "/v1/messages/count_tokens", {"messages": [], "max_tokens": 1}),
        ("POST", "/v1/embeddings", {"model": "m", "input": "a"}),
        ("POST", "/2010/Accounts/1/Messages", {"Body": "a"}),
        ("POST", "/v1/responses", {"answers": [1, 2]}),
        ("POST", "/v1/threads/1/messages", {"role": "user", "content": "a"}),
        ("POST", "/channels/1/messages", {"content": "a"}),
        ("POST", "/generate", {"inputs": "a", "parameters": {}}),
        ("POST", "/v1/batches", {"input_file_id": "a"}),
    ],
)
def test_other_requests_are_left_alone(method: str, path: str, body: Any) -> None:
    before = rt.stats()
    transport = _transport(httpx.Response(200, json=FINE))
    with rt.instrument(), rt.trajectory() as trajectory, httpx.Client(transport=transport) as client:
        client.request(method, f"http://server{path}", json=body)
    assert trajectory.steps == []
    assert (rt.stats().calls, rt.stats().not_model_calls) == (before.calls, before.not_model_calls)


SIGNED = [
    {"authorization": "AWS4-HMAC-SHA256 Credential=x"},
    {"authorization": "TC3-HMAC-SHA256 Credential=x"},
    {"authorization": "bce-auth-v1/x"},
    {"Content-MD5": "x"},
    {"Digest": "x"},
]


def test_a_signed_request_and_a_streamed_body_are_sent_as_they_are() -> None:
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.read())
        return httpx.Response(200, json=FINE)

    body = json.dumps(CHAT).encode()
    with (
        rt.instrument(engine="vllm"),
        rt.trajectory() as trajectory,
        httpx.Client(transport=httpx.MockTransport(answer)) as client,
    ):
        url = "http://server/v1/chat/completions"
        for headers in SIGNED:
            client.post(url, content=body, headers=headers)
        client.post(url, content=iter([body]))
        client.post(url, content=b'{"model":"m","messages":[],"temperature":1e-1} ')
    assert sent[:-1] == [body] * (len(SIGNED) + 1)
    assert sent[-1].startswith(b'{"model":"m","messages":[],"temperature":1e-1,"')
    assert sent[-1].endswith(b"} ")
    assert json.loads(sent[-1])["return_token_ids"] is True
    # A body that can be read only once is the library's to read.
    assert len(trajectory.steps) == len(SIGNED) + 1


def test_an_escaped_path() -> None:
    found = {"candidates": [{"content": {"parts": [{"text": "fine"}]}, "finishReason": "STOP"}]}
    with rt.instrument(), rt.trajectory() as trajectory:
        with httpx.Client(transport=_transport(httpx.Response(200, json=found))) as client:
            client.post("http://server/v1beta/models/g%3AgenerateContent", json={"contents": []})
    assert [(step.protocol, step.model) for step in trajectory.steps] == [("google.generate_content", "g")]


def test_a_task_that_began_inside_a_call() -> None:
    """It has the context of that call for ever; its own calls, made later, are calls all the same."""

    async def run() -> list[str | None]:
        may_go = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        async def later(client: httpx.AsyncClient) -> None:
            await may_go.wait()
            await client.post("http://server/v1/chat/completions", json={**CHAT, "model": "later"})

        async def answer(request: httpx.Request) -> httpx.Response:
            if not tasks:
                tasks.append(asyncio.create_task(later(client)))
            return httpx.Response(200, json=FINE)

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            with rt.trajectory() as trajectory:
                await client.post("http://server/v1/chat/completions", json=CHAT)
                may_go.set()
                await tasks[0]
        return [step.model for step in trajectory.steps]

    with rt.instrument():
        assert asyncio.run(run()) == ["m", "later"]


@pytest.mark.parametrize("piece", [7, 4096])
def test_a_stream_whose_reader_stops_at_the_last_event(piece: int) -> None:
    """Its step is whole at once, though nobody has closed the response, as litellm does not."""
    with ScriptedServer(Reply("a few words", chunk_bytes=piece)) as server, rt.instrument(engine="vllm"):
        with rt.trajectory() as trajectory, httpx.Client() as client:
            asked = {**CHAT, "stream": True}
            request = client.build_request("POST", f"{server.base_url}/chat/completions", json=asked)
            response = client.send(request, stream=True)
            lines = response.iter_lines()
            first = next(lines)
            (running,) = trajectory.steps
            assert (first[:5], running.status) == ("data:", "running") or piece > 100
            assert any("[DONE]" in line for line in lines)
            (step,) = trajectory.steps
            response.close()
    assert (step.status, step.token_issue) == ("ok", None)
    assert step.completion_token_ids is not None


# Retries


def test_a_request_that_is_sent_again_is_an_attempt_of_one_call() -> None:
    refused = [Fault(status=400), Fault(status=400)]
    script: list[Any] = [Fault(status=500), Fault(status=429), Reply("fine"), *refused, Reply("other")]
    with ScriptedServer(script) as server, rt.instrument(engine="vllm"), rt.trajectory() as trajectory:
        for _ in range(3):
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
        # Refused for what it is, with and without what was added: sent again, it is another call.
        for _ in range(2):
            httpx.post(f"{server.base_url}/chat/completions", json={**CHAT, "seed": 1})
        assert len(trajectory.steps) == len(list(trajectory.steps)) == 3
    steps = trajectory.steps
    assert [(step.status, [one.status for one in step.attempts]) for step in steps] == [
        ("ok", [500, 429, 200]),
        ("error", [400, 400]),
        ("ok", [200]),
    ]
    assert [step.index for step in steps] == [0, 1, 2]
    assert steps[0].started_at == steps[0].attempts[0].started_at or steps[0].latency is not None
    assert sum(len(step.attempts) for step in steps) == len(server.requests)


def test_retries_that_fail_to_the_end_are_one_failed_call() -> None:
    with ScriptedServer(Fault(status=503)) as server, rt.instrument(), rt.trajectory() as trajectory:
        for _ in range(3):
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
        httpx.post(f"{server.base_url}/chat/completions", json={**CHAT, "model": "other"})
    assert [(step.model, step.status, len(step.attempts)) for step in trajectory.steps] == [
        ("m", "error", 3),
        ("other", "error", 1),
    ]


def test_retries_of_two_trajectories_do_not_mix() -> None:
    with ScriptedServer([Fault(status=500), Fault(status=500), Reply("a"), Reply("b")]) as server, rt.instrument():
        with rt.trajectory() as one:
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
            with rt.trajectory() as two:
                httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
                httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
            httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
    assert [[len(step.attempts) for step in trajectory.steps] for trajectory in (one, two)] == [[2], [2]]


@pytest.mark.parametrize("second_fails", [False, True])
def test_retries_of_equal_requests_at_once(second_fails: bool) -> None:
    """Each is repeated once, whichever failed first and whatever the other one does meanwhile."""

    async def run() -> list[list[int | None]]:
        both = [asyncio.Event(), asyncio.Event()]
        may_fail, may_end, sent = asyncio.Event(), asyncio.Event(), [0]

        async def answer(request: httpx.Request) -> httpx.Response:
            sent[0] += 1
            if sent[0] == 1:
                both[0].set()
                await may_fail.wait()
                return httpx.Response(500)
            if sent[0] == 2:
                both[1].set()
                await (may_fail if second_fails else may_end).wait()
                return httpx.Response(500) if second_fails else httpx.Response(200, json=FINE)
            return httpx.Response(200, json=FINE)

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:

            async def send() -> None:
                await client.post("http://server/v1/chat/completions", json=CHAT)

            with rt.trajectory() as trajectory:
                first = asyncio.create_task(send())
                await both[0].wait()
                second = asyncio.create_task(send())
                await both[1].wait()
                may_fail.set()
                await first
                if second_fails:
                    await second
                await send()
                if second_fails:
                    await send()
                may_end.set()
                await second
        assert all(step.status == "ok" for step in trajectory.steps)
        return sorted([one.status for one in step.attempts] for step in trajectory.steps)

    with rt.instrument():
        found = asyncio.run(run())
    assert found == ([[500, 200], [500, 200]] if second_fails else [[200], [500, 200]])


def test_a_retry_that_runs_is_joined_when_it_has_ended() -> None:
    """Steps may be read meanwhile: the journal must not have the first attempt in both calls."""
    seen: list[Any] = []
    with rt.instrument(), rt.trajectory() as trajectory:

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append([(step.status, len(step.attempts)) for step in trajectory.steps])
            return httpx.Response(500) if len(seen) == 1 else httpx.Response(200, json=FINE)

        with httpx.Client(transport=httpx.MockTransport(answer)) as client:
            for _ in range(2):
                client.post("http://server/v1/chat/completions", json=CHAT)
    assert seen == [[("running", 1)], [("error", 1), ("running", 1)]]
    assert [[one.status for one in step.attempts] for step in trajectory.steps] == [[500, 200]]


def test_recovered_calls_have_their_retries(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with ScriptedServer([Fault(status=500), Reply("fine")]) as server, rt.instrument():
        with rt.recording(path), rt.trajectory():
            for _ in range(2):
                httpx.post(f"{server.base_url}/chat/completions", json=CHAT)
            assert os.path.isdir(f"{path}.journal")
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            copied = tmp_path / "killed.jsonl"
            subprocess.run(["cp", "-r", f"{path}.journal", f"{copied}.journal"], check=True)
    recovered = rt.recover(copied)
    (trajectory,) = recovered
    (written,) = rt.read(path)
    for one in (trajectory, written):
        assert [[attempt.status for attempt in step.attempts] for step in one.steps] == [[500, 200]]


def test_the_documentation_lists_what_is_recognised() -> None:
    text = (Path(__file__).parents[2] / "docs" / "unmodified.md").read_text()
    rows = re.findall(r"^\| (`[/:].*?) \| (.*?) \| `([\w.]+)` \|$", text, re.MULTILINE)
    documented = {name: (re.findall("`(.*?)`", paths), re.findall("`(.*?)`", keys)) for paths, keys, name in rows}
    known = {one.name: (list(one.paths), list(one.keys)) for one in RECORDS if one.decoder is not None and one.paths}
    assert documented == known


# What the program sees of a failure


def _frames(error: BaseException) -> list[str]:
    found: list[str] = []
    one: BaseException | None = error
    while one is not None:
        frames = traceback.extract_tb(one.__traceback__)
        found += [type(one).__name__, *(f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in frames)]
        one = one.__cause__ or one.__context__
    return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="in 3.10 a raised exception gets the frame back")
@pytest.mark.parametrize("path", ["/chat/completions", "/files"])
def test_tracebacks_have_no_frame_of_ours(path: str) -> None:
    import aiohttp
    import requests

    url, body = f"http://127.0.0.1:9{path}", CHAT

    async def by_aiohttp() -> None:
        async with aiohttp.ClientSession() as session:
            await session.post(url, json=body)

    async def by_httpx() -> None:
        async with httpx.AsyncClient() as client:
            await client.post(url, json=body)

    async def by_async_sdk() -> None:
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="none", max_retries=0) as client:
            await client.post(path, body=body, cast_to=object)

    def by_sdk() -> None:
        with openai.OpenAI(base_url="http://127.0.0.1:9", api_key="none", max_retries=0) as client:
            client.post(path, body=body, cast_to=object)

    def before() -> None:
        made.post(path, body=body, cast_to=object)

    ways: list[Callable[[], object]] = [
        by_sdk,
        before,
        lambda: asyncio.run(by_async_sdk()),
        lambda: httpx.post(url, json=body),
        lambda: asyncio.run(by_httpx()),
        lambda: asyncio.run(by_aiohttp()),
        lambda: requests.post(url, json=body),
    ]

    def failures() -> list[list[str]]:
        found = []
        for way in ways:
            with pytest.raises(Exception) as caught:
                way()
            found.append(_frames(caught.value))
        return found

    with openai.OpenAI(base_url="http://127.0.0.1:9", api_key="none", max_retries=0) as made:
        bare = failures()
        with rt.instrument(), rt.trajectory() as trajectory:
            assert failures() == bare
    # Equal requests of HTTP libraries, one after the other, are attempts of one call.
    assert {step.status for step in trajectory.steps} == ({"error"} if path == "/chat/completions" else set())
    assert sum(len(step.attempts) for step in trajectory.steps) == (len(ways) if path == "/chat/completions" else 0)
