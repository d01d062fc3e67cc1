"""Redirection in lm15, the model client inside dspy.

The recorder replaces the same method as what could be replaced here, ``stream``, and is to see the caller's own address
whoever came first. So this only notes there where the request goes, for the functions below: those that read an
address, choose a proxy, and write a request.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rollout_trace.process.patches import Patches
from rollout_trace.process.redirect_requests import host_of
from rollout_trace.process.routes import Redirected, call_header, target_of

_target: ContextVar[tuple[str, Redirected] | None] = ContextVar("rollout_trace_redirected", default=None)
"""While a request is sent: its address, and where it goes instead."""


def redirect_lm15(module: ModuleType, patches: Patches) -> None:
    """Replaces what sends a request in both transports of lm15, and what they call for it."""
    transports: Any = module
    sync, async_ = transports.StdlibTransport, transports.StdlibAsyncTransport
    patches.replace(sync, "stream", lambda original: _noting(original, patches))
    patches.replace(async_, "_do_stream", lambda original: _noting_async(original, patches))
    for kind, writing in ((sync, _written), (async_, _written_async)):
        home: Any = sys.modules[kind.__module__]
        patches.replace(home, "parse_url", _parsed)
        patches.replace(home, "proxy_route_for", _proxied)
        patches.replace(kind, "_send_request", writing)


def _target_of(request: Any) -> tuple[str, Redirected] | None:
    found = target_of(request.method, request.url, bytes(request.body or b""))
    return None if found is None else (request.url, found)


def _noting(original: Any, patches: Patches) -> Any:
    @functools.wraps(original)
    def stream(self: Any, request: Any) -> Any:
        if not patches.is_active:
            return original(self, request)
        token = _target.set(_target_of(request))
        try:
            return original(self, request)
        finally:
            _target.reset(token)

    return stream


def _noting_async(original: Any, patches: Patches) -> Any:
    @functools.wraps(original)
    async def _do_stream(self: Any, request: Any) -> Any:
        if not patches.is_active:
            return await original(self, request)
        token = _target.set(_target_of(request))
        try:
            return await original(self, request)
        finally:
            _target.reset(token)

    return _do_stream


def _parsed(original: Any) -> Any:
    @functools.wraps(original)
    def parse_url(url: str) -> Any:
        noted = _target.get()
        return original(noted[1].url if noted is not None and url == noted[0] else url)

    return parse_url


def _proxied(original: Any) -> Any:
    @functools.wraps(original)
    def proxy_route_for(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if _target.get() is None else None

    return proxy_route_for


def _written(original: Any) -> Any:
    @functools.wraps(original)
    def _send_request(self: Any, conn: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, conn, _as_sent(request), *args, **kwargs)

    return _send_request


def _written_async(original: Any) -> Any:
    @functools.wraps(original)
    async def _send_request(self: Any, conn: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        return await original(self, conn, _as_sent(request), *args, **kwargs)

    return _send_request


def _as_sent(request: Any) -> Any:
    """The request with the headers to add, and the caller's own host."""
    noted = _target.get()
    if noted is None:
        return request
    # Asked anew: where this noted it above the recorder, no call had begun.
    headers = [*request.headers, *{**noted[1].headers, **call_header()}.items()]
    if not any(name.lower() == "host" for name, _ in headers):
        headers.append(("Host", host_of(request.url)))
    return dataclasses.replace(request, headers=headers)
