"""Which requests are recorded, and that no other is touched: forms, streams, redirects, nested libraries, mistakes."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import credentials
from rollout_trace.clients.loopback.messages import Response
from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer
from tests.clients.either import done, drive

from .harness import AIOHTTP, CHAT, LIBRARIES, REQUESTS, Library, World, assert_recorded, both
from .test_ends import _each, closed, pieces

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
BODY = json.dumps(CHAT).encode()
HEADERS = {"content-type": "application/json"}


async def read(world: World, response: Any) -> bytes:
    """The whole body."""
    found = [piece async for piece in _each(pieces(world.library, response))]
    await closed(world.library, response)
    return b"".join(found)


def payload(name: str, *arguments: Any) -> Callable[[], Any]:
    """A body as an object of aiohttp's."""
    return lambda: getattr(importlib.import_module("aiohttp"), name)(*arguments)


RECORDED: dict[str, tuple[Library, Callable[[], dict[str, Any]]]] = {
    "requests-json": (REQUESTS, lambda: {"json": CHAT}),
    "requests-bytes": (REQUESTS, lambda: {"data": BODY}),
    "requests-text": (REQUESTS, lambda: {"data": BODY.decode()}),
    "aiohttp-json": (AIOHTTP, lambda: {"json": CHAT}),
    "aiohttp-bytes": (AIOHTTP, lambda: {"data": BODY}),
    "aiohttp-bytearray": (AIOHTTP, lambda: {"data": bytearray(BODY)}),
    "aiohttp-text": (AIOHTTP, lambda: {"data": BODY.decode()}),
    "aiohttp-payload": (AIOHTTP, lambda: {"data": payload("BytesPayload", BODY)()}),
    "aiohttp-json-payload": (AIOHTTP, lambda: {"data": payload("JsonPayload", CHAT)()}),
}


@pytest.mark.parametrize("form", RECORDED)
def test_bodies_that_are_recorded(form: str) -> None:
    library, options = RECORDED[form]

    async def scenario(world: World) -> Any:
        return await read(world, await world.post(**options()))

    ours = both(library, "fine", scenario)
    assert_recorded(ours)
    assert ours.step.messages == CHAT["messages"]


async def _chunks() -> Any:
    yield BODY[:5]
    yield BODY[5:]


UNTOUCHED: dict[str, tuple[Library, Callable[[], dict[str, Any]]]] = {
    "requests-iterator": (REQUESTS, lambda: {"data": iter([BODY[:5], BODY[5:]])}),
    "requests-file": (REQUESTS, lambda: {"data": io.BytesIO(BODY)}),
    "requests-form": (REQUESTS, lambda: {"data": {"messages": "hi"}}),
    "requests-list": (REQUESTS, lambda: {"json": [1]}),
    "requests-nothing": (REQUESTS, lambda: {"data": None}),
    "aiohttp-generator": (AIOHTTP, lambda: {"data": _chunks()}),
    "aiohttp-file": (AIOHTTP, lambda: {"data": io.BytesIO(BODY)}),
    "aiohttp-form": (AIOHTTP, lambda: {"data": {"messages": "hi"}}),
    "aiohttp-form-data": (AIOHTTP, lambda: {"data": payload("FormData", {"messages": "hi"})()}),
    "aiohttp-other-json": (AIOHTTP, lambda: {"json": {"input": "hi"}}),
    "aiohttp-nothing": (AIOHTTP, lambda: {"data": None}),
}


class Echo(ScriptedServer):
    """Answers every request with a list of its bytes."""

    def answer(self, record: RequestRecord) -> Response:
        """The length of the body."""
        return Response(200, (("content-type", "application/json"),), [b"[%d]" % len(record.body)])


@pytest.mark.parametrize("form", UNTOUCHED)
def test_bodies_that_are_no_call(form: str) -> None:
    library, options = UNTOUCHED[form]

    async def scenario(world: World) -> Any:
        return await read(world, await done(world.session.post(world.url, **options())))

    ours = both(library, "x", scenario, server=Echo)
    assert (ours.steps, ours.stats.calls) == ([], 0)


@each_library
def test_other_requests(library: Library) -> None:
    async def scenario(world: World) -> Any:
        found = []
        for path in ("/models", "/chat/completions/123"):
            response = await done(world.session.get(world.server.base_url + path))
            found.append(getattr(response, "status_code", None) or response.status)
            await closed(library, response)
        return found

    ours = both(library, "fine", scenario)
    assert (ours.steps, ours.stats.calls) == ([], 0)


@each_library
def test_what_only_looks_like_a_call(library: Library) -> None:
    """Its path and body are those of a call, and its answer is none: counted, and not stored."""

    async def scenario(world: World) -> Any:
        return await read(world, await world.post(streamed=True))

    ours = both(library, "x", scenario, server=Echo)
    assert (ours.steps, ours.stats.calls, ours.stats.not_model_calls) == ([], 1, 1)


class Moved(ScriptedServer):
    """Sends every request of `/old` on to `/v1`."""

    def answer(self, record: RequestRecord) -> Response:
        """A redirect, or the answer."""
        if record.path.startswith("/old"):
            path = record.path.removeprefix("/old")
            return Response(307, (("location", f"/v1{path}"), ("x-request-id", "moved")), [])
        return super().answer(record)


@each_library
def test_a_redirect_is_an_attempt(library: Library) -> None:
    async def scenario(world: World) -> Any:
        follow = {"follow_redirects": True} if library.module.startswith("httpx") else {}
        url = f"{world.server.url}/old/chat/completions"
        if follow:
            request = world.session.build_request("POST", url, json=CHAT)
            return await read(world, await done(world.session.send(request, **follow)))
        return await read(world, await world.post(url))

    step = both(library, "fine", scenario, server=Moved).step
    assert [(one.status, one.request_id) for one in step.attempts] == [(307, "moved"), (200, None)]
    assert step.status == "ok"


def test_requests_that_are_sent_again_by_urllib3() -> None:
    """Below requests: one attempt."""

    class Flaky(ScriptedServer):
        def answer(self, record: RequestRecord) -> Response:
            if len(self.requests) < 3:
                return Response(503, (), [b"busy"])
            return super().answer(record)

    async def scenario(world: World) -> Any:
        requests, retry = importlib.import_module("requests"), importlib.import_module("urllib3.util.retry").Retry
        retries = retry(total=3, backoff_factor=0, status_forcelist=[503], allowed_methods=None)
        world.session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        return (await world.post()).json()

    ours = both(REQUESTS, "fine", scenario, server=Flaky)
    assert [one.status for one in ours.step.attempts] == [200]
    assert (ours.step.status, len(ours.server.requests)) == ("ok", 3)


def test_a_hook_of_requests_that_reads_and_one_that_raises() -> None:
    async def reading(world: World) -> Any:
        seen: list[Any] = []
        world.session.hooks["response"].append(lambda response, **_: seen.append(response.text))
        response = await world.post(streamed=True)
        return [seen, response.text]

    assert_recorded(both(REQUESTS, "fine", reading))

    async def raising(world: World) -> Any:
        world.session.hooks["response"].append(lambda response, **_: response.raise_for_status())
        return await world.post(streamed=True)

    step = both(REQUESTS, Fault(status=503), raising, raises=True).step
    assert step.error is not None
    assert (step.status, step.error.status) == ("error", 503)


@pytest.mark.parametrize("library", [REQUESTS, AIOHTTP], ids=lambda one: one.name)
def test_a_body_that_is_no_json(library: Library) -> None:
    """The library's own exception, and no call."""

    async def scenario(world: World) -> Any:
        return await world.post(json={**CHAT, "stop": {1, 2}})

    ours = both(library, "fine", scenario, raises=True)
    assert (ours.steps, ours.stats.calls) == ([], 0)


def test_an_address_that_is_none() -> None:
    async def scenario(world: World) -> Any:
        return await world.post("http://[x/v1/chat/completions")

    assert both(AIOHTTP, "fine", scenario, raises=True).steps == []


def test_a_base_address_and_a_serialiser_of_the_session() -> None:
    dumped: list[Any] = []

    def dumps(value: Any) -> str:
        dumped.append(value)
        return json.dumps(value, separators=(",", ":"))

    async def scenario(world: World) -> Any:
        aiohttp = importlib.import_module("aiohttp")
        async with aiohttp.ClientSession(f"{world.server.url}/", json_serialize=dumps) as session:
            async with session.post("/v1/chat/completions", json=CHAT) as response:
                return await response.json()

    assert_recorded(both(AIOHTTP, "fine", scenario))
    # Once in each run.
    assert len(dumped) == 2


def test_bytes_that_stay_packed() -> None:
    async def scenario(world: World) -> Any:
        aiohttp = importlib.import_module("aiohttp")
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            async with session.post(world.url, json=CHAT) as response:
                return len(await response.read())

    step = both(AIOHTTP, Reply("fine", compress="gzip"), scenario).step
    assert step.completion is not None
    assert (step.status, step.completion.content) == ("ok", "fine")


@pytest.mark.parametrize("library", [REQUESTS, AIOHTTP], ids=lambda one: one.name)
def test_keys_are_learned(library: Library) -> None:
    key = "sk-own-8472193-abcdef"
    credentials.forget_all()
    try:

        async def scenario(world: World) -> Any:
            return await read(world, await world.post(headers={"Authorization": f"Bearer {key}"}))

        step = both(library, f"your key is {key}", scenario).step
        assert step.completion is not None
        assert step.completion.content == "your key is [redacted]"
        assert key.encode() not in (step.response_bytes or b"")
    finally:
        credentials.forget_all()


class Misled(ScriptedServer):
    """Sends every request on to an address that is none, with the query of its own."""

    def answer(self, record: RequestRecord) -> Response:
        """The redirect."""
        key = record.query.partition("=")[2] or record.headers.get("x-api-key", "")
        return Response(307, (("location", f"http://[none?key={key}"),), [])


@pytest.mark.parametrize("library", [REQUESTS, AIOHTTP], ids=lambda one: one.name)
@pytest.mark.parametrize("place", ["query", "header"])
def test_keys_in_the_text_of_an_exception(library: Library, place: str) -> None:
    """Also of one that has no request, by which its key would be known."""
    key = "sk-own-8472193-abcdef"
    credentials.forget_all()
    try:

        async def scenario(world: World) -> Any:
            if place == "query":
                return await world.post(f"{world.url}?key={key}")
            return await world.post(headers={"x-api-key": key})

        step = both(library, "fine", scenario, raises=True, server=Misled).step
        assert step.error is not None
        assert key not in repr(step)
    finally:
        credentials.forget_all()


# Whole processes.


@each_library
def test_with_instrument(library: Library) -> None:
    async def agents(server: ScriptedServer) -> list[rt.Trajectory]:
        async def agent(number: int) -> rt.Trajectory:
            with rt.trajectory(str(number)) as trajectory:
                world = World(library, server)
                world.session = library.session()
                for turn in range(2):
                    sent = {**CHAT, "messages": [{"role": "user", "content": f"{number}.{turn}"}]}
                    await read(world, await world.post(streamed=True, json={**sent, "stream": turn == 1}))
                await _close(world)
            return trajectory

        if library.kind == "sync":
            return [await agent(number) for number in range(6)]
        return list(await asyncio.gather(*(agent(number) for number in range(6))))

    with ScriptedServer(lambda request: "to " + request["messages"][0]["content"]) as server, rt.instrument():
        trajectories = drive(library.kind, agents(server))
    assert len(server.requests) == 12
    for number, trajectory in enumerate(trajectories):
        texts = [step.completion and step.completion.content for step in trajectory.steps]
        assert texts == [f"to {number}.0", f"to {number}.1"]
        assert all(step.completion_token_ids is not None for step in trajectory.steps)


async def _close(world: World) -> None:
    is_async_httpx = world.library.module.startswith("httpx") and world.library.kind == "async"
    await done(world.session.aclose() if is_async_httpx else world.session.close())


def test_a_library_over_another_one() -> None:
    """httpx over a transport of aiohttp, as litellm has it: recorded once."""
    httpx, aiohttp = importlib.import_module("httpx"), importlib.import_module("aiohttp")

    class Transport(httpx.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            async with aiohttp.ClientSession() as session:
                headers = {"content-type": "application/json"}
                async with session.post(str(request.url), data=request.content, headers=headers) as response:
                    return httpx.Response(response.status, headers=response.headers, content=await response.read())

    async def call(url: str) -> Any:
        async with httpx.AsyncClient(transport=Transport()) as client:
            return (await client.post(url, json=CHAT)).status_code

    before = rt.stats().calls
    with ScriptedServer("fine") as server, rt.instrument(), rt.trajectory() as trajectory:
        assert asyncio.run(call(f"{server.base_url}/chat/completions")) == 200
    (step,) = trajectory.steps
    assert (step.status, rt.stats().calls - before) == ("ok", 1)
