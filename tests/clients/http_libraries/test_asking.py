"""Fields that are added for an engine: before the last brace, never to what is signed, and taken back when refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rollout_trace.clients import ask
from rollout_trace.clients.loopback.messages import Response
from rollout_trace.record.settings import Settings
from rollout_trace.testing import RequestRecord, ScriptedServer
from rollout_trace.wire.engine import Engine, resolve
from rollout_trace.wire.protocols import protocol_of_path
from tests.clients.either import done

from .harness import AIOHTTP, LIBRARIES, REQUESTS, Library, Run, World, run, settings_for
from .test_ends import closed, pieces

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
PLAIN: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ADDED = b',"logprobs":true,"return_token_ids":true,"return_weight_versions":true}'
STREAMED = ADDED[:-1] + b',"stream_options":{"include_usage":true}}'
ODD = b' {"model": "m", "temperature": 1e-1, "messages": [{"role":"user","content":"\\u00e9 \xc3\xa9"}] \n} '
"""A body that is another one once it has been read and written again."""


@pytest.fixture(autouse=True)
def _no_refusals() -> Iterator[None]:
    ask._refusals.clear()
    yield
    ask._refusals.clear()


def asked(library: Library, scenario: Any, settings: Settings | None = None, **options: Any) -> Run:
    """A run that asks for vLLM's fields; nothing of the recorder failed."""
    ours = run(library, "fine", scenario, settings or settings_for("vllm"), **options)
    assert (ours.outcome[0], ours.stats.recorder_errors) == ("returned", 0), ours.outcome
    return ours


async def read(world: World, response: Any) -> bytes:
    """The whole body."""
    values = pieces(world.library, response)
    found = [one async for one in values] if hasattr(values, "__aiter__") else [*values]
    await closed(world.library, response)
    return b"".join(found)


@each_library
@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_a_caller_who_did_not_ask(library: Library, stream: bool) -> None:
    async def scenario(world: World) -> Any:
        return await read(world, await world.post(streamed=True, json={**PLAIN, "stream": stream}))

    ours = asked(library, scenario)
    step = ours.step
    assert (step.status, step.engine, step.token_issue) == ("ok", "vllm", None)
    assert step.completion_token_ids is not None
    assert step.request_bytes == ours.request.body
    assert ours.request.body.endswith(STREAMED if stream else ADDED)
    assert ours.request.headers["content-type"] == "application/json"
    assert ours.request.headers["content-length"] == str(len(ours.request.body))


@each_library
@pytest.mark.parametrize("as_text", [False, True])
def test_every_other_byte_stays(library: Library, as_text: bool) -> None:
    body: Any = ODD.decode() if as_text else ODD
    name = "content" if library.module.startswith("httpx") else "data"
    # Of requests a text is Latin-1 on the wire, or UTF-8: that depends on its release.
    if as_text and library is REQUESTS:
        return

    async def scenario(world: World) -> Any:
        headers = {"content-type": "application/json", "x-own": "1"}
        response = await world.post(streamed=True, headers=headers, **{name: body})
        return await read(world, response)

    ours = asked(library, scenario)
    end = ODD.rstrip()
    assert ours.request.body == end[:-1] + ADDED + b" "
    assert ours.request.headers["x-own"] == "1"
    assert ours.request.headers["content-type"] == "application/json"
    assert ours.step.completion_token_ids is not None


def test_a_length_that_the_caller_set() -> None:
    async def scenario(world: World) -> Any:
        headers = {"Content-Length": str(len(ODD)), "Content-Type": "application/json"}
        return await read(world, await world.post(data=ODD, headers=headers))

    assert asked(AIOHTTP, scenario).step.completion_token_ids is not None
    assert asked(REQUESTS, scenario).step.completion_token_ids is not None


@each_library
@pytest.mark.parametrize(
    "header",
    [
        ("content-md5", "x"),
        ("x-amz-content-sha256", "x"),
        ("digest", "x"),
        ("authorization", "AWS4-HMAC-SHA256 Credential=x"),
    ],
    ids=lambda one: one[0],
)
def test_what_is_signed_stays(library: Library, header: tuple[str, str]) -> None:
    name = "content" if library.module.startswith("httpx") else "data"

    async def scenario(world: World) -> Any:
        options: dict[str, Any] = {name: ODD, "headers": dict([header])}
        response = await world.post(streamed=True, **options)
        return await read(world, response)

    ours = asked(library, scenario)
    assert ours.request.body == ODD
    assert ours.step.request_bytes == ODD
    assert ours.step.status == "ok"


class Refusing(ScriptedServer):
    """A server without `return_token_ids`."""

    def answer(self, record: RequestRecord) -> Response:
        """As `ScriptedServer`, unless the field is there."""
        if "return_token_ids" in (record.json or {}):
            message = "Unrecognized request argument supplied: return_token_ids"
            body = json.dumps({"error": {"message": message, "param": "return_token_ids", "code": 400}}).encode()
            return Response(400, (("content-type", "application/json"),), [body])
        return super().answer(record)


@each_library
def test_a_field_that_is_refused(library: Library) -> None:
    async def scenario(world: World) -> Any:
        found = [await read(world, await world.post(streamed=True, json=PLAIN)) for _ in range(2)]
        return [b'"content":"fine"' in one for one in found]

    ours = asked(library, scenario, server=Refusing)
    assert ours.outcome[1] == [True, True]
    first, second = ours.steps
    assert [one.status for one in first.attempts] == [400, 200]
    assert [one.status for one in second.attempts] == [200]
    assert [record.status for record in ours.server.requests] == [400, 200, 200]
    assert first.token_issue is not None
    assert "return_token_ids" in first.token_issue.message


@each_library
def test_an_error_about_something_else(library: Library) -> None:
    """The caller reads it as if nobody had, by any way to read, once the request went out as it was made."""

    class Broken(ScriptedServer):
        def answer(self, record: RequestRecord) -> Response:
            return Response(400, (("content-type", "application/json"),), [b'{"error": "no such model"}'])

    async def scenario(world: World) -> Any:
        response = await world.post(streamed=True, json=PLAIN)
        return await read(world, response)

    ours = asked(library, scenario, server=Broken)
    assert ours.outcome[1] == b'{"error": "no such model"}'
    assert ours.step.error is not None
    assert (ours.step.status, ours.step.error.message) == ("error", "no such model")
    asked_in_full, bare = (record.json for record in ours.server.requests)
    assert bare == PLAIN != asked_in_full


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("library", [REQUESTS, AIOHTTP], ids=lambda one: one.name)
def test_alternatives_are_not_asked_of_streams(library: Library, stream: bool) -> None:
    """vLLM refuses too many inside a stream, which its caller would get."""
    profile, wishes = resolve(Engine("vllm", top_logprobs=5))
    settings = Settings(protocol_of_path, profile, True, wishes=wishes, is_http=True, is_guess=True)

    async def scenario(world: World) -> Any:
        return await read(world, await world.post(streamed=True, json={**PLAIN, "stream": stream}))

    ours = asked(library, scenario, settings)
    assert ours.request.json.get("top_logprobs") == (None if stream else 5)
    assert ours.step.completion_token_ids is not None
    assert ours.step.logprobs is not None


@each_library
def test_nothing_is_asked_of_other_requests(library: Library) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(f"{world.server.base_url}/embeddings", json={"model": "m", "input": "hi"})
        return await done(response.status_code if hasattr(response, "status_code") else response.release())

    ours = asked(library, scenario)
    assert (ours.steps, ours.stats.calls) == ([], 0)
    assert json.loads(ours.request.body) == {"model": "m", "input": "hi"}


class HeldRefusal(ScriptedServer):
    """Sends the beginning of an error, and the rest when it is released."""

    def answer(self, record: RequestRecord) -> Response:
        """The error, which holds."""
        return Response(400, parts=[b"{", self._holds.hold, b"}"], chunked=True)


def test_a_refusal_that_is_read_when_the_caller_is_cancelled() -> None:
    """Its connection is free again at once: the caller has no response that could be closed."""

    async def scenario(world: World) -> Any:
        import aiohttp

        has_begun = asyncio.Event()

        async def begun(*_: Any) -> None:
            has_begun.set()

        tracing = aiohttp.TraceConfig()
        tracing.on_request_end.append(begun)
        async with aiohttp.ClientSession(trace_configs=[tracing]) as session:
            task = asyncio.ensure_future(session.post(world.url, json=PLAIN))
            await has_begun.wait()
            await world.held()
            task.cancel()
            await asyncio.wait([task])
            taken = len(session.connector._acquired) if session.connector is not None else None
            world.server.release()
            return task.cancelled(), taken

    ours = run(AIOHTTP, "x", scenario, settings_for("vllm"), server=HeldRefusal)
    assert ours.outcome == ["returned", [True, 0]]
    assert ours.step.status == "cancelled"
