"""A redirection is undone exactly; several are in force at once; processes and threads share them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

import rollout_trace as rt
from rollout_trace.process.redirect import Redirected, redirect
from rollout_trace.testing import ScriptedServer
from tests.clients.http_libraries.harness import CHAT, Library, World
from tests.process import redirect_program

from .redirected import PLAIN, each_library, facts, run, to


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


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
