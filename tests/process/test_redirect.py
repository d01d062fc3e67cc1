"""Redirected requests: another server answers, and the client shows the address that it asked."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from rollout_trace.clients.loopback.messages import Response
from rollout_trace.process.redirect import CALL_HEADER, Redirected, redirect
from rollout_trace.testing import Fault, LoopbackServer, RequestRecord, ScriptedServer
from tests.clients.either import done
from tests.clients.http_libraries.harness import AIOHTTP, CHAT, HTTPX, REQUESTS, Library, World

from .redirected import NOWHERE, PLAIN, each_library, facts, run, to


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


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
