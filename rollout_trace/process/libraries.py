"""Replacements in SDKs and HTTP libraries, so that every client of the process is recorded.

Of the openai and anthropic SDKs only ``__init__`` and ``request`` of their two base classes, which give a client the
recording class that ``rt.wrap_openai`` would: subclasses override the other methods without calling the base class's.
Of an HTTP library what sends a request, for calls that no known SDK makes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias
from weakref import ref

from rollout_trace import guard
from rollout_trace.clients import aiohttp, httpx, lm15, requests, stainless
from rollout_trace.process.options import HTTP
from rollout_trace.process.patches import Patches
from rollout_trace.record.settings import Settings


class RecordedClients:
    """The clients of one SDK that are recorded because the process is."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # By their ids: a subclass may have an `__eq__`, and no `__hash__`. Threads make clients while others undo.
        self._clients: dict[int, ref[Any]] = {}

    def patch(self, module: ModuleType, patches: Patches) -> None:
        """Replaces the methods of the SDK's base classes: of ``openai._base_client``, or anthropic's."""
        for name, first in (("SyncAPIClient", _first), ("AsyncAPIClient", _first_async)):
            kind = getattr(module, name)
            patches.replace(kind, "__init__", functools.partial(self._made, patches=patches))
            patches.replace(kind, "request", functools.partial(first, patches=patches, clients=self))

    def adopt(self, client: Any) -> None:
        """Starts recording a client, unless it already records. Never raises, except under pytest."""
        try:
            if not stainless.is_recording(type(client)):
                stainless.swap(client, self._settings)
            # A copy of one of ours has its class already.
            if self._is_ours(client):
                key, clients = id(client), self._clients
                clients[key] = ref(client, lambda gone: clients.pop(key, None) if clients.get(key) is gone else None)
        except Exception as error:
            guard.failed("instrument", None, error)

    def give_back(self) -> None:
        """Gives the clients their own classes again. Running calls are recorded to their end."""
        known, self._clients = self._clients, {}
        for found in list(known.values()):
            client = found()
            # Not one that was wrapped by hand since.
            if client is not None and self._is_ours(client):
                guard.run_all("instrument", functools.partial(stainless.restore, client))

    def _is_ours(self, client: Any) -> bool:
        settings = stainless.settings_of(client)
        return settings is not None and settings.source is self._settings.source

    def _made(self, init: Any, patches: Patches) -> Any:
        @functools.wraps(init)
        def __init__(client: Any, *args: Any, **kwargs: Any) -> None:
            with guard.hidden_frame:
                init(client, *args, **kwargs)
            if patches.is_active:
                self.adopt(client)

        return __init__


def _first(request: Any, patches: Patches, clients: RecordedClients) -> Any:
    first = stainless.recorded_request(SimpleNamespace(request=request))

    @functools.wraps(request)
    def replaced(client: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if not patches.is_active or stainless.is_recording(type(client)):
                return request(client, *args, **kwargs)
            # A client made before. Not by its new class: a `request` of the user's own, which calls this, would run
            # twice.
            clients.adopt(client)
            return first(client, *args, **kwargs)
        except BaseException as error:
            guard.hide_frame(error)
            raise

    return replaced


def _first_async(request: Any, patches: Patches, clients: RecordedClients) -> Any:
    first = stainless.recorded_request_async(SimpleNamespace(request=request))

    @functools.wraps(request)
    async def replaced(client: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if not patches.is_active or stainless.is_recording(type(client)):
                return await request(client, *args, **kwargs)
            clients.adopt(client)
            return await first(client, *args, **kwargs)
        except BaseException as error:
            guard.hide_frame(error)
            raise

    return replaced


_Senders: TypeAlias = "tuple[tuple[str, str, Callable[..., Any]], ...]"
"""Classes, their method that sends a request, and what makes its replacement."""


def _patch_senders(senders: _Senders, module: ModuleType, patches: Patches) -> None:
    def replacement(name: str, make: Callable[..., Any], original: Any) -> Any:
        return make(SimpleNamespace(**{name: original}), HTTP)

    for owner, name, make in senders:
        patches.replace(getattr(module, owner), name, functools.partial(replacement, name, make))


_HTTPX = (("Client", "send", httpx.recorded_send), ("AsyncClient", "send", httpx.recorded_send_async))
# `_do_stream` is private: `stream` only makes a context manager, which calls it when it is entered.
_LM15 = (
    ("StdlibTransport", "stream", lm15.recorded_stream),
    ("StdlibAsyncTransport", "_do_stream", lm15.recorded_stream_async),
)
_SENDERS: dict[str, _Senders] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "aiohttp": (("ClientSession", "_request", aiohttp.recorded_request),),
    "requests": (("Session", "send", requests.recorded_send),),
    # A copy of the next one.
    "dspy._vendor.lm15.transports": _LM15,
    "lm15.transports": _LM15,
}
LIBRARIES: dict[str, Callable[[Any, Patches], None]] = {
    module: functools.partial(_patch_senders, senders) for module, senders in _SENDERS.items()
}
"""The modules to wait for, and what replaces their methods."""
