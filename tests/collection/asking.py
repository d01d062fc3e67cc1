"""Asks a model without an SDK, whose import takes a process longer than all else that an agent of a test does."""

from __future__ import annotations

from typing import Any

import httpx2


def ask(address: str, messages: list[Any], **fields: Any) -> str:
    """The text of the answer."""
    with httpx2.Client(base_url=address) as client:
        return _text(client.post("chat/completions", json={"model": "m", "messages": messages, **fields}))


async def ask_async(address: str, messages: list[Any], **fields: Any) -> str:
    """The same in an event loop."""
    async with httpx2.AsyncClient(base_url=address) as client:
        return _text(await client.post("chat/completions", json={"model": "m", "messages": messages, **fields}))


def _text(answer: httpx2.Response) -> str:
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])
