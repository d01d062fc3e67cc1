"""Redirection in httpx and httpx2: in the transports, below clients, SDKs and event hooks."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from rollout_trace.process.patches import Patches
from rollout_trace.process.routes import Redirected, target_of

_DIRECT = "_rollout_trace_direct"


def redirect_httpx(module: ModuleType, patches: Patches) -> None:
    """Replaces what sends a request in both transports of httpx, or httpx2.

    Their subclasses call it; transports of any other class (mock, ASGI) are a caller's own, and left alone.
    """
    library: Any = module
    sync, async_ = library.HTTPTransport, library.AsyncHTTPTransport
    patches.replace(sync, "handle_request", lambda original: _sync(original, library, patches))
    patches.replace(async_, "handle_async_request", lambda original: _async(original, library, patches))


def _sync(original: Any, library: Any, patches: Patches) -> Any:
    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        target = _target_of(request) if patches.is_active else None
        if target is None:
            return original(self, request)
        transport = self if _is_plain(self) else _direct(self, library.HTTPTransport, library)
        return original(transport, _request_to(target, request, library))

    return handle_request


def _async(original: Any, library: Any, patches: Patches) -> Any:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        target = _target_of(request) if patches.is_active else None
        if target is None:
            return await original(self, request)
        transport = self if _is_plain(self) else _direct(self, library.AsyncHTTPTransport, library)
        return await original(transport, _request_to(target, request, library))

    return handle_async_request


def _target_of(request: Any) -> Redirected | None:
    # Missing where the body is a stream that has not been read.
    return target_of(request.method, str(request.url), getattr(request, "_content", None))


def _request_to(target: Redirected, request: Any, library: Any) -> Any:
    """The request to send: the caller's method, headers, body and timeouts, to another address."""
    # Raw headers keep case, order and repetitions.
    headers = [*request.headers.raw, *((name.encode(), value.encode()) for name, value in target.headers.items())]
    options = {"stream": request.stream, "extensions": request.extensions}
    return library.Request(request.method, target.url, headers=headers, **options)


def _is_plain(transport: Any) -> bool:
    """Whether the connections of a transport reach a plain server on this machine: no proxy, no socket of its own."""
    pool = getattr(transport, "_pool", None)
    return (
        type(pool).__name__ in ("ConnectionPool", "AsyncConnectionPool")
        and getattr(pool, "_uds", None) is None
        and getattr(pool, "_local_address", None) is None
        and bool(getattr(pool, "_http1", True))
    )


def _direct(transport: Any, kind: Any, library: Any) -> Any:
    """A plain transport, kept on the caller's own. Connections end with their answers: nobody would close them."""
    kept = vars(transport)
    if _DIRECT not in kept:
        limits = library.Limits(max_connections=None, max_keepalive_connections=0)
        kept.setdefault(_DIRECT, kind(verify=False, trust_env=False, limits=limits))
    return kept[_DIRECT]
