"""Redirected requests: another server answers, and the client shows the address that it asked."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

import rollout_trace as rt
from rollout_trace.process.redirect import CALL_HEADER, Redirected, redirect
from rollout_trace.testing import Fault, LoopbackServer, RequestRecord, ScriptedServer
from rollout_trace.testing._messages import Response
from tests.clients.either import done, drive
from tests.http_libraries.harness import AIOHTTP, CHAT, HTTPX, LIBRARIES, REQUESTS, Library, World
from tests.process import redirect_program

NOWHERE = "https://user:secret@model.invalid:8443/v1/chat/completions?api-version=1&b=2"
"""An address that cannot be reached."""
PLAIN = NOWHERE.replace("user:secret@", "")
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


def to(server: LoopbackServer, **headers: str) -> Callable[[str, str, bytes | None], Redirected]:
    """A route to a server, for every request."""

    def route(method: str, url: str, body: bytes | None) -> Redirected:
        path = url.partition("://")[2].partition("/")[2]
        return Redirected(f"{server.url}/{path}", headers)

    return route


def run(library: Library, server: ScriptedServer, scenario: Callable[[World], Any], session: Any = None) -> Any:
    """What a scenario gives, with a client of its own."""

    async def body() -> Any:
        world = World(library, server)
        world.session = library.session() if session is None else session()
        try:
            return await scenario(world)
        finally:
            await done(getattr(world.session, "aclose" if hasattr(world.session, "aclose") else "close")())

    return drive(library.kind, body())


async def facts(response: Any) -> dict[str, Any]:
    """What a response of any library says of itself, with its body."""
    if isinstance(response, aiohttp.ClientResponse):
        info = response.request_info
        shown = {"url": response.url, "asked": info.url, "real": response.real_url, "host": info.headers["host"]}
        return {"status": response.status, **{k: str(v) for k, v in shown.items()}, "body": await response.read()}
    request = response.request
    # Before httpx 1.0 and requests 3.0 the header is not on every request.
    shown = {"url": response.url, "asked": request.url, "real": response.url}
    content = response.content if isinstance(response, requests.Response) else await _content(response)
    return {"status": response.status_code, **{k: str(v) for k, v in shown.items()}, "body": content}


async def _content(response: Any) -> bytes:
    asynchronous = isinstance(response.stream, (httpx.AsyncByteStream, httpx2.AsyncByteStream))
    return bytes(await response.aread() if asynchronous else response.read())


@each_library
@pytest.mark.parametrize("streamed", [False, True])
def test_the_client_shows_the_address_that_it_asked(library: Library, streamed: bool, server: ScriptedServer) -> None:
    async def scenario(world: World) -> Any:
        return await facts(await world.post(NOWHERE, streamed=streamed, json={**CHAT, "stream": streamed}))

    seen: list[tuple[str, str, bytes | None]] = []

    def route(method: str, url: str, body: bytes | None) -> Redirected:
        seen.append((method, url, body))
        return to(server, **{"x-added": "yes"})(method, url, body)

    with redirect(route):
        found = run(library, server, scenario)
    (record,) = server.requests
    # aiohttp takes user and password out of an address.
    own = PLAIN if library is AIOHTTP else NOWHERE
    assert (found["status"], found["body"]) == (200, record.response_body)
    assert {found[name] for name in ("url", "asked", "real")} == {own}
    assert record.headers["host"] == "model.invalid:8443"
    assert record.headers["x-added"] == "yes"
    assert record.headers["authorization"].startswith("Basic ")
    assert CALL_HEADER not in record.headers
    assert (record.path, record.query) == ("/v1/chat/completions", "api-version=1&b=2")
    ((method, url, body),) = seen
    assert (method, url, body) == ("POST", own, record.body)


@each_library
def test_the_host_is_what_the_library_would_send(library: Library, server: ScriptedServer) -> None:
    hosts = {
        "https://model.invalid/v1/x": "model.invalid",
        "https://model.invalid:443/v1/x": "model.invalid",
        "http://model.invalid:443/v1/x": "model.invalid:443",
        "http://Model.invalid:80/v1/x": "model.invalid",
        "http://[2001:db8::1]/v1/x": "[2001:db8::1]",
        "http://u:p@[2001:db8::1]:8000/v1/x": "[2001:db8::1]:8000",
    }

    async def scenario(world: World) -> Any:
        return [(await facts(await world.post(url)))["status"] for url in hosts]

    with redirect(to(server)):
        run(library, server, scenario)
    assert [record.headers["host"] for record in server.requests] == list(hosts.values())


@each_library
def test_a_body_that_is_a_stream_is_none_for_the_route(library: Library, server: ScriptedServer) -> None:
    content = json.dumps(CHAT).encode()

    async def pieces() -> Any:
        yield content[:10]
        yield content[10:]

    async def scenario(world: World) -> Any:
        body: Any = pieces() if library.kind == "async" else iter([content[:10], content[10:]])
        named = {"data": body} if library in (AIOHTTP, REQUESTS) else {"content": body}
        return await facts(await world.post(NOWHERE, **named))

    seen: list[bytes | None] = []

    def route(method: str, url: str, body: bytes | None) -> Redirected:
        seen.append(body)
        return to(server)(method, url, body)

    with redirect(route):
        assert run(library, server, scenario)["status"] == 200
    assert seen == [None]
    assert server.requests[0].body == content


@each_library
def test_what_is_not_redirected_goes_where_it_was_going(library: Library, server: ScriptedServer) -> None:
    async def scenario(world: World) -> Any:
        return await facts(await world.post())

    with redirect(lambda method, url, body: None):
        found = run(library, server, scenario)
    assert found["url"] == f"{server.base_url}/chat/completions"
    assert len(server.requests) == 1


@each_library
def test_proxies_of_the_environment_are_left_out(
    library: Library, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        # Bound and not listening: it refuses every connection.
        closed.bind(("127.0.0.1", 0))
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{closed.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)

        async def scenario(world: World) -> Any:
            urls = (NOWHERE, NOWHERE.replace("https", "http"))
            return [(await facts(await world.post(url)))["status"] for url in urls]

        session = (lambda: aiohttp.ClientSession(trust_env=True)) if library is AIOHTTP else None
        with redirect(to(server)):
            assert run(library, server, scenario, session) == [200, 200]


def httpx_clients(name: str, directory: Path) -> dict[str, Callable[[], Any]]:
    """Clients whose connections would not reach a server on this machine, or not with HTTP/1.1."""
    module: Any = importlib.import_module(name)
    kinds = ((module.Client, module.HTTPTransport), (module.AsyncClient, module.AsyncHTTPTransport))
    ways: dict[str, dict[str, Any]] = {
        "proxy": {"proxy": "http://127.0.0.1:9"},
        "uds": {"uds": str(directory / "none.sock")},
        "local": {"local_address": "192.0.2.1"},
        # Without TLS that is HTTP/2 from the first byte.
        "http2": {"http1": False, "http2": True},
    }

    def made(client: Any, transport: Any, options: dict[str, Any]) -> Any:
        return client(transport=transport(**options))

    return {
        f"{client.__name__}-{way}": partial(made, client, transport, options)
        for client, transport in kinds
        for way, options in ways.items()
    }


@pytest.mark.parametrize("name", HTTPX)
def test_connections_of_another_kind_are_not_used(name: str, server: ScriptedServer, tmp_path: Path) -> None:
    for kind, make in httpx_clients(name, tmp_path).items():
        library = next(
            one for one in LIBRARIES if one.name == f"{name}-{'async' if kind.startswith('Async') else 'sync'}"
        )

        async def scenario(world: World) -> Any:
            return [(await facts(await world.post(NOWHERE)))["status"] for _ in range(2)]

        with redirect(to(server)):
            assert run(library, server, scenario, make) == [200, 200], kind


@pytest.mark.parametrize("way", ["unix", "local", "ipv6", "resolver"])
def test_connectors_of_another_kind_are_not_used(way: str, server: ScriptedServer, tmp_path: Path) -> None:
    class Resolver(aiohttp.abc.AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
            raise AssertionError(f"{host} was looked up")

        async def close(self) -> None:
            pass

    makes: dict[str, Callable[[], Any]] = {
        "unix": lambda: aiohttp.UnixConnector(str(tmp_path / "none.sock")),
        "local": lambda: aiohttp.TCPConnector(local_addr=("192.0.2.1", 0)),
        "ipv6": lambda: aiohttp.TCPConnector(family=socket.AF_INET6),
        "resolver": lambda: aiohttp.TCPConnector(resolver=Resolver()),
    }

    async def scenario(world: World) -> Any:
        return [(await facts(await world.post(NOWHERE)))["status"] for _ in range(2)]

    with redirect(to(server)):
        assert run(AIOHTTP, server, scenario, lambda: aiohttp.ClientSession(connector=makes[way]())) == [200, 200]


def test_adapters_of_another_kind_are_not_used(server: ScriptedServer) -> None:
    class Bound(requests.adapters.HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, source_address=("192.0.2.1", 0), **kwargs)

    with redirect(to(server)), requests.Session() as session:
        session.mount("https://", Bound())
        assert [session.post(NOWHERE, json=CHAT).status_code for _ in range(2)] == [200, 200]
        assert session.post(NOWHERE, json=CHAT, verify="/none.pem", cert="/none.pem").status_code == 200


def test_a_transport_of_the_callers_own_is_left_alone(server: ScriptedServer) -> None:
    class Adapter(requests.adapters.BaseAdapter):
        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            response = requests.Response()
            response.status_code, response.request, response.raw = 418, request, None
            return response

        def close(self) -> None:
            pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def mocked(module: Any) -> int:
        with module.Client(transport=module.MockTransport(lambda request: module.Response(418))) as client:
            return int(client.post(NOWHERE, json=CHAT).status_code)

    async def asgi(module: Any) -> int:
        async with module.AsyncClient(transport=module.ASGITransport(app)) as client:
            return int((await client.post(NOWHERE, json=CHAT)).status_code)

    with redirect(to(server)):
        for module in (httpx, httpx2):
            assert mocked(module) == asyncio.run(asgi(module)) == 418
        with requests.Session() as session:
            session.mount("https://", Adapter())
            assert session.post(NOWHERE, json=CHAT).status_code == 418
    assert server.requests == []


class Moving(LoopbackServer):
    """Sends the first request on to another path, and answers the second."""

    def answer(self, record: RequestRecord) -> Response:
        if record.path == "/v2/moved":
            return Response(200, [("set-cookie", "seen=1")], [b"{}"])
        return Response(307, [("location", "/v2/moved")], [b""])


@each_library
def test_a_redirect_of_http_stays_at_the_callers_address(library: Library) -> None:
    async def scenario(world: World) -> Any:
        if library.module not in HTTPX:
            return await facts(await world.post(PLAIN))
        return await facts(await done(world.session.post(PLAIN, json=CHAT, follow_redirects=True)))

    with Moving() as server, redirect(to(server)):
        found = run(library, server, scenario)  # type: ignore[arg-type]
        assert [record.headers["host"] for record in server.requests] == ["model.invalid:8443"] * 2
    assert (found["status"], found["url"]) == (200, "https://model.invalid:8443/v2/moved")


@each_library
def test_a_connection_is_used_again(library: Library, server: ScriptedServer) -> None:
    async def scenario(world: World) -> Any:
        return [(await facts(await world.post(PLAIN)))["status"] for _ in range(3)]

    with redirect(to(server)):
        assert run(library, server, scenario) == [200] * 3
    assert server.connections == 1


@each_library
def test_timeouts_count_and_exceptions_show_the_callers_request(library: Library) -> None:
    async def scenario(world: World) -> Any:
        if library is AIOHTTP:
            patience = aiohttp.ClientTimeout(sock_read=0.05)
            return await world.session.post(PLAIN, json=CHAT, timeout=patience)
        module: Any = {"httpx": httpx, "httpx2": httpx2}.get(library.module)
        limit = (60, 0.05) if module is None else module.Timeout(60, read=0.05)
        return await done(world.session.post(PLAIN, json=CHAT, timeout=limit))

    timeouts = (httpx.ReadTimeout, httpx2.ReadTimeout, requests.ReadTimeout, aiohttp.ServerTimeoutError)
    with ScriptedServer(Fault(hold=True)) as server, redirect(to(server)):
        with pytest.raises(timeouts) as caught:
            run(library, server, scenario)
        server.release()
    if library is not AIOHTTP:
        error: Any = caught.value
        assert str(error.request.url) == PLAIN


# Undoing


def methods() -> list[Any]:
    """What is replaced, as it is now."""
    owners: list[tuple[Any, str]] = [(aiohttp.BaseConnector, "connect"), (requests.adapters.HTTPAdapter, "send")]
    for module in (httpx, httpx2):
        owners += [(module.HTTPTransport, "handle_request"), (module.AsyncHTTPTransport, "handle_async_request")]
    return [vars(owner)[name] for owner, name in owners]


def test_it_is_undone_exactly() -> None:
    before, finders = methods(), list(sys.meta_path)
    outer = redirect(lambda method, url, body: None)
    during = methods()
    inner = redirect(lambda method, url, body: None)
    assert methods() == during
    assert not any(one is other for one, other in zip(before, during, strict=True))
    # In any order, and as often as one likes.
    outer.undo()
    outer.undo()
    assert (outer.is_active, inner.is_active) == (False, True)
    assert methods() == during
    inner.undo()
    assert all(one is other for one, other in zip(before, methods(), strict=True))
    assert sys.meta_path == finders


@each_library
def test_a_client_goes_to_its_own_server_again(library: Library, server: ScriptedServer) -> None:
    with ScriptedServer("theirs") as theirs:

        async def scenario(world: World) -> Any:
            url = f"{theirs.base_url}/chat/completions"
            with redirect(to(server)):
                await facts(await world.post(url))
            return await facts(await world.post(url))

        assert run(library, server, scenario)["status"] == 200
        assert (len(server.requests), len(theirs.requests)) == (1, 1)


@each_library
def test_a_method_that_another_tool_has_wrapped_lets_requests_through(library: Library, server: ScriptedServer) -> None:
    async def scenario(world: World) -> Any:
        return await facts(await world.post())

    handle = redirect(lambda method, url, body: pytest.fail("asked after it was undone"))
    wrapped = methods()
    owners = [aiohttp.BaseConnector, requests.adapters.HTTPAdapter]
    owners += [kind for module in (httpx, httpx2) for kind in (module.HTTPTransport, module.AsyncHTTPTransport)]
    names = ["connect", "send", *["handle_request", "handle_async_request"] * 2]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, ours in zip(owners, names, wrapped, strict=True):
            patch.setattr(owner, name, lambda *args, _ours=ours, **kwargs: _ours(*args, **kwargs))
        handle.undo()
        assert run(library, server, scenario)["status"] == 200
    # That other tool has put ours back, which is not there to stay.
    for owner, name, ours in zip(owners, names, wrapped, strict=True):
        setattr(owner, name, ours.__wrapped__)


def test_of_two_redirections_the_latest_is_asked_first(server: ScriptedServer) -> None:
    def chosen(method: str, url: str, body: bytes | None) -> Redirected | None:
        return to(second)(method, url, body) if "second" in url else None

    with ScriptedServer("two") as second, redirect(to(server)), redirect(chosen):
        for path in ("first", "second"):
            requests.post(f"https://model.invalid/{path}/v1/chat/completions", json=CHAT).raise_for_status()
        assert [record.path for record in server.requests] == ["/first/v1/chat/completions"]
        # Sent once: the outer route is not asked of what the inner one has sent on.
        assert [record.path for record in second.requests] == ["/second/v1/chat/completions"]


def test_a_route_that_fails_leaves_the_request_alone(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def route(method: str, url: str, body: bytes | None) -> Redirected:
        raise LookupError(url)

    url = f"{server.base_url}/chat/completions"
    with redirect(route):
        with pytest.raises(LookupError):
            requests.post(url, json=CHAT)
        before = rt.stats().recorder_errors
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        assert requests.post(url, json=CHAT).status_code == 200
        assert rt.stats().recorder_errors == before + 1


# With the recorder


def steps_of(library: Library, server: ScriptedServer, url: str) -> list[dict[str, Any]]:
    """The steps of a call, without what differs between two runs."""

    async def scenario(world: World) -> Any:
        with rt.trajectory() as trajectory:
            await facts(await world.post(url, streamed=True, json={**CHAT, "stream": True}))
        return trajectory

    varying = {"id", "call_id", "started_at", "latency", "time_to_first_token", "attempts"}
    names = [item.name for item in fields(rt.Step) if item.name not in varying]
    return [
        {"statuses": [one.status for one in step.attempts], **{name: repr(getattr(step, name)) for name in names}}
        for step in run(library, server, scenario).steps
    ]


@each_library
@pytest.mark.parametrize("first", ["instrument", "redirect"])
def test_steps_are_those_of_the_callers_address(library: Library, first: str) -> None:
    with ScriptedServer("fine") as theirs, ScriptedServer("fine") as ours:
        url = f"{theirs.base_url}/chat/completions"
        with rt.instrument(engine={theirs.base_url: "vllm"}):
            plain = steps_of(library, theirs, url)
        makers: list[Callable[[], Any]] = [
            lambda: rt.instrument(engine={theirs.base_url: "vllm"}),
            lambda: redirect(to(ours)),
        ]
        handles = [make() for make in (makers if first == "instrument" else makers[::-1])]
        try:
            redirected = steps_of(library, theirs, url)
        finally:
            for handle in handles:
                handle.undo()
        assert redirected == plain
        assert len(plain) == len(ours.requests) == len(theirs.requests) == 1
        # The engine's ids were asked for, by the caller's address.
        assert ours.requests[0].body == theirs.requests[0].body


@each_library
def test_a_request_of_a_call_has_its_id(library: Library, server: ScriptedServer) -> None:
    async def scenario(world: World) -> Any:
        with rt.trajectory() as trajectory:
            await facts(await world.post(PLAIN))
        return trajectory

    with rt.instrument(), redirect(to(server)):
        (step,) = run(library, server, scenario).steps
    assert server.requests[0].headers[CALL_HEADER] == step.call_id


@pytest.mark.filterwarnings("ignore:Inheritance class Aiohttp:DeprecationWarning")
def test_the_requests_of_sdks_go_there_too(server: ScriptedServer) -> None:
    import anthropic
    import openai
    from google import genai

    ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    usual: dict[str, Any] = {"api_key": "none", "max_retries": 0}

    def synchronous() -> None:
        for legacy in (None, httpx.Client()):
            with openai.OpenAI(**usual, http_client=legacy) as client:  # type: ignore[arg-type]
                assert client.chat.completions.create(**ask).choices[0].message.content == "fine"
                with client.chat.completions.stream(**ask) as stream:
                    assert stream.get_final_completion().choices[0].message.content == "fine"
        with anthropic.Anthropic(**usual) as claude:
            assert claude.messages.create(**ask, max_tokens=9).content[0].text == "fine"
        gemini = genai.Client(api_key="none")
        assert gemini.models.generate_content(model="m", contents="hi").text == "fine"
        gemini.close()

    async def asynchronous() -> None:
        for legacy in (None, httpx.AsyncClient(), openai.DefaultAioHttpClient()):
            async with openai.AsyncOpenAI(**usual, http_client=legacy) as client:  # type: ignore[arg-type]
                assert (await client.chat.completions.create(**ask)).choices[0].message.content == "fine"
        async with anthropic.AsyncAnthropic(**usual) as claude:
            async with claude.messages.stream(**ask, max_tokens=9) as stream:
                assert await stream.get_final_text() == "fine"
        gemini = genai.Client(api_key="none")
        streamed = await gemini.aio.models.generate_content_stream(model="m", contents="hi")
        assert [part.text async for part in streamed if part.text]
        await gemini.aio.aclose()
        gemini.close()

    with redirect(to(server)), rt.instrument(), rt.trajectory() as trajectory:
        synchronous()
        asyncio.run(asynchronous())
    hosts = [record.headers["host"] for record in server.requests]
    assert hosts.count("api.openai.com") == 7
    assert hosts.count("api.anthropic.com") == 2
    assert hosts.count("generativelanguage.googleapis.com") == 2
    assert [record.headers[CALL_HEADER] for record in server.requests] == [step.call_id for step in trajectory.steps]
    assert {step.status for step in trajectory.steps} == {"ok"}


# Imports, threads, processes


@pytest.mark.parametrize("when", ["before", "after"])
def test_libraries_may_be_imported_before_or_after(when: str, server: ScriptedServer) -> None:
    command = [sys.executable, "-W", "error", redirect_program.__file__, when, server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["httpx", "httpx2", "requests", "aiohttp", "undone"]
    assert [record.headers["host"] for record in server.requests] == ["model.invalid"] * 4


def test_threads_share_it(server: ScriptedServer) -> None:
    barrier = threading.Barrier(8)

    def work(number: int) -> int:
        barrier.wait()
        with httpx.Client(proxy="http://127.0.0.1:9") as client, requests.Session() as session:
            found = [client.post(f"{PLAIN}&n={number}", json=CHAT).status_code for _ in range(3)]
            return sum([*found, session.post(PLAIN, json=CHAT).status_code])

    with redirect(to(server)), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [800] * 8
    assert len(server.requests) == 32


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_goes_there_too(server: ScriptedServer) -> None:
    with redirect(to(server)):
        child = os.fork()
        if not child:
            code = 1
            try:
                with redirect(to(server, **{"x-child": "yes"})):
                    code = requests.post(PLAIN, json=CHAT).status_code != 200
            finally:
                os._exit(int(code))
        assert os.waitpid(child, 0)[1] == 0
        assert requests.post(PLAIN, json=CHAT).status_code == 200
    assert ["x-child" in record.headers for record in server.requests] == [True, False]
