"""How late an event loop runs its callbacks while 64 agents work in it, bare and recorded.

Agents wait for their model as for a real one, so that the loop has time left: in a loop that never waits, a callback is
late by what all others take. Their trajectories end at different moments; each is decoded and written while the others
go on.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import rollout_trace as rt
from benchmarks import payloads
from benchmarks.clients import async_client, ensure_recorded
from benchmarks.payloads import Exchange, arguments
from benchmarks.report import Effort, Row, at_most, differences, spread
from benchmarks.timing import settle

TASKS = 64
TICK = 0.001
"""Seconds that the ticker sleeps: what it sleeps longer is the loop's latency."""


@dataclass(frozen=True, slots=True)
class _Load:
    """What the agents do."""

    name: str
    turns: int
    """Calls of a trajectory."""
    rate: float
    """Calls a second of all agents: where they take more than a third of the time, they wait for one another."""
    exchange: Exchange


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    loads = [
        _Load("small calls, 20 a trajectory", 20, 400, payloads.small()),
        _Load("small calls, 200 a trajectory", 200, 400, payloads.small()),
        _Load("63 kB calls, 20 a trajectory", 20, 25, payloads.large()),
        _Load("63 kB calls, 200 a trajectory", 200, 25, payloads.large()),
    ]
    settle()
    for load in loads:
        yield from _rows(load, seconds=effort.size(4, 1), rounds=effort.repeat(12))
    ensure_recorded()


def _rows(load: _Load, seconds: float, rounds: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        late = _measured(load, seconds, rounds, Path(folder))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        bare, recorded = ([_quantile(each, share) * 1e3 for each in late[arm]] for arm in ("bare", "recorded"))
        more = f"{spread(recorded).show('.2f')} ms, bare {spread(bare).show('.2f')} ms"
        added = differences(recorded, bare)
        yield at_most(f"{load.name}: {name} of the latency, added", added, None, form="+.2f", unit=" ms", more=more)


def _measured(load: _Load, seconds: float, rounds: int, folder: Path) -> dict[str, list[list[float]]]:
    """Seconds that each tick was late, by round; the first round is thrown away."""
    late: dict[str, list[list[float]]] = {"bare": [], "recorded": []}
    names = list(late)
    for number in range(rounds + 1):
        names.reverse()
        for name in names:
            path = folder / f"{number}.jsonl" if name == "recorded" else None
            ticks = asyncio.run(_ticks_beside(load, seconds, path))
            if number:
                late[name].append(ticks)
    return late


async def _ticks_beside(load: _Load, seconds: float, path: Path | None) -> list[float]:
    """How late the loop is while the agents run: in a recording with a journal if there is a path."""
    client = async_client(repeat(load.exchange))
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    if path is None:
        recording: AbstractContextManager[Any] = nullcontext()
    else:
        client, around, recording = rt.wrap_openai(client), rt.trajectory, rt.recording(path)
    with recording:
        agents = [asyncio.ensure_future(_agent(client, load, number, around)) for number in range(TASKS)]
        late = await _ticks(seconds)
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)
    return late


async def _agent(client: Any, load: _Load, number: int, around: Callable[[], AbstractContextManager[Any]]) -> None:
    """Trajectories one after the other; the first is shorter, so that those of all agents end at different moments."""
    waits, asked = random.Random(number), arguments(load.exchange)
    turns = 1 + number * load.turns // TASKS
    while True:
        with around():
            for _ in range(turns):
                await asyncio.sleep(waits.uniform(0.5, 1.5) * TASKS / load.rate)
                await client.chat.completions.create(**asked)
        turns = load.turns


async def _ticks(seconds: float) -> list[float]:
    """Seconds that each tick was late, as far as this process computed meanwhile: other programs do not count."""
    late: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        used = time.process_time()
        await asyncio.sleep(TICK)
        late.append(min(time.perf_counter() - began - TICK, time.process_time() - used))
    return late


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]
