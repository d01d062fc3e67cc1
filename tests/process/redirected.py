"""Requests of every HTTP library, for tests of redirections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from rollout_trace.process.redirect import Redirected
from rollout_trace.testing import LoopbackServer, ScriptedServer
from tests.clients.either import done, drive
from tests.clients.http_libraries.harness import LIBRARIES, Library, World

NOWHERE = "https://user:secret@model.invalid:8443/v1/chat/completions?api-version=1&b=2"
"""An address that cannot be reached."""
PLAIN = NOWHERE.replace("user:secret@", "")
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)


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
    shown = {"url": response.url, "asked": request.url, "real": response.url}
    content = response.content if isinstance(response, requests.Response) else await _content(response)
    return {"status": response.status_code, **{k: str(v) for k, v in shown.items()}, "body": content}


async def _content(response: Any) -> bytes:
    asynchronous = isinstance(response.stream, (httpx.AsyncByteStream, httpx2.AsyncByteStream))
    return bytes(await response.aread() if asynchronous else response.read())
