"""Redirection in aiohttp: in the connectors, below sessions, middlewares and traces."""

from __future__ import annotations

import functools
import socket
from types import ModuleType
from typing import Any

from rollout_trace.process.patches import Patches
from rollout_trace.process.routes import Redirected, target_of


def redirect_aiohttp(module: ModuleType, patches: Patches) -> None:
    """Replaces what gives a request its connection, in the base class of aiohttp's connectors."""
    library: Any = module
    patches.replace(library.BaseConnector, "connect", lambda connect: _redirected_connect(connect, library, patches))


def _redirected_connect(original: Any, library: Any, patches: Patches) -> Any:
    @functools.wraps(original)
    async def connect(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        target = _target_of(req) if patches.is_active else None
        if target is None:
            return await original(self, req, *args, **kwargs)
        connector = self if _is_plain(self, library) else _direct(library)
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


def _target_of(req: Any) -> Redirected | None:
    body = req.body
    # A payload that is no stream has its bytes.
    content = body if isinstance(body, bytes) else getattr(body, "_value", None)
    return target_of(req.method, str(req.url), content if isinstance(content, bytes) else None)


def _is_plain(connector: Any, library: Any) -> bool:
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


def _direct(library: Any) -> Any:
    """A plain connector for one request. Its connection ends with the answer: nobody would close it."""
    return library.TCPConnector(force_close=True, resolver=library.ThreadedResolver())
