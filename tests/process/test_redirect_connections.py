"""Clients whose connections would not reach a server on this machine, or that are no clients of the network."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from rollout_trace.process.redirect import redirect
from rollout_trace.testing import ScriptedServer
from tests.clients.http_libraries.harness import AIOHTTP, CHAT, HTTPX, LIBRARIES, World

from .redirected import NOWHERE, facts, run, to


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


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
