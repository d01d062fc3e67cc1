"""A program that redirects its requests before or after it imports the HTTP libraries, in an interpreter of its own."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from rollout_trace.process.redirect import Redirected, redirect

NAMES = ("httpx", "httpx2", "requests", "aiohttp")
URL = "https://model.invalid/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def with_aiohttp(module: Any) -> int:
    """The status of an answer."""
    async with module.ClientSession() as session, session.post(URL, json=BODY) as response:
        return int(response.status)


def main(when: str, server: str) -> None:
    """Prints each library that got an answer, and that nothing is left."""

    def route(method: str, url: str, body: bytes | None) -> Redirected:
        return Redirected(url.replace("https://model.invalid", server), {})

    if when == "before":
        modules = {name: importlib.import_module(name) for name in NAMES}
    handle = redirect(route)
    if when == "after":
        assert not sys.modules.keys() & {*NAMES}
        modules = {name: importlib.import_module(name) for name in NAMES}
    for name, module in modules.items():
        library: Any = module
        status = asyncio.run(with_aiohttp(module)) if name == "aiohttp" else library.post(URL, json=BODY).status_code
        if status == 200:
            print(name)
    handle.undo()
    httpx: Any = modules["httpx"]
    if not hasattr(httpx.HTTPTransport.handle_request, "__wrapped__"):
        print("undone")


if __name__ == "__main__":
    main(*sys.argv[1:])
