"""A program that collects until it is interrupted: ``python -m tests.collection.interrupted KIND ADDRESS OUTPUT``."""

from __future__ import annotations

import asyncio
import sys
import threading

import rollout_trace as rt
from tests.collection.asking import ask, ask_async

kind, address, output = sys.argv[1:]
running = 0


def waiting() -> None:
    """Prints a line when three rollouts run that end no more by themselves."""
    global running
    running += 1
    if running == 3:
        print("ready", flush=True)


def solve(task: int) -> str:
    answer = ask(address, [{"role": "user", "content": f"{task}"}])
    if task > 1 and kind != "finish":
        waiting()
        threading.Event().wait()
    return answer


async def asolve(task: int) -> str:
    answer = await ask_async(address, [{"role": "user", "content": f"{task}"}])
    if task > 1 and kind != "finish":
        waiting()
        if kind == "stubborn":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    print("cancelled", flush=True)
        await asyncio.Event().wait()
    return answer


if __name__ == "__main__":
    rt.collect(
        solve if kind in ("sync", "finish") else asolve,
        range(8),
        output=output,
        concurrency=3,
        engine="vllm",
        name="solve",
        progress=None,
    )
    print("ended", flush=True)
