"""What a worker does to find out what its peer keeps: calls to a scripted server, one scenario at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from benchmarks.peers.adapters.base import Adapter

READ = 4
"""Chunks that are read of a stream before it is closed."""


class Prober:
    """Calls through an adapter's client."""

    def __init__(self, adapter: Adapter, base_url: str) -> None:
        self.adapter = adapter
        self._arguments = {"base_url": base_url, "api_key": "-"}
        self.client = self.made(openai.OpenAI)

    def made(self, kind: Any, retries: int = 0) -> Any:
        """A client through the adapter."""
        return self.adapter.wrap(kind(max_retries=retries, **self._arguments))

    def asked(self, content: str, **more: Any) -> dict[str, Any]:
        """Arguments of a call."""
        messages = [{"role": "user", "content": content}]
        asked = {"model": "scripted", "messages": messages, "logprobs": True, **more}
        if more.get("stream"):
            asked["stream_options"] = {"include_usage": True}
        return {**asked, "extra_body": {"return_token_ids": True}}

    def call(self, content: str, **more: Any) -> Any:
        """One call."""
        return self.client.chat.completions.create(**self.asked(content, **more))


def probe(adapter: Adapter, scenario: str, base_url: str) -> dict[str, Any]:
    """The records of a scenario's calls, and the exception that the caller got."""
    adapter.flush()
    adapter.clear()
    raised = None
    try:
        SCENARIOS[scenario](Prober(adapter, base_url))
    except openai.OpenAIError as error:
        raised = type(error).__name__
    except Exception as error:  # what httpx raises for a broken connection differs by version
        raised = f"{type(error).__module__}.{type(error).__name__}"
    adapter.flush()
    found = [record.to_json() for record in adapter.records()]
    adapter.clear()
    return {"records": found, "raised": raised}


def _unary(prober: Prober) -> None:
    with prober.adapter.trace("unary"):
        prober.call("unary call")


def _stream(prober: Prober) -> None:
    with prober.adapter.trace("stream"):
        for _ in prober.call("streamed call", stream=True):
            pass


def _closed(prober: Prober) -> None:
    with prober.adapter.trace("closed"):
        stream = prober.call("closed call", stream=True)
        for _ in range(READ):
            next(stream)
        stream.close()


def _retry(prober: Prober) -> None:
    prober.client = prober.made(openai.OpenAI, retries=1)
    with prober.adapter.trace("retry"):
        prober.call("retried call")


def _thread(prober: Prober) -> None:
    with prober.adapter.trace("thread"):
        thread = threading.Thread(target=prober.call, args=["call of a thread"])
        thread.start()
        thread.join()


def _pool(prober: Prober) -> None:
    with prober.adapter.trace("pool"), ThreadPoolExecutor(2) as pool:
        list(pool.map(prober.call, [f"call {number} of a pool" for number in range(4)]))


def _late(prober: Prober) -> None:
    with prober.adapter.trace("late"):
        stream = prober.call("late call", stream=True)
    for _ in stream:
        pass


def _choices(prober: Prober) -> None:
    with prober.adapter.trace("choices"):
        prober.call("call for two", n=2)


def _changed(prober: Prober) -> None:
    asked = prober.asked("ORIGINAL-CONTENT")
    with prober.adapter.trace("changed"):
        prober.client.chat.completions.create(**asked)
        asked["messages"][0]["content"] = "CHANGED-CONTENT"


def _tasks(prober: Prober) -> None:
    async def agent(name: str, client: Any) -> None:
        with prober.adapter.trace(name):
            for number in range(2):
                await client.chat.completions.create(**prober.asked(f"{number} of {name}"))

    async def both() -> None:
        client = prober.made(openai.AsyncOpenAI)
        await asyncio.gather(agent("agent-A", client), agent("agent-B", client))
        await client.close()

    asyncio.run(both())


SCENARIOS: dict[str, Callable[[Prober], None]] = {
    "unary": _unary,
    "stream": _stream,
    "cut": _stream,
    "closed": _closed,
    "error": _unary,
    "retry": _retry,
    "thread": _thread,
    "pool": _pool,
    "late": _late,
    "choices": _choices,
    "changed": _changed,
    "tasks": _tasks,
    "extras": _unary,
}
