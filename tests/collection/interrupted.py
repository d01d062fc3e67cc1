"""A program that collects until it is interrupted: ``python -m tests.collection.interrupted KIND ADDRESS OUTPUT``."""

from __future__ import annotations

import asyncio
import sys
import threading

import openai

import rollout_trace as rt

kind, address, output = sys.argv[1:]
running = 0


def waiting() -> None:
    """Prints a line when three rollouts run that end no more by themselves."""
    global running
    running += 1
    if running == 3:
        print("ready", flush=True)


def solve(task: int) -> str:
    with openai.OpenAI(base_url=address, api_key="key") as client:
        messages = [{"role": "user", "content": f"{task}"}]
        answer = client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
    if task > 1 and kind != "finish":
        waiting()
        threading.Event().wait()
    return str(answer.choices[0].message.content)


async def asolve(task: int) -> str:
    async with openai.AsyncOpenAI(base_url=address, api_key="key") as client:
        messages = [{"role": "user", "content": f"{task}"}]
        answer = await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
    if task > 1 and kind != "finish":
        waiting()
        if kind == "stubborn":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    print("cancelled", flush=True)
        await asyncio.Event().wait()
    return str(answer.choices[0].message.content)


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
