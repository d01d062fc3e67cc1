"""What ``rt.instrument()`` adds: to a call beside a wrapped client, to a request that is no call, to start and undo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2

import rollout_trace as rt
from benchmarks import payloads
from benchmarks.clients import ensure_recorded, sync_client
from benchmarks.payloads import Exchange, ask
from benchmarks.report import Effort, Row, at_most, differences, ratios
from benchmarks.timing import settle
from rollout_trace.clients.aiohttp import recorded_request as recorded_aiohttp
from rollout_trace.clients.httpx import recorded_send, recorded_send_async
from rollout_trace.clients.requests import recorded_send as recorded_requests
from rollout_trace.process.options import HTTP

URL = "http://server/v1/embeddings"


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    for exchange, times in ((payloads.small(), 60), (payloads.large(), 24), (payloads.stream(), 10)):
        yield _beside_wrapped(exchange, effort.repeat(30), effort.times(times))
    yield from _other_requests(effort)
    yield _start_and_undo(effort)
    ensure_recorded()


def _beside_wrapped(exchange: Exchange, rounds: int, times: int) -> Row:
    """A client of an instrumented process, and one that is wrapped in a process that is not."""
    wrapped = rt.wrap_openai(sync_client(_forever(exchange)))
    plain = sync_client(_forever(exchange))
    seconds: dict[str, list[float]] = {"wrapped": [], "instrumented": []}

    def measure(name: str, client: Any) -> None:
        with rt.trajectory():
            began = time.thread_time()
            for _ in range(times):
                ask(client, exchange)
            seconds[name].append((time.thread_time() - began) / times)

    settle()
    for number in range(rounds + 1):
        for name in ("wrapped", "instrumented")[:: 1 if number % 2 else -1]:
            if name == "wrapped":
                measure(name, wrapped)
            else:
                with rt.instrument():
                    measure(name, plain)
    for values in seconds.values():
        del values[0]
    with_it, without = seconds["instrumented"], seconds["wrapped"]
    micro = [[each * 1e6 for each in values] for values in (with_it, without)]
    more = f"+{differences(*micro).show('.1f')} µs"
    what = f"{exchange.name}, instrumented against wrapped, CPU of the calling thread"
    return at_most(what, ratios(with_it, without), 1.01, form=".3f", unit="×", more=more)


def _forever(exchange: Exchange) -> Iterator[Exchange]:
    while True:
        yield exchange


def _other_requests(effort: Effort) -> Iterator[Row]:
    """What stands in the place of each library's function, around one that does nothing, and that one alone."""
    times = effort.times(20000)

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    async def nothing_async(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    import requests

    get, post = httpx.Request("GET", URL), httpx.Request("POST", URL, json={"input": "a"})
    prepared = requests.Request("POST", URL, json={"input": "a"}).prepare()
    sync = SimpleNamespace(send=nothing)
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
        "httpx, GET": (recorded_send(sync, HTTP), nothing, (get,), {}),
        "httpx, POST": (recorded_send(sync, HTTP), nothing, (post,), {}),
        "httpx2, POST": (recorded_send(sync, HTTP), nothing, (httpx2.Request("POST", URL, json={"input": "a"}),), {}),
        "requests, POST": (recorded_requests(sync, HTTP), nothing, (prepared,), {}),
        "httpx, async POST": (
            recorded_send_async(SimpleNamespace(send=nothing_async), HTTP),
            nothing_async,
            (post,),
            {},
        ),
        "aiohttp, POST": (
            recorded_aiohttp(SimpleNamespace(_request=nothing_async), HTTP),
            nothing_async,
            ("POST", URL),
            {"json": {"input": "a"}},
        ),
    }
    with rt.instrument():
        for name, (recorded, bare, args, kwargs) in cases.items():
            rounds = effort.repeat(15)
            is_async = bare is nothing_async
            timed = [_timed(one, args, kwargs, times, rounds, is_async=is_async) for one in (recorded, bare)]
            micro = [[each * 1e6 for each in values] for values in timed]
            yield at_most(f"{name} that is no model call", differences(*micro), 2.0, form=".2f", unit=" µs")


def _timed(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    times: int,
    rounds: int,
    *,
    is_async: bool,
) -> list[float]:
    async def in_loop() -> None:
        for _ in range(times):
            await function(None, *args, **kwargs)

    found = []
    for _ in range(rounds):
        began = time.thread_time()
        if is_async:
            asyncio.run(in_loop())
        else:
            for _ in range(times):
                function(None, *args, **kwargs)
        found.append((time.thread_time() - began) / times)
    return found


def _start_and_undo(effort: Effort) -> Row:
    seconds = []
    for _ in range(effort.repeat(200)):
        began = time.thread_time()
        rt.instrument().undo()
        seconds.append((time.thread_time() - began) * 1e6)
    return at_most("rt.instrument() and undo", differences(seconds, [0.0] * len(seconds)), None, form=".0f", unit=" µs")
