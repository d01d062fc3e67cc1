"""Requests of the HTTP libraries of this process go to another address than their clients have.

The seams are below those of the recorder: steps, responses, event hooks and exceptions show the caller's own address.
In httpx and httpx2 they are the transports, in aiohttp the connectors, in requests the adapter. In lm15, the model
client inside dspy, the recorder replaces the same method as what could be replaced here, ``stream``, and is to see the
caller's own address whoever came first. So that only notes there where the request goes, for the functions that read an
address, choose a proxy, and write a request.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from rollout_trace import guard
from rollout_trace._threads import lock_for
from rollout_trace.clients import recorder
from rollout_trace.clients.loopback.messages import CALL_HEADER
from rollout_trace.process.patches import Handle, Part, Patches


class Redirected(NamedTuple):
    """The address to which a request is redirected."""

    url: str
    headers: dict[str, str]
    """Added to those of the request; names in lower case."""


Route: TypeAlias = Callable[[str, str, "bytes | None"], "Redirected | None"]
"""From method, URL and body of a request (None: a stream, which only its HTTP library may read) to where it is sent;
None: it is left alone. Called on any thread."""

_lock = lock_for(__name__)
_routes: tuple[Route, ...] = ()


def target_of(method: str, url: str, body: bytes | None) -> Redirected | None:
    """Returns where to send a request instead, by the first route that has an answer; None: to its own address."""
    for route in _routes:
        try:
            found = route(method, url, body)
        except Exception as error:
            guard.failed("redirect", None, error)
            continue
        if found is not None:
            return Redirected(found.url, {**found.headers, **call_header()})
    return None


def call_header() -> dict[str, str]:
    """The header of a request that is sent in this context: empty where no recorded call sends it."""
    call = recorder.current.get()
    # A task that was begun inside a call keeps the variable when the call has ended.
    return {} if call is None or call.ended is not None else {CALL_HEADER: f"{os.getpid()}/{call.id}"}


_DIRECT = "_rollout_trace_direct"
_PORTS = {"http": 80, "https": 443}


def _kept_direct(owner: Any, make: Callable[[], Any]) -> Any:
    """A plain transport or adapter, kept on the caller's own."""
    kept = vars(owner)
    if _DIRECT not in kept:
        kept.setdefault(_DIRECT, make())
    return kept[_DIRECT]


def _redirect_httpx(module: ModuleType, patches: Patches) -> None:
    """Subclasses of both transports call what is replaced; those of any other class (mock, ASGI) are a caller's own."""
    library: Any = module
    sync, async_ = library.HTTPTransport, library.AsyncHTTPTransport

    def for_sync(original: Any) -> Any:
        @functools.wraps(original)
        def handle_request(self: Any, request: Any) -> Any:
            return original(*_httpx_sent(self, request, sync, library, patches))

        return handle_request

    def for_async(original: Any) -> Any:
        @functools.wraps(original)
        async def handle_async_request(self: Any, request: Any) -> Any:
            return await original(*_httpx_sent(self, request, async_, library, patches))

        return handle_async_request

    patches.replace(sync, "handle_request", for_sync)
    patches.replace(async_, "handle_async_request", for_async)


def _httpx_sent(transport: Any, request: Any, kind: Any, library: Any, patches: Patches) -> tuple[Any, Any]:
    """The transport and the request to send: the caller's method, headers, body and timeouts, to another address."""
    # Missing where the body is a stream that has not been read.
    content = getattr(request, "_content", None)
    target = target_of(request.method, str(request.url), content) if patches.is_active else None
    if target is None:
        return transport, request
    if not _is_plain_transport(transport):
        # Connections end with their answers: nobody would close them.
        limits = library.Limits(max_connections=None, max_keepalive_connections=0)
        transport = _kept_direct(transport, lambda: kind(verify=False, trust_env=False, limits=limits))
    # Raw headers keep case, order and repetitions.
    headers = [*request.headers.raw, *((name.encode(), value.encode()) for name, value in target.headers.items())]
    options = {"stream": request.stream, "extensions": request.extensions}
    return transport, library.Request(request.method, target.url, headers=headers, **options)


def _is_plain_transport(transport: Any) -> bool:
    """Whether the connections of a transport reach a plain server on this machine: no proxy, no socket of its own."""
    pool = getattr(transport, "_pool", None)
    return (
        type(pool).__name__ in ("ConnectionPool", "AsyncConnectionPool")
        and getattr(pool, "_uds", None) is None
        and getattr(pool, "_local_address", None) is None
        and bool(getattr(pool, "_http1", True))
    )


def _redirect_aiohttp(module: ModuleType, patches: Patches) -> None:
    """Replaces what gives a request its connection, below sessions, middlewares and traces."""
    library: Any = module

    def replacement(original: Any) -> Any:
        @functools.wraps(original)
        async def connect(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
            # A payload that is no stream has its bytes.
            body = req.body if isinstance(req.body, bytes) else getattr(req.body, "_value", None)
            content = body if isinstance(body, bytes) else None
            target = target_of(req.method, str(req.url), content) if patches.is_active else None
            if target is None:
                return await original(self, req, *args, **kwargs)
            connector = self
            if not _is_plain_connector(self, library):
                # Its connection ends with the answer: nobody would close it.
                connector = library.TCPConnector(force_close=True, resolver=library.ThreadedResolver())
            own = req.url
            # The request is the session's, made for this attempt alone: what its answer shows is restored below.
            req.url, req.proxy = type(own)(target.url, encoded=True), None
            req.headers.update(target.headers)
            is_own_path = req.url.raw_path_qs == own.raw_path_qs
            try:
                connection = await original(connector, req, *args, **kwargs)
            except BaseException:
                req.url = own
                raise
            # What is sent of the address now is its path.
            req.url = own if is_own_path else req.url
            return connection

        return connect

    patches.replace(library.BaseConnector, "connect", replacement)


def _is_plain_connector(connector: Any, library: Any) -> bool:
    """Whether a connector reaches a plain server on this machine: no Unix socket, no proxy, no address of its own."""
    usual, own = library.TCPConnector, type(connector)
    names = ("_create_connection", "_create_direct_connection", "_resolve_host", "_wrap_create_connection")
    return (
        isinstance(connector, usual)
        and all(getattr(own, name, None) is getattr(usual, name, None) for name in names)
        and getattr(connector, "_local_addr_infos", None) is None
        and getattr(connector, "_socket_factory", None) is None
        and getattr(connector, "_family", socket.AF_UNSPEC) != socket.AF_INET6
    )


def _redirect_requests(module: ModuleType, patches: Patches) -> None:
    """Replaces ``send`` of the adapter of requests, which adapters of callers call too."""
    kind: Any = vars(module)["adapters"].HTTPAdapter

    def replacement(original: Any) -> Any:
        @functools.wraps(original)
        def send(
            self: Any,
            request: Any,
            stream: bool = False,
            timeout: Any = None,
            verify: Any = True,
            cert: Any = None,
            proxies: Any = None,
        ) -> Any:
            # Without a body there is none to search, which is not the same as one that cannot be read.
            body = b"" if request.body is None else request.body
            body = body.encode() if isinstance(body, str) else body
            content = body if isinstance(body, bytes) else None
            target = target_of(request.method or "GET", request.url or "", content) if patches.is_active else None
            if target is None:
                return original(self, request, stream, timeout, verify, cert, proxies)
            adapter = self
            if not _is_plain_adapter(self, kind):
                # Its one idle connection is closed when it is collected.
                adapter = _kept_direct(self, lambda: kind(max_retries=self.max_retries))
            sent = request.copy()
            sent.url = target.url
            if "host" not in sent.headers:
                sent.headers["Host"] = _host_of(request.url)
            sent.headers.update(target.headers)
            try:
                # No certificate is needed, and none may be there.
                response = original(adapter, sent, stream, timeout, False)
            except Exception as error:
                if getattr(error, "request", None) is sent:
                    error.request = request  # type: ignore[attr-defined]
                raise
            response.request, response.url, response.connection = request, request.url, self
            return response

        return send

    patches.replace(kind, "send", replacement)


def _host_of(url: str) -> str:
    """The header ``host`` that urllib3 makes of an address: without user, password and the usual port."""
    parts = urlsplit(url)
    name = parts.netloc.rpartition("@")[2]
    usual = f":{_PORTS.get(parts.scheme)}"
    return name.removesuffix(usual) if parts.port == _PORTS.get(parts.scheme) else name


def _is_plain_adapter(adapter: Any, kind: Any) -> bool:
    """Whether the connections of an adapter reach a plain server on this machine: none of its own making."""
    names = ("get_connection", "get_connection_with_tls_context", "init_poolmanager")
    options = getattr(getattr(adapter, "poolmanager", None), "connection_pool_kw", {})
    own = type(adapter)
    is_usual = all(getattr(own, name, None) is getattr(kind, name, None) for name in names)
    return is_usual and "source_address" not in options


_target: ContextVar[tuple[str, Redirected] | None] = ContextVar("rollout_trace_redirected", default=None)
"""While a request of lm15 is sent: its address, and where it goes instead."""


def _redirect_lm15(module: ModuleType, patches: Patches) -> None:
    """Replaces what sends a request in both transports of lm15, and what they call for it."""
    transports: Any = module
    sync, async_ = transports.StdlibTransport, transports.StdlibAsyncTransport

    def noting(original: Any) -> Any:
        @functools.wraps(original)
        def stream(self: Any, request: Any) -> Any:
            with _noted(request, patches):
                return original(self, request)

        return stream

    def noting_async(original: Any) -> Any:
        @functools.wraps(original)
        async def _do_stream(self: Any, request: Any) -> Any:
            with _noted(request, patches):
                return await original(self, request)

        return _do_stream

    patches.replace(sync, "stream", noting)
    patches.replace(async_, "_do_stream", noting_async)
    for kind in (sync, async_):
        home: Any = sys.modules[kind.__module__]
        patches.replace(home, "parse_url", _parsed)
        patches.replace(home, "proxy_route_for", _proxied)
        patches.replace(kind, "_send_request", _written)


@contextmanager
def _noted(request: Any, patches: Patches) -> Iterator[None]:
    if not patches.is_active:
        # One that could not be taken out, around or inside another that is in force.
        yield
        return
    found = target_of(request.method, request.url, bytes(request.body or b""))
    token = _target.set(None if found is None else (request.url, found))
    try:
        yield
    finally:
        _target.reset(token)


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
        # Of an async transport, a coroutine.
        return original(self, conn, _as_sent(request), *args, **kwargs)

    return _send_request


def _as_sent(request: Any) -> Any:
    """The request with the headers to add, and the caller's own host."""
    noted = _target.get()
    if noted is None:
        return request
    # Asked anew: where this noted it above the recorder, no call had begun.
    headers = [*request.headers, *{**noted[1].headers, **call_header()}.items()]
    if not any(name.lower() == "host" for name, _ in headers):
        headers.append(("Host", _host_of(request.url)))
    return dataclasses.replace(request, headers=headers)


_LIBRARIES = Part(
    {
        "httpx": _redirect_httpx,
        "httpx2": _redirect_httpx,
        "aiohttp": _redirect_aiohttp,
        "requests": _redirect_requests,
        "dspy._vendor.lm15.transports": _redirect_lm15,
        "lm15.transports": _redirect_lm15,
    }
)


class Redirection(Handle):
    """The result of ``redirect``: a context manager with the method ``undo``."""

    def __init__(self, route: Route) -> None:
        self._route = route
        super().__init__([_LIBRARIES])
        # Once all methods are replaced: a request goes through all of them, or through none.
        global _routes
        with _lock:
            # Asked before those that are there already.
            _routes = (route, *_routes)

    def _end(self) -> None:
        # Answers that are being read are read to their end.
        global _routes
        with _lock:
            # Of a route that was added twice, once.
            at = _routes.index(self._route)
            _routes = (*_routes[:at], *_routes[at + 1 :])


def redirect(route: Route) -> Redirection:
    """Sends requests of httpx, httpx2, aiohttp, requests and lm15 to another address, until it is undone.

    Libraries may be imported, and clients made, before or after. Proxies are left out, and the header ``host`` stays
    the caller's. A request that is an attempt of a recorded call gets the call's id as the header
    ``x-rollout-trace-call``. Transports that a caller has written are left alone. May be called again inside: the
    latest route is asked first, and a request is redirected once.

    Args:
        route: from method, URL and body of a request (None: a stream) to where it is sent; None leaves it alone.

    Returns:
        A handle: ``handle.undo()``, or ``with redirect(route): ...``, puts everything back.
    """
    return Redirection(route)


__all__ = ["CALL_HEADER", "Redirected", "Redirection", "Route", "redirect"]
