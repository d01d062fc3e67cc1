"""`acollect` beside the bare agent in an event loop, `rollouts` beside `acollect`, a rollout by itself, and memory.

As a program it runs one workload in a process of its own and prints what it measured:
``python -m benchmarks.collect memory 20000``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import openai

import rollout_trace as rt
from benchmarks import payloads
from benchmarks.clients import async_client
from benchmarks.delayed_server import delayed_server
from benchmarks.payloads import arguments
from benchmarks.report import Effort, Row, at_least, at_most, ratios, spread
from benchmarks.timing import settle

Agent = Callable[[Any], Awaitable[str | None]]
DELAYS = {1: 1.0, 8: 1.0, 64: 1.0, 512: 8.0}
"""Seconds until an answer comes, by rollouts at the same time: a hundred tokens of a server, which is slower for each
where it serves many. With an answer a second the SDK's own client is what 512 agents wait for, recorded or not."""
CALLS = 3
"""Of a rollout."""
MB = 1e6
STEPS = (8_000, 20_000)
"""Rollouts after which memory is looked at, of agents that never wait: by the first so much waits to be written that no
further rollout begins, and memory grows no more."""


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    levels = [8, 64] if effort.quick else list(DELAYS)
    for level in levels:
        with delayed_server(DELAYS[level]) as address:
            # Each takes three answers; several in each place, because a run's begin and end are not what is measured.
            what = f"answers after {DELAYS[level]:g} s"
            yield _calls(address, level, effort.repeat(3), level * (2 if level in (1, 512) else 3), what, 0.97)
    with delayed_server(0) as address:
        for level in levels:
            rollouts = max(level, effort.size(256, 64))
            yield _calls(address, level, effort.repeat(8), rollouts, "at once: the client's CPU is the limit", None)
    yield _streamed(effort)
    yield from _alone(effort)
    if not effort.quick:
        yield _memory()


def agent_of(client: openai.AsyncOpenAI) -> Agent:
    """The agent of both arms: three calls, one after the other."""
    asked = arguments(payloads.small())

    async def agent(task: Any) -> str | None:
        text = None
        for _ in range(CALLS):
            answer = await client.chat.completions.create(**asked)
            text = answer.choices[0].message.content
        return text

    return agent


def _client(address: str) -> openai.AsyncOpenAI:
    limits = openai.DEFAULT_CONNECTION_LIMITS
    limits = type(limits)(max_connections=limits.max_connections, max_keepalive_connections=limits.max_connections)
    http = openai.DefaultAsyncHttpxClient(limits=limits)
    return openai.AsyncOpenAI(base_url=address, api_key="-", max_retries=0, http_client=http)


async def bare(agent: Agent, tasks: list[int], concurrency: int) -> None:
    """What a user writes without us: a semaphore in one event loop."""
    places = asyncio.Semaphore(concurrency)

    async def one(task: int) -> None:
        async with places:
            await agent(task)

    await asyncio.gather(*map(one, tasks))


async def collected(agent: Any, tasks: list[int], concurrency: int) -> rt.CollectSummary:
    """The same with `acollect`, to a new file."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "rollouts.jsonl")
        summary = await rt.acollect(agent, tasks, output=output, concurrency=concurrency, progress=False)
    if summary.by_status != {"completed": len(tasks)}:
        raise RuntimeError(f"what was measured has failed: {summary.by_status}")
    return summary


def _calls(address: str, concurrency: int, rounds: int, rollouts: int, what: str, limit: float | None) -> Row:
    seconds = asyncio.run(_timed(address, concurrency, rounds, rollouts))
    rates = {name: [rollouts * CALLS / each for each in values] for name, values in seconds.items()}
    middle = {name: spread(values).middle for name, values in rates.items()}
    more = f"{middle['collected']:,.1f} calls/s, bare {middle['bare']:,.1f}"
    ratio = ratios(rates["collected"], rates["bare"])
    return at_least(f"{concurrency} at a time, {what}: calls/s", ratio, limit, form=".3f", unit="×", more=more)


async def _timed(address: str, concurrency: int, rounds: int, rollouts: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, in turns; the first round is thrown away."""
    tasks = list(range(rollouts))
    seconds: dict[str, list[float]] = {"bare": [], "collected": []}
    # One client for both: its connections are open then, whichever comes first.
    async with _client(address) as client:
        agent = agent_of(client)
        ways: dict[str, Callable[..., Awaitable[object]]] = {"bare": bare, "collected": collected}
        settle()
        for number in range(rounds + 1):
            for name in sorted(ways, reverse=bool(number % 2)):
                gc.collect()
                began = time.perf_counter()
                await ways[name](agent, tasks, concurrency)
                if number:
                    seconds[name].append(time.perf_counter() - began)
    return seconds


async def streamed(agent: Any, tasks: list[int], concurrency: int) -> None:
    """The same with `rollouts`, to a new file."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "rollouts.jsonl")
        groups = rt.rollouts(agent, tasks, output=output, in_flight=concurrency, progress=False)
        if len([group async for group in groups]) != len(tasks):
            raise RuntimeError("a group is missing")


def _streamed(effort: Effort) -> Row:
    """CPU time of rollouts that make calls, as groups and collected, in turns: of the same agent, in one process."""
    rollouts = effort.size(400, 100)
    spent: dict[str, list[float]] = {"collected": [], "streamed": []}
    ways: dict[str, Callable[..., Awaitable[object]]] = {"collected": collected, "streamed": streamed}

    async def timed(address: str) -> None:
        async with _client(address) as client:
            agent = agent_of(client)
            for number in range(effort.repeat(8) + 1):
                for name in sorted(ways, reverse=bool(number % 2)):
                    gc.collect()
                    began = time.process_time()
                    await ways[name](agent, list(range(rollouts)), 32)
                    if number:
                        spent[name].append(time.process_time() - began)

    with delayed_server(0) as address:
        asyncio.run(timed(address))
    ratio = ratios(spent["collected"], spent["streamed"])
    return at_least("`rollouts` beside `acollect`, by CPU time: calls/s", ratio, 0.98, form=".3f", unit="×")


def _alone(effort: Effort) -> Iterator[Row]:
    """Rollouts of an agent that makes no call: all that is measured is ours."""

    async def idle(task: int) -> str:
        return "done"

    def threaded(task: int) -> str:
        return "done"

    rollouts = effort.size(3_000, 500)
    for what, agent in (("an async agent", idle), ("a sync one, in threads", threaded)):
        wall, cpu = [], []
        for number in range(effort.repeat(5) + 1):
            gc.collect()
            began, cpu_began = time.perf_counter(), time.process_time()
            asyncio.run(collected(agent, list(range(rollouts)), 64))
            if number:
                wall.append((time.perf_counter() - began) / rollouts * 1e3)
                cpu.append((time.process_time() - cpu_began) / rollouts * 1e3)
        more = f"wall {spread(wall).show('.2f')} ms"
        yield at_most(f"a rollout without calls, {what}: CPU", spread(cpu), 1, form=".2f", unit=" ms", more=more)


def _memory() -> Row:
    few, many = (_child(number) for number in STEPS)
    added = (many - few) / (STEPS[1] - STEPS[0])
    more = f"{few / MB:.0f} MB after {STEPS[0]:,}, {many / MB:.0f} MB after {STEPS[1]:,}: {added:.0f} B a rollout"
    return at_most("resident, 20,000 rollouts beside 8,000", spread([many / few]), 1.1, form=".3f", unit="×", more=more)


def _child(rollouts: int) -> float:
    command = [sys.executable, "-m", "benchmarks.collect", "memory", str(rollouts)]
    output = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1]).stdout
    return float(json.loads(output))


# In the child.


def _resident_after(rollouts: int) -> float:
    """Bytes in memory after so many rollouts of one call each."""
    from benchmarks.memory import _resident

    agent = _one_call(async_client(repeat(payloads.small())))
    asyncio.run(collected(agent, list(range(rollouts)), 64))
    return _resident()


def _one_call(client: openai.AsyncOpenAI) -> Agent:
    asked = arguments(payloads.small())

    async def agent(task: Any) -> str | None:
        answer = await client.chat.completions.create(**asked)
        text: str | None = answer.choices[0].message.content
        return text

    return agent


if __name__ == "__main__":
    print(json.dumps(_resident_after(int(sys.argv[2]))))
