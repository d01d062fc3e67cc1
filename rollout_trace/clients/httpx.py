"""Recording for clients of httpx and httpx2 that are used without an SDK.

Neither package is imported: clients are recognised by class name and module. The only method overridden is ``send``,
which every request of a client passes through.
"""

from __future__ import annotations

import functools
from operator import attrgetter
from typing import Any, Literal, TypeVar

from rollout_trace import guard
from rollout_trace.clients import recorder
from rollout_trace.clients.attempts import HTTPStatusError
from rollout_trace.clients.exchange import content_of, record_head
from rollout_trace.clients.http_exchange import HTTPExchange, begun
from rollout_trace.clients.openai_paths import protocol_of
from rollout_trace.clients.peek import StreamRefused, peek, peek_async
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.clients.tee import added_chunks, hide_added, tee
from rollout_trace.record.call import MAX_CALL_BYTES, Settings, check_call_bytes
from rollout_trace.wire.engine import Engine, resolve
from rollout_trace.wire.profiles import AUTO

C = TypeVar("C")

_recording: ClassSwap[Settings] = ClassSwap("_rollout_trace_http")
_KINDS: dict[str, Literal["sync", "async"]] = {"Client": "sync", "AsyncClient": "async"}


def http_kind(client: object) -> Literal["sync", "async"] | None:
    """Whether an object is a sync or async client of httpx or httpx2; None if it is neither."""
    for base in type(client).__mro__:
        if base.__name__ in _KINDS and base.__module__.partition(".")[0] in ("httpx", "httpx2"):
            return _KINDS[base.__name__]
    return None


def wrap_httpx(
    client: C, *, engine: str | Engine | None = None, keep_bytes: bool = False, max_call_bytes: int = MAX_CALL_BYTES
) -> C:
    """Records the generation requests of an HTTP client, recognised by their paths. Returns the same object.

    They are OpenAI's, ``/generate`` of SGLang and ``/inference/v1/generate`` of vLLM.

    For models that call their server without an SDK. For an SDK's client, wrap that client, not its HTTP client.

    Args:
        client: a ``Client`` or ``AsyncClient`` of httpx or httpx2.
        engine: the server behind it, as in ``rt.wrap_openai``: a name or an ``rt.Engine``; ``auto`` is not supported.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: most bytes that are kept of one request, and of one response as it arrives (64 MiB); four times
            as many of a response that is unpacked. The rest is counted: the step of a longer call has the
            ``token_issue`` ``bytes_left_out``, and no ids.

    Wrapping again only changes the settings.

    Raises:
        TypeError: not a client of httpx, or ``max_call_bytes`` is no whole number.
        ValueError: the engine is unknown, or ``auto``, or ``max_call_bytes`` is below 1.
    """
    kind = http_kind(client)
    if kind is None:
        raise TypeError(f"wrap_httpx() needs a Client or AsyncClient of httpx, got {client!r:.80}.")
    found, wishes = resolve(engine)
    if found is AUTO:
        raise ValueError('engine="auto" is for clients of the openai SDK: name the engine.')
    limit = check_call_bytes(max_call_bytes)
    settings = Settings(protocol_of, found, bool(keep_bytes), max_call_bytes=limit, wishes=wishes, is_http=True)
    _recording.put_on(client, settings, _async_methods if kind == "async" else _sync_methods)
    return client


def forget_client(client: object) -> None:
    """Undoes ``wrap_httpx``. Any other object stays as it is."""
    _recording.take_off(client)


def _sync_methods(base: Any, settings: Settings) -> dict[str, Any]:
    return {"send": recorded_send(base, settings)}


def _async_methods(base: Any, settings: Settings) -> dict[str, Any]:
    return {"send": recorded_send_async(base, settings)}


def recorded_send(base: Any, settings: Settings) -> Any:
    """What takes the place of ``Client.send``. It calls that of ``base``, as that is then."""

    @functools.wraps(base.send)
    def recorded(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = begun(_Exchange, request, _url_of, settings)
        if exchange is None:
            with guard.hidden_frame:
                return base.send(self, request, *args, **kwargs)
        with exchange:
            response = base.send(self, exchange.next_attempt(), *args, **kwargs)
            while exchange.was_refused(response):
                response = base.send(self, exchange.next_attempt(), *args, **kwargs)
        exchange.answered(response)
        return response

    return recorded


def recorded_send_async(base: Any, settings: Settings) -> Any:
    """What takes the place of ``AsyncClient.send``."""

    @functools.wraps(base.send)
    async def recorded(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = begun(_Exchange, request, _url_of, settings)
        if exchange is None:
            with guard.hidden_frame:
                return await base.send(self, request, *args, **kwargs)
        with exchange:
            response = await base.send(self, exchange.next_attempt(), *args, **kwargs)
            while await exchange.was_refused_async(response):
                response = await base.send(self, exchange.next_attempt(), *args, **kwargs)
        exchange.answered(response)
        return response

    return recorded


_url_of = attrgetter("url.path")


class _Exchange(HTTPExchange):
    __slots__ = ("_request",)

    def __init__(self, request: Any) -> None:
        super().__init__(request.method, str(request.url), request.headers, content_of(request))
        self._request = request

    def next_attempt(self) -> Any:
        """Begins an attempt and returns the request to send: the caller's own if no field is added."""
        return self.begin_attempt(self._request, _with_body)

    def was_refused(self, response: Any) -> bool:
        """Whether a response refuses added fields, which are then removed. Reads an error response to its end."""
        if not self._added:
            return False
        if response.status_code >= 400:
            response.read()
            return self._drop_refused(response.status_code, content_of(response), HTTPStatusError(response))
        try:
            peek(self.call, response)
        except StreamRefused as error:
            return self._drop_refused(error.status_code, error.response.content, error)
        return False

    async def was_refused_async(self, response: Any) -> bool:
        """``was_refused`` for an async client."""
        if not self._added:
            return False
        if response.status_code >= 400:
            await response.aread()
            return self._drop_refused(response.status_code, content_of(response), HTTPStatusError(response))
        try:
            await peek_async(self.call, response)
        except StreamRefused as error:
            return self._drop_refused(error.status_code, error.response.content, error)
        return False

    def answered(self, response: Any) -> None:
        """Records the response that the caller gets. Its body may be a stream that is still to be read."""
        call = self.call
        try:
            record_head(call, response)
            self.learn(response.status_code)
            if response.status_code >= 400:
                # The attempt has failed for its caller too, who may still read why.
                recorder.attempt_failed(call, HTTPStatusError(response))
            # Closed: `send` has read the body, as it does unless the caller asked for a stream.
            if response.is_closed:
                recorder.body(call, response.content)
                recorder.ended(call)
                if call is not None:
                    hide_added(call, response)
            elif call is not None:
                response.stream = tee(response.stream, call, added_chunks(call))
        except Exception as error:
            guard.failed("answered", call, error)
            # Nothing of the body will be seen.
            recorder.ended(call)


def _with_body(request: Any, content: bytes) -> Any:
    """The same request with another body."""
    # Raw headers keep case, order and repetitions; the length is that of the old body.
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return type(request)(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


__all__ = ["http_kind", "recorded_send", "recorded_send_async", "wrap_httpx"]
