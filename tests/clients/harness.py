"""Runs one scenario on a bare client and on a wrapped one, and checks that nobody can tell them apart.

A scenario is a coroutine function that works for both kinds of client, with the help of `either`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import openai

import rollout_trace as rt
from rollout_trace.testing import RequestRecord, ScriptedServer

from .either import Kind, done, drive, each, shown
from .oracle import assert_said

Scenario: TypeAlias = Callable[["World"], Coroutine[Any, Any, Any]]
Wrap: TypeAlias = Callable[[Any], Any]

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
IDS: dict[str, Any] = {**CHAT, "logprobs": True, "extra_body": {"return_token_ids": True}}
STREAM: dict[str, Any] = {**IDS, "stream": True}
GENERATES = ("/chat/completions", "/completions", "/responses")


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

    def new_client(self, kind: Any = None, **options: Any) -> Any:
        """Another client of the server, not wrapped."""
        made = kind or (openai.OpenAI if self.kind == "sync" else openai.AsyncOpenAI)
        address = {} if "azure_endpoint" in options else {"base_url": self.server.base_url}
        usual = {**address, "api_key": "none", "max_retries": 0, "timeout": 60, **self._options}
        return self.track(made(**{**usual, **options}))

    def track(self, client: Any) -> Any:
        """A client that is to be closed in the end."""
        self._clients.append(client)
        return client

    def http_client(self) -> Any:
        """A new HTTP client as the SDK makes it."""
        return openai.DefaultHttpxClient() if self.kind == "sync" else openai.DefaultAsyncHttpxClient()

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
    def calls(self) -> dict[str, list[rt.Step]]:
        grouped: dict[str, list[rt.Step]] = {}
        for step in self.trajectory.steps:
            grouped.setdefault(step.call_id, []).append(step)
        return grouped

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests that generate."""
        return generating(self.server)


def generating(server: ScriptedServer) -> list[RequestRecord]:
    return [record for record in server.requests if record.method == "POST" and record.path.endswith(GENERATES)]


def wrapped(client: Any) -> Any:
    """Wraps, with the default settings."""
    return rt.wrap_openai(client)


def bare(client: Any) -> Any:
    """Leaves it as it is."""
    return client


def run(kind: Kind, script: Any, scenario: Scenario, *, wrap: Wrap = wrapped, **options: Any) -> Run:
    """Runs a scenario in a trajectory of its own. An exception that leaves it is its outcome.

    Options that the server has (`chunk_tokens`, ...) go to it, others to the clients.
    """
    for_server = {name: options.pop(name) for name in ("chunk_tokens", "chunk_bytes", "seed") if name in options}
    before = rt.stats()
    with ScriptedServer(script, **for_server) as server:
        world = World(kind, server, wrap, options)
        with rt.trajectory("agent") as trajectory:
            outcome = drive(kind, _outcome(world, scenario))
    return Run(server, outcome, trajectory, since(before))


def since(before: rt.Stats) -> rt.Stats:
    """What was counted after `before`."""
    now = rt.stats()
    return rt.Stats(**{item.name: getattr(now, item.name) - getattr(before, item.name) for item in fields(now)})


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


def inside(kind: Kind, script: Any, scenario: Scenario) -> Run:
    """The same for a scenario that opens its own trajectories, which it has to check itself."""
    plain, ours = run(kind, script, scenario, wrap=bare), run(kind, script, scenario)
    assert ours.outcome == plain.outcome
    assert traffic(ours.server) == traffic(plain.server)
    assert ours.stats.attempts == len(ours.requests)
    assert (plain.stats, ours.stats.recorder_errors, ours.stats.orphans) == (rt.Stats(), 0, 0)
    return ours


def traffic(server: ScriptedServer, in_order: bool = True) -> list[Any]:
    """The requests as bytes, save the server's own address."""
    lines = [
        (r.method, r.path, r.query, [item for item in r.headers.items() if item[0] != "host"], r.body)
        for r in server.requests
    ]
    return lines if in_order else sorted(lines, key=repr)


def assert_conserved(ours: Run, *, unreached: int = 0, unrecorded: int = 0) -> None:
    """Every request is an attempt of a step, every call has its steps; nothing twice, nothing missing."""
    calls, stats = ours.calls, ours.stats
    attempts = sum(len(steps[0].attempts) for steps in calls.values())
    assert stats.recorder_errors == 0
    assert stats.orphans == 0
    assert stats.calls == len(calls)
    assert stats.attempts == attempts == len(ours.requests) - unrecorded + unreached
    assert len({step.id for step in ours.steps}) == len(ours.steps)
    assert [step.index for step in ours.steps] == list(range(len(ours.steps)))
    for steps in calls.values():
        assert [step.choice for step in steps] == list(range(len(steps)))
        assert all(step.attempts == steps[0].attempts for step in steps)
    recorded = Counter({_asked_step(steps[0]): 0 for steps in calls.values()})
    for steps in calls.values():
        recorded[_asked_step(steps[0])] += len(steps[0].attempts)
    arrived = Counter(_asked_request(record) for record in ours.requests)
    if unreached == unrecorded == 0:
        assert recorded == arrived
    assert_said(ours.steps, ours.requests)


def _asked_step(step: rt.Step) -> str:
    if step.protocol != "openai.chat":
        return str(step.protocol)
    return _canonical({"model": step.model, "messages": step.messages, "tools": step.tools, **(step.sampling or {})})


def _asked_request(record: RequestRecord) -> str:
    if not record.path.endswith("/chat/completions"):
        return f"openai.{record.path.rpartition('/')[2]}"
    body = dict(record.json)
    named = {name: body.pop(name, None) for name in ("model", "messages", "tools")}
    rest = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    return _canonical({**named, **rest})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


async def chat(client: Any, **options: Any) -> Any:
    """One unstreamed call."""
    return await done(client.chat.completions.create(**{**IDS, **options}))


async def chunks(stream: Any) -> list[Any]:
    """All chunks of a stream, as JSON."""
    return [shown(chunk) async for chunk in each(stream)]


async def streamed(client: Any, **options: Any) -> list[Any]:
    """One streamed call, read to its end."""
    return await chunks(await done(client.chat.completions.create(**{**STREAM, **options})))


def parsing(client: Any) -> Any:
    """Where the version at hand has `parse` and `stream`."""
    chat = client.chat.completions
    return chat if hasattr(chat, "parse") else client.beta.chat.completions
