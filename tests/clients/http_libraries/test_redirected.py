"""A redirected request is the same bytes, and its caller gets the same: nothing but the address differs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rollout_trace.process.redirect import Redirected, redirect
from rollout_trace.testing import Fault, Reply, ScriptedServer
from tests.amount import some
from tests.clients.either import done
from tests.sdk_harness import traffic

from .harness import CHAT, LIBRARIES, Library, Run, Scenario, World, body_of, run
from .test_reading import _WAYS, each_way

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
FAULTS: dict[str, Any] = {
    "status": Fault(status=429),
    "cut": Fault("one two three four", cut_after=2),
    "reset": Fault(cut_after=0),
}


def both(library: Library, script: Any, scenario: Scenario, *, raises: bool = False) -> Run:
    """Runs a scenario bare and redirected, and gives the second run: of a client that asks another server."""
    plain = run(library, script, scenario, None)
    assert plain.outcome[0] == ("raised" if raises else "returned"), plain.outcome
    with ScriptedServer("not asked") as other:

        async def elsewhere(world: World) -> Any:
            def route(method: str, url: str, body: bytes | None) -> Redirected:
                return Redirected(url.replace(other.base_url, world.server.base_url), {})

            asked = World(library, _Address(other.base_url, world.server))  # type: ignore[arg-type]
            asked.session = world.session
            with redirect(route):
                return await scenario(asked)

        ours = run(library, script, elsewhere, None)
        assert other.requests == []
        host = other.url.removeprefix("http://")
    assert re.sub(rf"(127\.0\.0\.1:|port=|', ){host.partition(':')[2]}\b", r"\1PORT", ours.seen) == plain.seen
    assert traffic(ours.server) == traffic(plain.server)
    assert {record.headers["host"] for record in ours.server.requests} == {host}
    assert [r.connection for r in ours.server.requests] == [r.connection for r in plain.server.requests]
    return ours


class _Address:
    """A server by another address."""

    def __init__(self, base_url: str, server: ScriptedServer) -> None:
        self.base_url = base_url
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


@each_way
@pytest.mark.parametrize("compress", some([None, "gzip"], "gzip"))
def test_each_way_to_read(library: Library, way: str, compress: Any) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(streamed=True, json={**CHAT, "stream": True})
        return await _WAYS[library.module][way](response)

    both(library, Reply("a few words é", compress=compress, chunk_bytes=7), scenario)


@each_library
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(library: Library, fault: str) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(json={**CHAT, "stream": True})
        if library.module == "aiohttp":
            return [response.status, await response.read()]
        return [response.status_code, response.content]

    both(library, FAULTS[fault], scenario, raises=fault != "status")


@each_library
def test_headers_cookies_and_bodies(library: Library) -> None:
    async def scenario(world: World) -> Any:
        headers = {"X-Case": "Kept", "content-type": "application/json", "Authorization": "Bearer é".encode("latin-1")}
        if library.module in ("aiohttp", "requests"):
            headers["Authorization"] = "Bearer key"
        found = []
        for _ in range(2):
            response = (
                await world.post(content=body_of(CHAT), headers=headers, params={"a": "b c"})
                if library.module != "requests"
                else await world.post(data=body_of(CHAT), headers=headers)
            )
            found.append(response.status if library.module == "aiohttp" else response.status_code)
            await done(response.release() if library.module == "aiohttp" else None)
        return found

    ours = both(library, "fine", scenario)
    assert len(ours.server.requests) == 2
