"""Whose connections and hooks the requests to the tokenizer use: those of the caller's client, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from openai import APITimeoutError, AsyncOpenAI, OpenAI

import rollout_trace as rt
from rollout_trace.clients.httpx import wrap_httpx
from rollout_trace.clients.loopback.messages import json_response
from rollout_trace.testing import Fault, ScriptedServer
from tests.clients.either import Kind, done, drive, entered

from .agents import ENGINE, TOKENIZER, exact, numbered, says, texts

USER = {"role": "user", "content": "hi"}
SECOND = [USER, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go"}]
HELD = Fault(says("hello world"), hold_after=2)
SHORT = httpx2.Timeout(30, pool=0.1)
ONE = httpx2.Limits(max_connections=1)


def _client(kind: str, **options: Any) -> Any:
    return (httpx2.Client if kind == "sync" else httpx2.AsyncClient)(**options)


def _openai(kind: str, server: ScriptedServer, http: Any, **options: Any) -> Any:
    plain = OpenAI if kind == "sync" else AsyncOpenAI
    return rt.wrap_openai(
        plain(base_url=server.base_url, api_key="-", max_retries=0, http_client=http, **options), engine=ENGINE
    )


async def by_openai(kind: str, server: ScriptedServer) -> None:
    async with entered(_client(kind, limits=ONE)) as http:
        create = _openai(kind, server, http, timeout=SHORT).chat.completions.create
        await done(create(model="m", messages=[USER]))
        stream = await done(create(model="m", messages=[{**USER, "content": "other"}], stream=True))
        with pytest.raises(APITimeoutError):
            await done(create(model="m", messages=SECOND))
        await done(stream.close())


async def by_httpx(kind: str, server: ScriptedServer) -> None:
    url = f"{server.base_url}/chat/completions"
    async with entered(_client(kind, limits=ONE, timeout=SHORT)) as http:
        wrap_httpx(http, engine=ENGINE)
        await done(http.post(url, json={"model": "m", "messages": [USER]}))
        body = {"model": "m", "messages": [{**USER, "content": "other"}], "stream": True}
        async with entered(http.stream("POST", url, json=body)):
            with pytest.raises(httpx2.PoolTimeout):
                await done(http.post(url, json={"model": "m", "messages": SECOND}))


def by_requests(server: ScriptedServer) -> None:
    requests = pytest.importorskip("requests")
    url = f"{server.base_url}/chat/completions"
    opened: list[Any] = []

    class Adapter(requests.adapters.HTTPAdapter):  # type: ignore[name-defined,misc]
        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            # Without an end a pool waits here for a stream to be closed.
            while opened:
                opened.pop().close()
            return super().send(request, *args, **kwargs)

    with requests.Session() as session:
        session.mount("http://", Adapter(pool_maxsize=1, pool_block=True))
        session.post(url, json={"model": "m", "messages": [USER]})
        body = {"model": "m", "messages": [{**USER, "content": "other"}], "stream": True}
        opened.append(session.post(url, json=body, stream=True))
        session.post(url, json={"model": "m", "messages": SECOND})


async def by_aiohttp(server: ScriptedServer) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    url = f"{server.base_url}/chat/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        async with session.post(url, json={"model": "m", "messages": [USER]}) as response:
            await response.read()
        body = {"model": "m", "messages": [{**USER, "content": "other"}], "stream": True}
        timeout = aiohttp.ClientTimeout(connect=0.1)
        async with session.post(url, json=body):
            with pytest.raises(asyncio.TimeoutError):
                await session.post(url, json={"model": "m", "messages": SECOND}, timeout=timeout)


WAYS: dict[str, Callable[[ScriptedServer], Any]] = {
    "openai": lambda server: drive("sync", by_openai("sync", server)),
    "async openai": lambda server: drive("async", by_openai("async", server)),
    "httpx": lambda server: drive("sync", by_httpx("sync", server)),
    "async httpx": lambda server: drive("async", by_httpx("async", server)),
    "requests": by_requests,
    "aiohttp": lambda server: asyncio.run(by_aiohttp(server)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_pool_whose_only_connection_is_in_use(way: str) -> None:
    http = way in ("requests", "aiohttp")
    with ScriptedServer([says("yes"), HELD, says("ok")], tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        if http:
            with rt.instrument(engine=ENGINE, http=True):
                WAYS[way](server)
        else:
            WAYS[way](server)
        server.release()
        paths = {one.path for one in server.requests}
    assert texts(trajectory.steps) == [None, None, "tokenizer"]
    turn = trajectory.steps[2].exact_turn
    assert turn is not None
    # It waits for a while, and not for as long as the tokenizer may take.
    assert "the client had no free connection" in (turn.detail or "")
    assert paths == {"/v1/chat/completions"}


def _hooks(kind: str, seen: list[str], *, sign: bool = False) -> dict[str, list[Any]]:
    def request(one: Any) -> None:
        seen.append(f"request {one.url.path}")
        if sign:
            one.headers["x-key"] = "secret"

    def response(one: Any) -> None:
        seen.append(f"response {one.request.url.path}")

    async def request_async(one: Any) -> None:
        request(one)

    async def response_async(one: Any) -> None:
        response(one)

    hooks = (request, response) if kind == "sync" else (request_async, response_async)
    return {"request": [hooks[0]], "response": [hooks[1]]}


class Guarded(ScriptedServer):
    """A server that wants a key which a hook adds."""

    def answer(self, record: Any) -> Any:
        if record.headers.get("x-key") != "secret":
            return json_response(401, {"error": {"message": "no key"}})
        return super().answer(record)


async def _turns(kind: str, layer: str, server: ScriptedServer, hooks: dict[str, list[Any]]) -> None:
    url = f"{server.base_url}/chat/completions"
    async with entered(_client(kind, event_hooks=hooks)) as http:
        client = wrap_httpx(http, engine=ENGINE) if layer == "httpx" else _openai(kind, server, http)
        messages: list[Any] = [USER]
        for turn in range(3):
            if layer == "httpx":
                answer = (await done(http.post(url, json={"model": "m", "messages": messages}))).json()
                text = answer["choices"][0]["message"]["content"]
            else:
                answer = await done(client.chat.completions.create(model="m", messages=messages))
                text = answer.choices[0].message.content
            messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": f"go {turn}"}]


@pytest.mark.parametrize("layer", ["openai", "httpx"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_hooks_of_a_client_do_not_see_what_is_asked_of_the_tokenizer(kind: Kind, layer: str) -> None:
    seen: list[str] = []
    with ScriptedServer(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        drive(kind, _turns(kind, layer, server, _hooks(kind, seen)))
        paths = [one.path for one in server.requests]
    assert exact(trajectory.steps) == [False, True, True]
    assert "/tokenize" in paths
    assert seen == [f"{what} /v1/chat/completions" for _ in range(3) for what in ("request", "response")]


@pytest.mark.parametrize("layer", ["openai", "httpx"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_hook_that_authenticates_is_run_where_the_server_refuses(kind: Kind, layer: str) -> None:
    seen: list[str] = []
    with Guarded(numbered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        drive(kind, _turns(kind, layer, server, _hooks(kind, seen, sign=True)))
        asked = [one.headers.get("x-key") for one in server.requests if one.path == "/tokenize"]
    assert exact(trajectory.steps) == [False, True, True], texts(trajectory.steps)
    assert asked == [None, *["secret"] * 5]
    assert trajectory.steps[1].exact_turn is not None
    assert trajectory.steps[1].exact_turn.n_requests == 5
