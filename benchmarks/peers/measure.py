"""What is measured inside a worker: blocks of calls, tasks at once, memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import median

from benchmarks import payloads
from benchmarks.payloads import Exchange, arguments, ask
from benchmarks.peers.adapters.base import Adapter
from benchmarks.peers.transport import async_client, sync_client

KINDS = {"small": (payloads.small, 40), "large": (payloads.large, 20), "stream": (payloads.stream, 8)}
"""How an exchange is made, and how many different ones are used in turn."""
TASKS = 64
SETTLED = 0.5
"""Seconds given to threads that the peer's `flush` does not wait for, before memory is read."""


class Calls:
    """Calls of one kind, through the adapter, in this process."""

    def __init__(self, adapter: Adapter, kind: str) -> None:
        make, distinct = KINDS[kind]
        self._adapter = adapter
        self._exchanges = [make(seed) for seed in range(1, distinct + 1)]
        self._turns = cycle(self._exchanges)
        self._next: Exchange = self._exchanges[0]
        self._client = adapter.wrap(sync_client(lambda: self._next))

    def block(self, times: int) -> dict[str, float]:
        """Seconds: medians of the calling thread's CPU and wall time, and the whole process's CPU for each call."""
        cpu, wall = [], []
        gc.collect()
        began_process = time.process_time()
        with self._adapter.trace("bench"):
            for _ in range(times):
                self._next = next(self._turns)
                began, began_cpu = time.perf_counter(), time.thread_time()
                ask(self._client, self._next)
                cpu.append(time.thread_time() - began_cpu)
                wall.append(time.perf_counter() - began)
        self._adapter.flush()
        process = (time.process_time() - began_process) / times
        counted = self._adapter.count()
        self._adapter.clear()
        return {"cpu": median(cpu), "wall": median(wall), "process": process, "counted": counted}


class Crowd:
    """64 agents on one asyncio client, each in a trace of its own."""

    def __init__(self, adapter: Adapter, kind: str) -> None:
        make, distinct = KINDS[kind]
        self._adapter = adapter
        exchanges = [make(seed) for seed in range(1, distinct + 1)]
        self._asked, answers = cycle(exchanges), cycle(exchanges)
        self._client = adapter.wrap(async_client(lambda: next(answers)))
        self._loop = asyncio.new_event_loop()

    def block(self, calls: int) -> dict[str, float]:
        """Calls a second until the last answer, and CPU seconds for each until all are recorded."""
        gc.collect()
        began, began_process = time.perf_counter(), time.process_time()
        self._loop.run_until_complete(self._all(calls))
        seconds = time.perf_counter() - began  # some `flush` wait for the next of their intervals
        self._adapter.flush()
        process = time.process_time() - began_process
        counted = self._adapter.count()
        self._adapter.clear()
        return {"rate": TASKS * calls / seconds, "process": process / (TASKS * calls), "counted": counted}

    async def _all(self, calls: int) -> None:
        with self._adapter.trace("crowd") if self._adapter.one_trace else nullcontext():
            await asyncio.gather(*(self._agent(number, calls) for number in range(TASKS)))

    async def _agent(self, number: int, calls: int) -> None:
        with nullcontext() if self._adapter.one_trace else self._adapter.trace(f"agent-{number}"):
            for _ in range(calls):
                await self._client.chat.completions.create(**arguments(next(self._asked)))


def memory(adapter: Adapter, calls: int) -> dict[str, float]:
    """MB by which the process grows when it keeps so many 63 kB calls, all of them different."""
    exchanges = [payloads.large(seed) for seed in range(1, calls + 1)]
    current = exchanges[0]
    client = adapter.wrap(sync_client(lambda: current))
    with adapter.trace("warm"):
        for _ in range(20):
            ask(client, current)
    adapter.flush()
    adapter.clear()
    before = _resident(adapter)
    with adapter.trace("kept"):
        for exchange in exchanges:
            current = exchange
            ask(client, replace(exchange, messages=json.loads(json.dumps(exchange.messages))))
    adapter.flush()
    return {"grown": (_resident(adapter) - before) / 1e6, "counted": adapter.count()}


def _resident(adapter: Adapter) -> int:
    time.sleep(SETTLED)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
