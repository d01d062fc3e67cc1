"""Runs one scenario on a bare client and on a wrapped one, and checks that nobody can tell them apart.

As the harness of the openai tests does, for clients of the anthropic SDK.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import anthropic

import rollout_trace as rt
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests.clients.either import Kind, done, drive, each, shown

from .oracle import assert_said

Scenario: TypeAlias = Callable[["World"], Coroutine[Any, Any, Any]]
Wrap: TypeAlias = Callable[[Any], Any]

VERSION = tuple(int(part) for part in anthropic.__version__.split(".")[:2])
ASK: dict[str, Any] = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, Any] = {**ASK, "stream": True}


class World:
    """What a scenario sees: a server, clients for it, and the wrapping (which does nothing in the bare run)."""

    def __init__(self, kind: Kind, server: ScriptedServer, wrap: Wrap, options: Mapping[str, Any]) -> None:
        self.kind = kind
        self.server = server
        self.wrap = wrap
        self._options = options
        self._clients: list[Any] = []
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The client, wrapped."""
        if self._client is None:
            self._client = self.wrap(self.new_client())
        return self._client

    def new_client(self, name: str = "Anthropic", **options: Any) -> Any:
        """Another client of the server, not wrapped; of the async kind where the world is."""
        made = getattr(anthropic, name if self.kind == "sync" else f"Async{name}")
        usual = {"base_url": self.server.url, "api_key": "none", "max_retries": 0, "timeout": 60, **self._options}
        return self.track(made(**{key: value for key, value in {**usual, **options}.items() if value is not None}))

    def track(self, client: Any) -> Any:
        """A client that is to be closed in the end."""
        self._clients.append(client)
        return client

    async def held(self, count: int = 1) -> None:
        """Waits until the server holds a response."""
        if self.kind == "sync":
            self.server.wait_held(count)
        else:
            await asyncio.to_thread(self.server.wait_held, count)

    async def close(self) -> None:
        for client in self._clients:
            await done(client.close())


@dataclass
class Run:
    """What came of a scenario."""

    server: ScriptedServer
    outcome: Any
    trajectory: rt.Trajectory
    stats: rt.Stats

    @property
    def steps(self) -> list[rt.Step]:
        return list(self.trajectory.steps)

    @property
    def step(self) -> rt.Step:
        (step,) = self.trajectory.steps
        return step

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests that generate."""
        return [r for r in self.server.requests if r.method == "POST" and r.path.endswith("/messages")]


def wrapped(client: Any) -> Any:
    """Wraps, with the default settings."""
    return rt.wrap_anthropic(client)


def bare(client: Any) -> Any:
    """Leaves it as it is."""
    return client


def run(
    kind: Kind,
    script: Any,
    scenario: Scenario,
    *,
    wrap: Wrap = wrapped,
    server_class: type[ScriptedServer] = ScriptedServer,
    **options: Any,
) -> Run:
    """Runs a scenario in a trajectory of its own. An exception that leaves it is its outcome."""
    for_server = {name: options.pop(name) for name in ("chunk_tokens", "chunk_bytes") if name in options}
    before = rt.stats()
    with server_class(script, **for_server) as server:
        world = World(kind, server, wrap, options)
        with rt.trajectory("agent") as trajectory:
            outcome = drive(kind, _outcome(world, scenario))
    now = rt.stats()
    counted = {item.name: getattr(now, item.name) - getattr(before, item.name) for item in fields(now)}
    return Run(server, outcome, trajectory, rt.Stats(**counted))


async def _outcome(world: World, scenario: Scenario) -> Any:
    try:
        return ["returned", shown(await scenario(world))]
    except Exception as error:
        return ["raised", shown(error)]
    finally:
        await world.close()


def both(
    kind: Kind,
    script: Any,
    scenario: Scenario,
    *,
    wrap: Wrap = wrapped,
    unreached: int = 0,
    unrecorded: int = 0,
    in_order: bool = True,
    raises: bool = False,
    **options: Any,
) -> Run:
    """Runs a scenario bare and wrapped, and gives the second run after these checks.

    The caller saw the same, the server saw the same bytes on the same connections, and all of it was recorded once.
    `unreached`: attempts that never got to the server. `unrecorded`: requests of clients that were not wrapped.
    `in_order=False`: requests are made at once, so that neither their order nor their connections are fixed.
    `raises`: an exception is what the scenario should end with.
    """
    plain = run(kind, script, scenario, wrap=bare, **options)
    assert plain.outcome[0] == ("raised" if raises else "returned"), plain.outcome
    assert plain.steps == []
    assert plain.stats == rt.Stats()
    ours = run(kind, script, scenario, wrap=wrap, **options)
    assert ours.outcome == plain.outcome
    assert traffic(ours.server, in_order) == traffic(plain.server, in_order)
    if in_order:
        assert [r.connection for r in ours.server.requests] == [r.connection for r in plain.server.requests]
    assert_conserved(ours, unreached=unreached, unrecorded=unrecorded)
    return ours


def traffic(server: ScriptedServer, in_order: bool = True) -> list[Any]:
    """The requests as bytes, save the server's own address."""
    lines = [
        (r.method, r.path, r.query, [item for item in r.headers.items() if item[0] != "host"], r.body)
        for r in server.requests
    ]
    return lines if in_order else sorted(lines, key=repr)


def assert_conserved(ours: Run, *, unreached: int = 0, unrecorded: int = 0) -> None:
    """Every request is an attempt of a step, every call has its step; nothing twice, nothing missing."""
    steps, stats = ours.steps, ours.stats
    attempts = sum(len(step.attempts) for step in steps)
    assert (stats.recorder_errors, stats.orphans) == (0, 0)
    assert stats.calls == len(steps) == len({step.id for step in steps})
    assert stats.attempts == attempts == len(ours.requests) - unrecorded + unreached
    assert [step.index for step in steps] == list(range(len(steps)))
    if unreached == unrecorded == 0:
        recorded = Counter({_asked_step(step): 0 for step in steps})
        for step in steps:
            recorded[_asked_step(step)] += len(step.attempts)
        assert recorded == Counter(_asked_request(record) for record in ours.requests)
    assert_said(steps, ours.requests)


def _asked_step(step: rt.Step) -> str:
    return _canonical({"model": step.model, "messages": step.messages, "tools": step.tools, **(step.sampling or {})})


def _asked_request(record: RequestRecord) -> str:
    body = {"model": None, "tools": None, **record.json}
    body.pop("stream", None)
    system = body.pop("system", None)
    if system is not None:
        body["messages"] = [{"role": "system", "content": system}, *body["messages"]]
    return _canonical(body)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


async def ask(client: Any, **options: Any) -> Any:
    """One unstreamed call."""
    return await done(client.messages.create(**{**ASK, **options}))


async def chunks(stream: Any) -> list[Any]:
    """All events of a stream, as JSON."""
    return [shown(chunk) async for chunk in each(stream)]


async def streamed(client: Any, **options: Any) -> list[Any]:
    """One streamed call, read to its end."""
    return await chunks(await done(client.messages.create(**{**STREAM, **options})))


def seeds(run: Run) -> list[Any]:
    """The number that each call was given, in `metadata.user_id`."""
    return [(step.sampling or {})["metadata"]["user_id"] for step in run.steps]


def numbered(number: int) -> dict[str, Any]:
    """Options that tell a call from others."""
    return {"metadata": {"user_id": str(number)}}
