"""Recording in HTTP clients, for models that call their server through no SDK."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from rollout_trace.clients import seam
from rollout_trace.integration import guarded
from rollout_trace.record.settings import Settings

_MARK = "_rollout_trace_http"


def is_http_client(client: Any) -> bool:
    """Whether an object is an async client of httpx, in either of its packages."""
    return any(
        base.__name__ == "AsyncClient" and base.__module__.partition(".")[0] in ("httpx", "httpx2")
        for base in type(client).__mro__
    )


def record_http(client: Any, settings: Settings) -> None:
    """Gives an HTTP client a recording subclass of its own class: its generation calls are recorded."""
    if type(client).__dict__.get(_MARK) != settings:
        base = type(client).__mro__[1] if _MARK in type(client).__dict__ else type(client)
        client.__class__ = _recording_class(base, settings)


@functools.cache
def _recording_class(base: Any, settings: Settings) -> type:
    @functools.wraps(base.send)
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = _exchange(lambda sent: base.send(self, sent, *args, **kwargs), settings, request)
        if exchange is None:
            return await base.send(self, request, *args, **kwargs)
        try:
            return await exchange.request(None, exchange.options)
        except _ErrorStatus as error:
            return error.response

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), {**names, _MARK: settings, "send": send})


class _ErrorStatus(Exception):
    """A response with an error status: the seam learns from an exception what an SDK makes one of."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the server answered with status {response.status_code}.")
        self.response = response
        self.status_code = response.status_code


class _Exchange:
    """One request of an HTTP client, in the shape of an SDK's client, which the seam knows how to record."""

    def __init__(self, send: Callable[[Any], Awaitable[Any]], request: Any) -> None:
        body = _json(request.content)
        self.base_url = str(request.url).removesuffix("/chat/completions")
        self.options = SimpleNamespace(method=request.method, url=request.url.path, json_data=body, extra_json=None)
        self._bare = body
        self._sent = request
        self._send = send

    async def request(self, cast_to: Any, options: Any) -> Any:
        """Sends the request, with what the seam has added to its body."""
        request = self._sent if options.json_data is self._bare else _with_body(self._sent, options.json_data)
        await self._prepare_request(request)
        response = await self._send(request)
        if response.status_code >= 400:
            if request is not self._sent:
                # The seam reads why: it may be what was added.
                await response.aread()
            raise _ErrorStatus(response)
        return await self._process_response(response=response)

    async def _prepare_request(self, request: Any) -> None:
        """For the seam, which overrides it."""

    async def _process_response(self, *, response: Any) -> Any:
        """For the seam, which overrides it."""
        return response

    def _should_retry(self, response: Any) -> bool:
        """For the seam: an HTTP client does not try again."""
        return False

    def _calculate_retry_timeout(self) -> float:
        """For the seam: an HTTP client does not try again."""
        return 0.0


@guarded
def _exchange(send: Callable[[Any], Awaitable[Any]], settings: Settings, request: Any) -> _Exchange | None:
    """The exchange that a request begins; None where it generates nothing."""
    if settings.protocol_of(request.method, request.url.path) is None:
        return None
    exchange = _Exchange(send, request)
    seam.swap(exchange, settings, is_async=True)
    return exchange


def _json(content: bytes) -> Any:
    """The body of a request; None where it is no JSON, and nothing can be added."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def _with_body(request: Any, body: Any) -> Any:
    """The same request with another body."""
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return type(request)(request.method, request.url, headers=headers, content=content, extensions=request.extensions)
