"""Runs one scenario on a bare client and on a wrapped one, and checks that nobody can tell them apart.

A scenario is a coroutine function that works for both kinds of client, with the help of `either`. What differs from SDK
to SDK is in an `Sdk`, of which each folder of client tests has one.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import rollout_trace as rt
from rollout_trace.record.recording import current_recording
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests.amount import some

from .clients.either import Kind, done, drive, each, shown

Scenario: TypeAlias = Callable[[Any], Coroutine[Any, Any, Any]]
Wrap: TypeAlias = Callable[[Any], Any]

_OF_THE_SERVER = ("chunk_tokens", "chunk_bytes", "seed")


class World:
    """What a scenario sees: a server, clients for it, and the wrapping (which does nothing in the bare run)."""

    def __init__(self, kind: Kind, server: ScriptedServer, wrap: Wrap, options: Mapping[str, Any]) -> None:
        self.kind = kind
        self.server = server
        self.wrap = wrap
        self._usual = {"max_retries": 0, "timeout": 60, **options}
        self._clients: list[Any] = []
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The client, wrapped."""
        if self._client is None:
            self._client = self.wrap(self.new_client())
        return self._client

    def new_client(self, **options: Any) -> Any:
        """Another client of the server, not wrapped; each SDK's own."""
        raise NotImplementedError

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


class Recorded:
    """How the clients of a scenario are recorded: each by its wrapper, or all by ``rt.instrument()``."""

    by: ClassVar[Literal["wrapper", "instrument"]] = "wrapper"


def parametrize(metafunc: Any, modules: set[str], of_wrappers: set[str]) -> None:
    """Has the tests of these modules run for both, save those of wrappers alone: the second in `make test-all`."""
    if metafunc.module.__name__.rpartition(".")[2] in modules and metafunc.function.__name__ not in of_wrappers:
        metafunc.parametrize("_recorded_by", some(["wrapper", "instrument"], "wrapper"), indirect=True)


def _left_alone(client: Any) -> Any:
    return client


class Nowhere:
    """The target of a recording that keeps nothing."""

    def write(self, trajectory: rt.Trajectory) -> None:
        """Does nothing."""


@dataclass
class Run:
    """What came of a scenario."""

    server: ScriptedServer
    outcome: Any
    trajectory: rt.Trajectory
    stats: rt.Stats
    requests: list[RequestRecord]
    """Those that generate."""

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


@dataclass(frozen=True)
class Sdk:
    """One SDK: its clients, how they are wrapped, and how its requests and steps are compared."""

    world: Callable[[Kind, ScriptedServer, Wrap, Mapping[str, Any]], World]
    wrap: Wrap
    generates: tuple[str, ...]
    """Ends of the paths of requests that generate."""
    asked_by_step: Callable[[rt.Step], Any]
    asked_by_request: Callable[[RequestRecord], Any]
    """What was asked: equal for a step and the requests of its attempts."""
    assert_answered: Callable[[Sequence[rt.Step], Sequence[RequestRecord]], None]
    """Every whole step holds what the server answered."""

    def generating(self, server: ScriptedServer) -> list[RequestRecord]:
        """The requests that generate."""
        return [r for r in server.requests if r.method == "POST" and r.path.endswith(self.generates)]

    def run(
        self,
        kind: Kind,
        script: Any,
        scenario: Scenario,
        *,
        wrap: Wrap | None = None,
        server_class: type[ScriptedServer] = ScriptedServer,
        **options: Any,
    ) -> Run:
        """Runs a scenario in a trajectory of its own. An exception that leaves it is its outcome.

        Options that the server has (`chunk_tokens`, ...) go to it, others to the clients.
        """
        for_server = {name: options.pop(name) for name in _OF_THE_SERVER if name in options}
        before = rt.stats()
        process: Any = nullcontext()
        if wrap is not bare and Recorded.by == "instrument":
            # In the place of the usual wrapper; a scenario's own stays, and its clients are recorded once.
            process, wrap = rt.instrument(), wrap if wrap not in (None, self.wrap) else _left_alone
        with server_class(script, **for_server) as server:
            world = self.world(kind, server, wrap or self.wrap, options)
            # The end of the recording ends the calls whose streams nobody has closed.
            ending = nullcontext() if wrap is bare or current_recording() else rt.recording(Nowhere())
            with process, ending, rt.trajectory("agent") as trajectory:
                outcome = drive(kind, _outcome(world, scenario))
        return Run(server, outcome, trajectory, since(before), self.generating(server))

    def both(
        self,
        kind: Kind,
        script: Any,
        scenario: Scenario,
        *,
        wrap: Wrap | None = None,
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
        plain = self.run(kind, script, scenario, wrap=bare, **options)
        assert plain.outcome[0] == ("raised" if raises else "returned"), plain.outcome
        assert plain.steps == []
        assert plain.stats == rt.Stats()
        ours = self.run(kind, script, scenario, wrap=wrap, **options)
        assert ours.outcome == plain.outcome
        assert traffic(ours.server, in_order) == traffic(plain.server, in_order)
        if in_order:
            assert [r.connection for r in ours.server.requests] == [r.connection for r in plain.server.requests]
        # An instrumented process has no client that is not recorded.
        unrecorded = unrecorded if Recorded.by == "wrapper" else 0
        self.assert_conserved(ours, unreached=unreached, unrecorded=unrecorded)
        return ours

    def inside(self, kind: Kind, script: Any, scenario: Scenario) -> Run:
        """The same for a scenario that opens its own trajectories, which it has to check itself."""
        plain, ours = self.run(kind, script, scenario, wrap=bare), self.run(kind, script, scenario)
        assert ours.outcome == plain.outcome
        assert traffic(ours.server) == traffic(plain.server)
        assert ours.stats.attempts == len(ours.requests)
        assert (plain.stats, ours.stats.recorder_errors, ours.stats.orphans) == (rt.Stats(), 0, 0)
        return ours

    def assert_conserved(self, ours: Run, *, unreached: int = 0, unrecorded: int = 0) -> None:
        """Every request is an attempt of a step, every call has its steps; nothing twice, nothing missing."""
        calls, stats = ours.calls, ours.stats
        attempts = sum(len(steps[0].attempts) for steps in calls.values())
        assert (stats.recorder_errors, stats.orphans) == (0, 0)
        assert stats.calls == len(calls)
        assert stats.attempts == attempts == len(ours.requests) - unrecorded + unreached
        assert len({step.id for step in ours.steps}) == len(ours.steps)
        assert [step.index for step in ours.steps] == list(range(len(ours.steps)))
        for steps in calls.values():
            assert [step.choice for step in steps] == list(range(len(steps)))
            assert all(step.attempts == steps[0].attempts for step in steps)
        if unreached == unrecorded == 0:
            recorded: Counter[str] = Counter()
            for steps in calls.values():
                recorded[_canonical(self.asked_by_step(steps[0]))] += len(steps[0].attempts)
            assert +recorded == Counter(_canonical(self.asked_by_request(record)) for record in ours.requests)
        self.assert_answered(ours.steps, ours.requests)


async def _outcome(world: World, scenario: Scenario) -> Any:
    try:
        return ["returned", shown(await scenario(world))]
    except Exception as error:
        return ["raised", shown(error)]
    finally:
        await world.close()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def bare(client: Any) -> Any:
    """Leaves a client as it is."""
    return client


def since(before: rt.Stats) -> rt.Stats:
    """What was counted after `before`, save the trajectories that were written: `run` has a recording of its own."""
    now = rt.stats()
    counted = {item.name: getattr(now, item.name) - getattr(before, item.name) for item in fields(now)}
    return rt.Stats(**{**counted, "trajectories_written": 0})


def traffic(server: ScriptedServer, in_order: bool = True) -> list[Any]:
    """The requests as bytes, save the server's own address."""
    lines = [
        (r.method, r.path, r.query, [item for item in r.headers.items() if item[0] != "host"], r.body)
        for r in server.requests
    ]
    return lines if in_order else sorted(lines, key=repr)


async def chunks(stream: Any) -> list[Any]:
    """All chunks or events of a stream, as JSON."""
    return [shown(chunk) async for chunk in each(stream)]
