"""Recording under the HTTP libraries, for calls that no known SDK makes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from rollout_trace.clients import aiohttp, httpx, lm15, requests
from rollout_trace.process.options import HTTP
from rollout_trace.process.patches import Patches


def patch_httpx(module: ModuleType, patches: Patches) -> None:
    """Replaces ``send`` of both clients of httpx, or httpx2."""
    patches.replace(module.Client, "send", lambda send: httpx.recorded_send(SimpleNamespace(send=send), HTTP))
    patches.replace(
        module.AsyncClient, "send", lambda send: httpx.recorded_send_async(SimpleNamespace(send=send), HTTP)
    )


def patch_aiohttp(module: ModuleType, patches: Patches) -> None:
    """Replaces the method of aiohttp's session that every request passes through."""
    patches.replace(module.ClientSession, "_request", lambda request: aiohttp.recorded_request(request, HTTP))


def patch_requests(module: ModuleType, patches: Patches) -> None:
    """Replaces ``send`` of the session of requests."""
    patches.replace(module.Session, "send", lambda send: requests.recorded_request(send, HTTP))


def patch_lm15(module: ModuleType, patches: Patches) -> None:
    """Replaces what sends a request in both transports of lm15, which dspy has a copy of."""
    patches.replace(module.StdlibTransport, "stream", lambda stream: lm15.recorded_stream(stream, HTTP))
    # Private: `stream` only makes a context manager, which calls it when it is entered.
    patches.replace(module.StdlibAsyncTransport, "_do_stream", lambda stream: lm15.recorded_stream_async(stream, HTTP))


LIBRARIES: dict[str, Callable[[Any, Patches], None]] = {
    "httpx": patch_httpx,
    "httpx2": patch_httpx,
    "aiohttp": patch_aiohttp,
    "requests": patch_requests,
    "dspy._vendor.lm15.transports": patch_lm15,
    "lm15.transports": patch_lm15,
}
"""The modules to wait for, and what replaces their methods."""
