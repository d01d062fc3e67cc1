"""Responses that end otherwise than whole: closed early, cut, cancelled, refused; and what is sent again."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from rollout_trace.testing import Fault, Reply
from tests.clients.either import done

from .harness import AIOHTTP, CHAT, LIBRARIES, REQUESTS, Library, World, assert_recorded, both, run, settings_for

STREAM = {**CHAT, "stream": True}
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
LONG = Reply("a longer answer in many words")


def pieces(library: Library, response: Any) -> Any:
    """The body as an iterator, or asynchronous iterator, of pieces as they arrive."""
    if library.module == "requests":
        return response.iter_content(None)
    if library.module == "aiohttp":
        return response.content.iter_any()
    return response.iter_bytes() if library.kind == "sync" else response.aiter_bytes()


async def next_of(iterator: Any) -> Any:
    """The next piece of either kind of iterator."""
    return await iterator.__anext__() if hasattr(iterator, "__anext__") else next(iterator)


async def closed(library: Library, response: Any) -> None:
    """Closes the response of any library, by the method that is of its kind."""
    is_async_httpx = library.module.startswith("httpx") and library.kind == "async"
    await done(response.aclose() if is_async_httpx else response.close())


@each_library
def test_closed_early(library: Library) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(streamed=True, json=STREAM)
        iterator = pieces(library, response)
        first = await next_of(iterator)
        await world.held()
        await closed(library, response)
        world.server.release()
        return first[:5]

    ours = both(library, Fault(LONG, hold_after=9), scenario)
    step = ours.step
    assert (step.status, step.error) == ("abandoned", None)
    assert ours.request.response_body.startswith(step.response_bytes or b"none")
    assert [one.error for one in step.attempts] == [None]


@each_library
def test_never_read(library: Library) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(streamed=True, json=STREAM)
        await closed(library, response)
        return type(response).__name__

    step = both(library, LONG, scenario).step
    assert (step.status, step.completion, step.response_bytes) == ("abandoned", None, b"")


@each_library
@pytest.mark.parametrize("streamed", [False, True])
def test_the_connection_breaks(library: Library, streamed: bool) -> None:
    async def scenario(world: World) -> Any:
        found, response = [], None
        try:
            response = await world.post(streamed=streamed, json={**CHAT, "stream": streamed})
            async for piece in _each(pieces(library, response)):
                found.append(piece)
        except Exception as error:
            return [type(error).__name__, str(error)[:20]]
        finally:
            if response is not None:
                await closed(library, response)
        return [b"".join(found)]

    step = both(library, Fault(LONG, cut_after=8), scenario).step
    assert step.status == "error"
    assert step.error is not None
    if streamed:
        assert step.completion is not None
        assert step.completion.content
        assert [one.status for one in step.attempts] == [200]


@each_library
def test_no_server(library: Library) -> None:
    async def scenario(world: World) -> Any:
        return await world.post("http://127.0.0.1:9/v1/chat/completions")

    step = both(library, "fine", scenario, raises=True).step
    assert (step.status, step.completion) == ("error", None)
    assert [(one.status, one.error is not None) for one in step.attempts] == [(None, True)]


@each_library
@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_response(library: Library, streamed: bool, status: int) -> None:
    async def scenario(world: World) -> Any:
        response = await world.post(streamed=streamed)
        found = [piece async for piece in _each(pieces(library, response))]
        await closed(library, response)
        return [getattr(response, "status_code", None), b"".join(found)]

    ours = both(library, Fault(status=status), scenario)
    step = ours.step
    assert step.error is not None
    assert (step.status, step.error.status) == ("error", status)
    assert step.error.message == f"the script answers with status {status}"
    assert step.response_bytes == ours.request.response_body


async def _each(values: Any) -> Any:
    if hasattr(values, "__aiter__"):
        async for value in values:
            yield value
    else:
        for value in values:
            yield value


@each_library
@pytest.mark.parametrize("streamed", [False, True])
def test_a_status_that_is_raised(library: Library, streamed: bool) -> None:
    """An error response whose body nobody reads."""

    async def scenario(world: World) -> Any:
        response = await world.post(streamed=streamed)
        try:
            response.raise_for_status()
        finally:
            await closed(library, response)

    step = both(library, Fault(status=503), scenario, raises=True).step
    assert step.error is not None
    assert (step.status, step.error.status) == ("error", 503)


def test_a_session_of_aiohttp_that_raises() -> None:
    async def scenario(world: World) -> Any:
        return await world.post(raise_for_status=True)

    step = both(AIOHTTP, Fault(status=503), scenario, raises=True).step
    assert step.error is not None
    assert (step.status, step.error.status) == ("error", 503)
    assert [one.status for one in step.attempts] == [503]


def test_a_function_that_reads_before_the_caller() -> None:
    async def scenario(world: World) -> Any:
        async def check(response: Any) -> None:
            assert await response.text()

        response = await world.post(raise_for_status=check)
        return [await response.text(), await response.read()]

    step = both(AIOHTTP, "fine", scenario).step
    assert step.completion is not None
    assert (step.status, step.completion.content) == ("ok", "fine")


@each_library
def test_the_same_request_again(library: Library) -> None:
    """Requests with the same bytes, of which the earlier ones failed, are attempts of one call."""

    async def scenario(world: World) -> Any:
        seen = []
        for _ in range(3):
            response = await world.post(streamed=True)
            seen.append(b"".join([piece async for piece in _each(pieces(library, response))]))
            await closed(library, response)
        return seen

    step = both(library, [[Fault(status=500), Fault(status=429), "fine"]] * 3, scenario).step
    assert [one.status for one in step.attempts] == [500, 429, 200]
    assert step.status == "ok"


@pytest.mark.parametrize("library", [one for one in LIBRARIES if one.kind == "async"], ids=lambda one: one.name)
def test_the_same_request_twice_at_once(library: Library) -> None:
    """Neither had failed when the other was sent: they are two calls."""

    async def scenario(world: World) -> Any:
        async def ask() -> Any:
            response = await world.post(streamed=True)
            body = b"".join([piece async for piece in _each(pieces(library, response))])
            await closed(library, response)
            return body

        tasks = [asyncio.ensure_future(ask()) for _ in range(2)]
        await asyncio.to_thread(world.server.wait_held, 2)
        world.server.release()
        return await asyncio.gather(*tasks)

    # Which of them gets which connection is open.
    ours = run(library, Fault(status=500, hold=True), scenario, settings_for())
    assert [[one.status for one in step.attempts] for step in ours.steps] == [[500], [500]]


@pytest.mark.parametrize("library", [one for one in LIBRARIES if one.kind == "async"], ids=lambda one: one.name)
@pytest.mark.parametrize("hold", [{"hold": True}, {"hold_after": 3}], ids=["before", "inside"])
def test_cancelled(library: Library, hold: dict[str, Any]) -> None:
    async def scenario(world: World) -> Any:
        async def read() -> Any:
            response = await world.post(streamed=True, json=STREAM)
            try:
                return [piece async for piece in pieces(library, response)]
            finally:
                await closed(library, response)

        task = asyncio.ensure_future(read())
        await world.held()
        if "hold_after" in hold:
            # What was sent has come, and is read.
            await asyncio.to_thread(lambda: None)
        task.cancel()
        done_, _ = await asyncio.wait([task])
        world.server.release()
        return [one.cancelled() for one in done_]

    step = both(library, Fault(LONG, **hold), scenario).step
    assert step.status == "cancelled"
    assert step.error is not None
    assert step.error.type == "CancelledError"


def test_a_read_of_aiohttp_that_is_tried_again() -> None:
    """A read that was cancelled, and one that was out of time, do not end the response."""

    async def scenario(world: World) -> Any:
        response = await world.post(json=STREAM)
        found = [await response.content.readuntil(b"\n\n") for _ in range(4)]
        await world.held()
        reading = asyncio.ensure_future(response.content.readany())
        while response.content._waiter is None:
            found.append(reading.result() if reading.done() else b"")
            reading = asyncio.ensure_future(response.content.readany()) if reading.done() else reading
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        world.server.release()
        return b"".join([*found, await response.read()])

    assert_recorded(both(AIOHTTP, Fault(LONG, hold_after=9), scenario))


@pytest.mark.parametrize("library", [REQUESTS, AIOHTTP], ids=lambda one: one.name)
def test_a_response_that_is_dropped(library: Library) -> None:
    """Nobody closes it: the garbage collector ends the call."""

    async def scenario(world: World) -> Any:
        response = await world.post(streamed=True, json=STREAM)
        iterator = pieces(library, response)
        first = await next_of(iterator)
        await world.held()
        del iterator, response
        gc.collect()
        world.server.release()
        return first[:5]

    step = both(library, Fault(LONG, hold_after=9), scenario).step
    assert (step.status, step.error) == ("abandoned", None)
    assert step.completion is not None


def test_the_rest_of_a_response_of_requests() -> None:
    """Of a body that is not chunked, the rest can be read after an iterator was left."""

    async def scenario(world: World) -> Any:
        response = world.session.post(world.url, json=CHAT, stream=True)
        iterator = response.iter_content(10)
        first = next(iterator)
        iterator.close()
        return [first, b"".join(response.iter_content(20)), vars(response.raw).get("_rollout_trace_tee")]

    assert_recorded(both(REQUESTS, "fine", scenario))
