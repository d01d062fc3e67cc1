"""The recorder without an SDK: what the standard library and httpx send is recorded as the SDK's calls."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

import rollout_trace as rt
from rollout_trace.clients import recorder
from rollout_trace.clients.httpx import http_kind, wrap_httpx
from rollout_trace.clients.sdks import protocol_of
from rollout_trace.data.model import STEP_FIELDS
from rollout_trace.record.settings import Settings
from rollout_trace.testing import Fault, ScriptedServer
from rollout_trace.wire.profiles import profile
from tests.clients.either import Kind, done, drive, entered
from tests.wire.engines.engine_servers import KNOWN, Refusing

from .harness import CHAT

ASKED = {**CHAT, "logprobs": True, "return_token_ids": True, "return_weight_versions": True}
OF_THE_CALL = {"id", "call_id", "started_at", "latency", "time_to_first_token", "attempts", "response_id"}


def as_the_sdk(server: ScriptedServer, body: dict[str, Any]) -> rt.Step:
    """The step that the openai SDK's client makes of the same request."""
    options = {name: value for name, value in body.items() if not name.startswith("return_")}
    with rt.trajectory() as trajectory, openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as plain:
        client = rt.wrap_openai(plain, engine="vllm")
        answer = client.chat.completions.create(**options)
        if body.get("stream"):
            list(answer)
    (step,) = trajectory.steps
    return step


def assert_same(step: rt.Step, other: rt.Step) -> None:
    for name in set(STEP_FIELDS) - OF_THE_CALL:
        found, expected = getattr(step, name), getattr(other, name)
        if hasattr(expected, "tolist"):
            found, expected = found.tolist(), expected.tolist()
        assert found == expected, name


# With http.client: what anybody's own client would do.


def plain_call(base_url: str, body: dict[str, Any], *, read: int | None = None) -> rt.Trajectory:
    """A call with the standard library alone; ``read``: pieces that are read of the answer, all by default."""
    address = urlsplit(base_url)
    path, content = f"{address.path}/chat/completions", json.dumps(body).encode()
    with rt.trajectory() as trajectory:
        settings = Settings(protocol_of, profile("vllm"))
        call = recorder.begin(settings, protocol_of("POST", path))
        connection = http.client.HTTPConnection(str(address.hostname), address.port)
        try:
            recorder.attempt(call, content)
            connection.request("POST", path, content, {"content-type": "application/json"})
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            recorder.answered(call, response.status, headers)
            for number, chunk in enumerate(iter(lambda: response.read(40), b"")):
                if number == read:
                    break
                recorder.receive(call, chunk)
            else:
                recorder.finished(call)
            recorder.ended(call, None if read is None else GeneratorExit())
        except Exception as error:
            recorder.failed(call, error)
        finally:
            connection.close()
    return trajectory


@pytest.mark.parametrize("stream", [False, True])
def test_any_http_library(stream: bool) -> None:
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    body = {**ASKED, "stream": stream, **usage}
    with ScriptedServer("two words") as server:
        (step,) = plain_call(server.base_url, body).steps
        assert_same(step, as_the_sdk(server, body))
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert (step.status, step.engine, step.attempts[0].status) == ("ok", "vllm", 200)


def test_a_stream_that_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer("a longer answer in many words") as server:
        (step,) = plain_call(server.base_url, {**ASKED, "stream": True}, read=3).steps
    assert (step.status, step.error) == ("abandoned", None)


def test_a_server_that_is_gone() -> None:
    with ScriptedServer("fine") as server:
        address = server.base_url
    (step,) = plain_call(address, ASKED).steps
    assert step.status == "error"
    assert step.error is not None
    assert step.error.type == "ConnectionRefusedError"


def test_what_does_not_generate_is_no_call() -> None:
    settings = Settings(protocol_of)
    with rt.trajectory() as trajectory:
        call = recorder.begin(settings, protocol_of("GET", "/v1/models"))
        assert call is None
        recorder.attempt(call, b"")
        recorder.answered(call, 200, {})
        recorder.receive(call, b"x")
        recorder.body(call, b"x")
        recorder.finished(call)
        recorder.attempt_failed(call, None)
        recorder.failed(call, ValueError())
        recorder.ended(call)
    assert trajectory.steps == []


def test_redirects_and_second_tries_are_attempts() -> None:
    with rt.trajectory() as trajectory:
        call = recorder.begin(Settings(protocol_of), "openai.chat")
        recorder.attempt(call, b'{"model":"first"}')
        recorder.attempt_failed(call, ConnectionError("lost"))
        recorder.attempt(call, b'{"model":"second"}')
        recorder.answered(call, 200, {"content-type": "application/json"}, [(307, {"location": "/there"})])
        recorder.body(call, b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}')
        recorder.ended(call)
    (step,) = trajectory.steps
    assert [one.status for one in step.attempts] == [None, 307, 200]
    assert step.attempts[0].error is not None
    assert (step.attempts[0].error.type, step.model, step.status) == ("ConnectionError", "second", "ok")


# Clients of httpx.


# Imported here: while a test runs, a stream of the SDK's could be collected in the middle of it, and be closed with a
# module that is half there.
LIBRARIES = [import_module(name) for name in ("httpx", "httpx2") if find_spec(name) is not None]


@pytest.fixture(params=LIBRARIES, ids=lambda module: str(module.__name__))
def library(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


async def post(client: Any, server: ScriptedServer, body: dict[str, Any]) -> Any:
    """One request; what its caller sees of the answer."""
    request = client.build_request("POST", f"{server.base_url}/chat/completions", json=body)
    response = await done(client.send(request, stream=True))
    content = await done(response.aread() if hasattr(client, "aclose") else response.read())
    return response.status_code, content


def both(
    kind: Kind, library: ModuleType, new_server: Callable[[], ScriptedServer], body: dict[str, Any]
) -> tuple[rt.Step, rt.Step]:
    """The step of an HTTP client, which sees what one that is not recorded sees; and that of the SDK."""
    make = library.AsyncClient if kind == "async" else library.Client

    async def scenario(server: ScriptedServer, engine: str | None) -> tuple[Any, list[rt.Step]]:
        async with entered(make()) as client:
            assert http_kind(client) == kind
            if engine is None:
                return await post(client, server, body), []
            assert wrap_httpx(client, engine=engine) is client
            assert isinstance(client, make)
            with rt.trajectory() as trajectory:
                seen = await post(client, server, body)
            assert rt.unwrap(client) is client
            assert type(client) is make
            return seen, trajectory.steps

    with new_server() as server:
        bare, _ = drive(kind, scenario(server, None))
    with new_server() as server:
        seen, (step,) = drive(kind, scenario(server, "vllm"))
        other = as_the_sdk(server, body) if seen[0] == 200 else step
    assert seen[0] == bare[0]
    return step, other


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_httpx(kind: Kind, library: ModuleType, stream: bool) -> None:
    """It is asked as the SDK's client is, and its step is the same."""
    step, other = both(kind, library, lambda: ScriptedServer("two words"), {**CHAT, "stream": stream})
    assert_same(step, other)
    assert step.completion_token_ids is not None


def test_httpx_and_a_server_that_refuses(kind: Kind, library: ModuleType) -> None:
    step, other = both(kind, library, lambda: Refusing(known=KNOWN - {"return_token_ids"}), CHAT)
    assert [one.status for one in step.attempts] == [422, 200]
    assert_same(step, other)
    assert step.token_issue is not None
    assert "return_token_ids" in step.token_issue.message


def test_httpx_and_an_error(kind: Kind, library: ModuleType) -> None:
    step, _ = both(kind, library, lambda: ScriptedServer(Fault(status=500)), CHAT)
    assert step.status == "error"
    assert step.error is not None
    assert step.error.status == 500
    (attempt,) = step.attempts
    assert attempt.error is not None
    assert (attempt.status, attempt.error.status) == (500, 500)


def test_half_a_character_in_a_request(kind: Kind, library: ModuleType) -> None:
    """JSON can hold it, UTF-8 cannot: the request is sent with what it is asked for, and recorded as it was sent."""
    cut = {**CHAT, "messages": [{"role": "user", "content": "cut \ud800"}]}

    async def scenario(server: ScriptedServer) -> rt.Trajectory:
        async with entered(library.AsyncClient() if kind == "async" else library.Client()) as plain:
            client = wrap_httpx(plain, engine="vllm")
            url, content = f"{server.base_url}/chat/completions", json.dumps(cut).encode()
            with rt.trajectory() as trajectory:
                await done(client.post(url, content=content, headers={"content-type": "application/json"}))
            return trajectory

    with ScriptedServer("fine") as server:
        (step,) = drive(kind, scenario(server)).steps
        (request,) = server.requests
    assert request.json["return_token_ids"] is True
    assert list(step.messages or ()) == cut["messages"]
    assert step.completion_token_ids is not None


def test_a_request_whose_body_is_a_stream(library: ModuleType) -> None:
    """Nobody but the HTTP library may read it: nothing is asked for, and the request is not known."""
    with ScriptedServer("fine") as server, library.Client() as plain, rt.trajectory() as trajectory:
        client = wrap_httpx(plain, engine="vllm")
        pieces = iter([json.dumps(CHAT).encode()])
        assert client.post(f"{server.base_url}/chat/completions", content=pieces).status_code == 200
    (step,) = trajectory.steps
    assert (step.status, step.messages) == ("ok", None)
    assert step.token_issue is None or step.token_issue.code != "recorder_failed"


def test_httpx_and_other_requests(kind: Kind, library: ModuleType) -> None:
    async def scenario(server: ScriptedServer) -> Any:
        async with entered(library.AsyncClient() if kind == "async" else library.Client()) as plain:
            return await done(wrap_httpx(plain).get(f"{server.base_url}/models"))

    with ScriptedServer("fine") as server, rt.trajectory() as trajectory:
        assert drive(kind, scenario(server)).status_code == 200
    assert trajectory.steps == []


@pytest.mark.parametrize("wrong", [object(), None])
def test_wrapping_something_else(wrong: Any) -> None:
    with pytest.raises(TypeError, match="of httpx"):
        wrap_httpx(wrong)


def test_a_client_of_httpx_is_not_asked_what_it_is(library: ModuleType) -> None:
    with library.Client() as client, pytest.raises(ValueError, match="name the engine"):
        wrap_httpx(client, engine="auto")
