"""What recording adds to a call: on the calling thread, among 64 tasks, and to the whole process."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path

import rollout_trace as rt
from benchmarks import payloads
from benchmarks.clients import Caller, async_client, ensure_recorded
from benchmarks.payloads import Exchange, arguments
from benchmarks.report import Effort, Row, at_least, at_most, differences, ratios, spread
from benchmarks.timing import blocks, interleave
from benchmarks.trajectories import SAMPLED, LongAgent

WAITING = 5 * 1024 * 1024
"""Bytes of calls to make before the steady state: more than the recorder lets wait to be decoded."""
TASKS = 64


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    small, large, stream = payloads.small(), payloads.large(), payloads.stream()
    yield from _calling_thread(small, effort, times=150, rounds=24, limit=1.015)
    yield from _calling_thread(large, effort, times=40, rounds=20, limit=1.02)
    yield from _calling_thread(stream, effort, times=16, rounds=20, limit=1.01)
    if not effort.quick:
        yield _steady(small, effort, times=150, rounds=12)
    yield _steady(large, effort, times=40, rounds=12)
    yield _steady(stream, effort, times=16, rounds=12)
    yield from _tasks(small, effort, calls=6, rounds=12, limit=0.80, by_process=0.92)
    yield from _tasks(large, effort, calls=2, rounds=12, limit=0.96)
    yield _whole_process("small call", [payloads.small(seed) for seed in range(200)], effort, 1.08)
    yield _whole_process("63 kB call", [payloads.large(seed) for seed in range(40)], effort, 1.06)
    yield _whole_process("100-chunk stream", [payloads.stream(seed) for seed in range(16)], effort, 1.05)
    turns = _long_agent(effort.size(100, 20))
    yield _whole_process(f"turn of {len(turns)} to {len(turns)},000 tokens", turns, effort, 1.03, rounds=6)
    ensure_recorded()


def _calling_thread(exchange: Exchange, effort: Effort, *, times: int, rounds: int, limit: float) -> Iterator[Row]:
    """Bare, bare once more (what the method itself is off by), and recorded: fewer calls a round than may wait."""
    bare, again, recorded = Caller([exchange]), Caller([exchange]), Caller([exchange], recorded=True)
    actions = {"bare": bare, "again": again, "recorded": recorded}
    found = interleave(actions, rounds=effort.repeat(rounds), times=effort.times(times), around=rt.trajectory)
    off = ratios(found["again"].cpu, found["bare"].cpu)
    for name, budget in (("cpu", limit), ("wall", None)):
        with_it, without = getattr(found["recorded"], name), getattr(found["bare"], name)
        what = f"{exchange.name}, {'CPU of the calling thread' if name == 'cpu' else 'wall'}"
        more = f"{_added(with_it, without)}; bare against bare {off.show('.3f')}×"
        yield at_most(what, ratios(with_it, without), budget, form=".3f", unit="×", more=more)


def _steady(exchange: Exchange, effort: Effort, *, times: int, rounds: int) -> Row:
    """When as much waits as may wait: each call then also decodes one that came before it."""
    bare, recorded = Caller([exchange]), Caller([exchange], recorded=True)
    with rt.trajectory():
        for _ in range(WAITING // len(exchange.body + exchange.request)):
            recorded()
        actions = {"bare": bare, "recorded": recorded}
        found = interleave(actions, rounds=effort.repeat(rounds), times=effort.times(times))
    with_it, without = found["recorded"].cpu, found["bare"].cpu
    what = f"{exchange.name}, CPU of the calling thread, an older call decoded in it"
    return at_most(what, ratios(with_it, without), None, form=".3f", unit="×", more=_added(with_it, without))


def _tasks(
    exchange: Exchange, effort: Effort, *, calls: int, rounds: int, limit: float, by_process: float | None = None
) -> Iterator[Row]:
    """64 agents on one client, each with a trajectory of its own: decoded when it ends, and written to a file.

    By a writer process too, which needs a core of its own.
    """
    seconds = asyncio.run(_timed_crowds(exchange, effort.repeat(rounds), calls))
    rate = {name: [TASKS * calls / each for each in values] for name, values in seconds.items()}
    for name, how, budget in (
        ("kept", "decoded", None),
        ("thread", "decoded and written", limit),
        ("process", "decoded and written by a process", by_process),
    ):
        more = f"{spread(rate[name]).middle:,.0f} calls/s, bare {spread(rate['bare']).middle:,.0f}"
        what = f"{exchange.name}, {TASKS} tasks at once, calls/s, {how}"
        yield at_least(what, ratios(rate[name], rate["bare"]), budget, form=".3f", unit="×", more=more)


async def _timed_crowds(exchange: Exchange, rounds: int, calls: int) -> dict[str, list[float]]:
    recorded = rt.wrap_openai(async_client(repeat(exchange)))
    clients = {"bare": async_client(repeat(exchange)), **dict.fromkeys(("kept", "thread", "process"), recorded)}
    seconds: dict[str, list[float]] = {name: [] for name in clients}

    async def agent(name: str) -> None:
        with nullcontext() if name == "bare" else rt.trajectory():
            for _ in range(calls):
                await clients[name].chat.completions.create(**arguments(exchange))

    names = list(clients)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            names.reverse()
            for name in names:
                path = Path(folder) / "rollouts.jsonl"
                recording = rt.recording(path, writer=name) if name in ("thread", "process") else None  # type: ignore[arg-type]
                async with recording or nullcontext():
                    # The first one has the writer begin.
                    await agent(name)
                    await _written(recording)
                    gc.collect()
                    began = time.perf_counter()
                    await asyncio.gather(*(agent(name) for _ in range(TASKS)))
                    # Until all is in the file: what is written later would be another round's cost.
                    await _written(recording)
                    took = time.perf_counter() - began
                if number:
                    seconds[name].append(took)
    return seconds


async def _written(recording: rt.recording | None) -> None:
    if recording is not None:
        await asyncio.to_thread(recording.flush)


def _long_agent(turns: int) -> list[Exchange]:
    """The turns of an agent, each of which adds a thousand tokens to the prompt of the next."""
    agent = LongAgent(0, read=1000 - SAMPLED)
    return [agent.turn() for _ in range(turns)]


def _whole_process(
    name: str, exchanges: Sequence[Exchange], effort: Effort, limit: float | None, *, rounds: int = 20
) -> Row:
    """CPU of all threads for one trajectory of distinct prompts, from its first call to its line in the file."""
    bare, recorded = Caller(exchanges), Caller(exchanges, recorded=True)
    with tempfile.TemporaryDirectory() as folder:
        actions = {
            "bare": lambda: _many(bare, len(exchanges)),
            "recorded": lambda: _recorded(recorded, len(exchanges), Path(folder) / "rollouts.jsonl"),
        }
        found = blocks(actions, rounds=effort.repeat(rounds), clock=time.process_time)
    calls = len(exchanges)
    with_it, without = ([each / calls for each in found[arm]] for arm in ("recorded", "bare"))
    what = f"{name}, CPU of the whole process, decoded and written"
    return at_most(what, ratios(with_it, without), limit, form=".3f", unit="×", more=_added(with_it, without))


def _recorded(call: Callable[[], None], times: int, path: Path) -> None:
    with rt.recording(path), rt.trajectory():
        _many(call, times)


def _many(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


def _added(with_it: Sequence[float], without: Sequence[float]) -> str:
    micro = [[each * 1e6 for each in values] for values in (with_it, without)]
    return f"+{differences(*micro).show('.0f')} µs on {spread(micro[1]).middle:,.0f}"
