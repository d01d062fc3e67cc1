"""Redirection in requests: in the adapter, below sessions and hooks."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from rollout_trace.process.patches import Patches
from rollout_trace.process.routes import Redirected, target_of

_DIRECT = "_rollout_trace_direct"
_PORTS = {"http": 80, "https": 443}


def redirect_requests(module: ModuleType, patches: Patches) -> None:
    """Replaces ``send`` of the adapter of requests, which adapters of callers call too."""
    adapters: Any = module
    adapter = adapters.adapters.HTTPAdapter
    patches.replace(adapter, "send", lambda send: _redirected_send(send, adapter, patches))


def _redirected_send(original: Any, kind: Any, patches: Patches) -> Any:
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
        target = _target_of(request) if patches.is_active else None
        if target is None:
            return original(self, request, stream, timeout, verify, cert, proxies)
        adapter = self if _is_plain(self, kind) else _direct(self, kind)
        sent = _request_to(target, request)
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


def _target_of(request: Any) -> Redirected | None:
    body = request.body
    if body is None:
        # None to search, which is not the same as one that cannot be read.
        body = b""
    elif isinstance(body, str):
        body = body.encode()
    return target_of(request.method or "GET", request.url or "", body if isinstance(body, bytes) else None)


def _request_to(target: Redirected, request: Any) -> Any:
    sent = request.copy()
    sent.url = target.url
    if "host" not in sent.headers:
        sent.headers["Host"] = host_of(request.url)
    sent.headers.update(target.headers)
    return sent


def host_of(url: str) -> str:
    """The header ``host`` that urllib3 makes of an address: without user, password and the usual port."""
    parts = urlsplit(url)
    name = parts.netloc.rpartition("@")[2]
    usual = f":{_PORTS.get(parts.scheme)}"
    return name.removesuffix(usual) if parts.port == _PORTS.get(parts.scheme) else name


def _is_plain(adapter: Any, kind: Any) -> bool:
    """Whether the connections of an adapter reach a plain server on this machine: none of its own making."""
    names = ("get_connection", "get_connection_with_tls_context", "init_poolmanager")
    options = getattr(getattr(adapter, "poolmanager", None), "connection_pool_kw", {})
    own = type(adapter)
    is_usual = all(getattr(own, name, None) is getattr(kind, name, None) for name in names)
    return is_usual and "source_address" not in options


def _direct(adapter: Any, kind: Any) -> Any:
    """A plain adapter, kept on the caller's own. Its one idle connection is closed when it is collected."""
    kept = vars(adapter)
    if _DIRECT not in kept:
        kept.setdefault(_DIRECT, kind(max_retries=adapter.max_retries))
    return kept[_DIRECT]
