"""Runs a scenario with each HTTP library, bare and recorded, and checks that nobody can tell the two apart.

A scenario is a coroutine function; with a library that is not asynchronous it runs without an event loop.
"""

from __future__ import annotations

import importlib
import json
import re
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, TypeAlias

import rollout_trace as rt
from rollout_trace.clients import aiohttp as aiohttp_client
from rollout_trace.clients import httpx as httpx_client
from rollout_trace.clients import requests as requests_client
from rollout_trace.process.patches import Patches
from rollout_trace.record.recording import current_recording
from rollout_trace.record.settings import Settings
from rollout_trace.testing import RequestRecord, ScriptedServer
from rollout_trace.wire.profiles import profile
from rollout_trace.wire.protocols import protocol_of_path
from tests.clients.either import Kind, done, drive, kind_of, shown
from tests.sdk_harness import Nowhere, since, traffic

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi é"}],
    "logprobs": True,
    "return_token_ids": True,
}
"""A request for ids, as a caller may send it who knows the engine."""

Scenario: TypeAlias = Callable[["World"], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Library:
    """One HTTP library, in one of its kinds of client."""

    name: str
    kind: Kind
    module: str
    patched: tuple[tuple[str, str, Callable[..., Any]], ...]
    """Class, method, and what makes its replacement."""

    def session(self) -> Any:
        """A new client of the library, with a context manager."""
        module = importlib.import_module(self.module)
        made = {
            "requests": lambda: module.Session(),
            "aiohttp": lambda: module.ClientSession(),
        }
        usual = lambda: module.Client(timeout=60) if self.kind == "sync" else module.AsyncClient(timeout=60)  # noqa: E731
        return made.get(self.module, usual)()

    @contextmanager
    def recorded(self, settings: Settings) -> Iterator[None]:
        """Every client of the library is recorded inside the block."""
        module, patches = importlib.import_module(self.module), Patches()
        before = [vars(getattr(module, owner))[name] for owner, name, _ in self.patched]
        for owner, name, make in self.patched:
            patches.replace(getattr(module, owner), name, partial(_replacement, name, make, settings))
        try:
            yield
        finally:
            patches.undo()
        assert [vars(getattr(module, owner))[name] for owner, name, _ in self.patched] == before


def _replacement(name: str, make: Callable[..., Any], settings: Settings, original: Any) -> Any:
    return make(SimpleNamespace(**{name: original}), settings)


_KINDS: tuple[Kind, ...] = ("sync", "async")


def _httpx(name: str, kind: Kind) -> Library:
    owner = "Client" if kind == "sync" else "AsyncClient"
    make = httpx_client.recorded_send if kind == "sync" else httpx_client.recorded_send_async
    return Library(f"{name}-{kind}", kind, name, ((owner, "send", make),))


REQUESTS = Library("requests", "sync", "requests", (("Session", "send", requests_client.recorded_send),))
AIOHTTP = Library("aiohttp", "async", "aiohttp", (("ClientSession", "_request", aiohttp_client.recorded_request),))
HTTPX = [name for name in ("httpx", "httpx2") if find_spec(name) is not None]
LIBRARIES = [*(_httpx(name, kind) for name in HTTPX for kind in _KINDS), REQUESTS, AIOHTTP]


def settings_for(engine: str | None = None, **options: Any) -> Settings:
    """Those of an instrumented process."""
    engine_profile = None if engine is None else profile(engine)
    guess = {"is_http": True, "is_guess": True}
    return Settings(protocol_of_path, engine_profile, **{"keep_bytes": True, **guess, **options})


class World:
    """What a scenario sees: a server, and a client for it."""

    def __init__(self, library: Library, server: ScriptedServer) -> None:
        self.library = library
        self.server = server
        self.session: Any = None

    @property
    def url(self) -> str:
        """Of chat completions."""
        return f"{self.server.base_url}/chat/completions"

    async def post(self, url: str | None = None, *, streamed: bool = False, **options: Any) -> Any:
        """The response to a request; its body is yet to be read where `streamed`, or with aiohttp."""
        url = url or self.url
        options = options if {"json", "data", "content"} & options.keys() else {"json": CHAT, **options}
        if self.library.module == "aiohttp":
            # It has `data` for every kind of body.
            named = {"content": "data"}
            return await self.session.post(url, **{named.get(name, name): value for name, value in options.items()})
        if self.library.module == "requests":
            return self.session.post(url, stream=streamed, **options)
        request = self.session.build_request("POST", url, **options)
        return await done(self.session.send(request, stream=streamed))

    async def held(self) -> None:
        """Waits until the server holds a response."""
        import asyncio

        if self.library.kind == "sync":
            self.server.wait_held()
        else:
            await asyncio.to_thread(self.server.wait_held)


@dataclass
class Run:
    """What came of a scenario."""

    server: ScriptedServer
    outcome: Any
    seen: str
    """The outcome as a text, without what differs between two servers."""
    steps: list[rt.Step] = field(default_factory=list)
    stats: rt.Stats = field(default_factory=rt.Stats)

    @property
    def step(self) -> rt.Step:
        (step,) = self.steps
        return step

    @property
    def request(self) -> RequestRecord:
        (record,) = self.server.requests
        return record


def run(
    library: Library, script: Any, scenario: Scenario, settings: Settings | None, *, server: Any = None, **options: Any
) -> Run:
    """Runs a scenario in a trajectory of its own; without settings, bare. What it raises is its outcome."""
    before = rt.stats()
    with (server or ScriptedServer)(script, **options) as running:
        ending = nullcontext() if settings is None or current_recording() else rt.recording(Nowhere())
        patching = nullcontext() if settings is None else library.recorded(settings)
        with patching, ending, rt.trajectory() as trajectory:
            outcome = drive(library.kind, _outcome(World(library, running), scenario))
        port = running.url.rpartition(":")[2]
        # Not the digits alone: they may be those of a logprob.
        seen = re.sub("0x[0-9a-f]+", "ADDRESS", repr(outcome))
        seen = re.sub(rf"(127\.0\.0\.1:|port=|', ){port}\b", r"\1PORT", seen)
    return Run(running, outcome, seen, list(trajectory.steps), since(before))


async def _outcome(world: World, scenario: Scenario) -> Any:
    world.session = world.library.session()
    try:
        return ["returned", shown(await scenario(world))]
    except Exception as error:
        return ["raised", kind_of(error), str(error), kind_of(error.__cause__), error.__suppress_context__]
    finally:
        await done(getattr(world.session, "aclose" if hasattr(world.session, "aclose") else "close")())


def both(
    library: Library,
    script: Any,
    scenario: Scenario,
    *,
    settings: Settings | None = None,
    raises: bool = False,
    **options: Any,
) -> Run:
    """Runs a scenario bare and recorded, and gives the second run.

    Checked: the caller saw the same, the server saw the same bytes on the same connections, nothing of the recorder
    failed.
    """
    plain = run(library, script, scenario, None, **options)
    assert plain.outcome[0] == ("raised" if raises else "returned"), plain.outcome
    assert plain.stats == rt.Stats(), plain.stats
    ours = run(library, script, scenario, settings or settings_for(), **options)
    assert ours.seen == plain.seen, (ours.seen, plain.seen)
    assert traffic(ours.server) == traffic(plain.server), (ours.server.requests, plain.server.requests)
    assert [r.connection for r in ours.server.requests] == [r.connection for r in plain.server.requests]
    assert (ours.stats.recorder_errors, ours.stats.orphans) == (0, 0), ours.stats
    return ours


def assert_recorded(ours: Run, *, compress: str | None = None) -> None:
    """The one step of a run holds the bytes of the one request, and the ids that the server sent."""
    step, record = ours.step, ours.request
    assert step.request_bytes == record.body
    body = record.response_body
    assert step.response_bytes == (zlib.decompress(body, 31) if compress == "gzip" else body), step.response_bytes
    assert (step.status, step.token_issue) == ("ok", None), step
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert [(one.status, one.error) for one in step.attempts] == [(200, None)], step.attempts
    assert step.completion is not None


def body_of(value: dict[str, Any]) -> bytes:
    """A request body as some callers write it, with spaces."""
    return json.dumps(value, indent=1).encode()
