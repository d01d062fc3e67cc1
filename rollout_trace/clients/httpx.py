"""Recording for clients of httpx and httpx2 that are used without an SDK.

Neither package is imported: clients are recognised by class name and module. The only method overridden is ``send``,
which every request of a client passes through.
"""

from __future__ import annotations

import time
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from rollout_trace.clients import recorder
from rollout_trace.clients.detect import POOL_PATIENCE, Reply, of_inquiry
from rollout_trace.clients.http_exchange import HTTPExchange, recorded, recorded_async
from rollout_trace.clients.recorder import content_of
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.clients.tee import StreamRefused, added_chunks, hide_added, read_ahead, read_ahead_async, tee
from rollout_trace.record.settings import MAX_CALL_BYTES, Settings, check_call_bytes
from rollout_trace.wire.engine import Engine, resolve
from rollout_trace.wire.profiles import AUTO
from rollout_trace.wire.protocols import RECORDS, protocol_at

if TYPE_CHECKING:
    from rollout_trace.clients.detect import Inquiry
    from rollout_trace.record.call import Call

C = TypeVar("C")

_recording: ClassSwap[Settings] = ClassSwap("_rollout_trace_http")
_KINDS: dict[str, Literal["sync", "async"]] = {"Client": "sync", "AsyncClient": "async"}


@lru_cache(maxsize=256)
def protocol_of(method: str, url: str) -> str | None:
    """The protocol of a request, by the path that the SDK's resources use, or of an engine's own endpoint.

    None for requests that do not generate.
    """
    if (found := protocol_at("openai", method, url)) is not None:
        return found
    path = urlsplit(url).path.rstrip("/")
    for one in RECORDS:
        for known in one.paths if one.sdk is None and one.decoder is not None and method.lower() == "post" else ():
            # `/generate` only as the whole path: other servers have one that ends in it.
            if path == known or (known.count("/") > 1 and path.endswith(known)):
                return one.name
    return None


def http_kind(client: object) -> Literal["sync", "async"] | None:
    """Returns ``sync`` or ``async`` for a client of httpx or httpx2, and None for any other object."""
    for base in type(client).__mro__:
        if base.__name__ in _KINDS and base.__module__.partition(".")[0] in ("httpx", "httpx2"):
            return _KINDS[base.__name__]
    return None


def wrap_httpx(
    client: C, *, engine: str | Engine | None = None, keep_bytes: bool = False, max_call_bytes: int = MAX_CALL_BYTES
) -> C:
    """Records the generation requests of an HTTP client, recognised by their paths. Returns the same object.

    Recognised paths: those of OpenAI's API, ``/generate`` of SGLang and ``/inference/v1/generate`` of vLLM.

    Use it for models that call their server without an SDK. With an SDK, wrap the SDK's client, not its HTTP client.

    Args:
        client: a ``Client`` or ``AsyncClient`` of httpx or httpx2.
        engine: the server behind it, as in ``rt.wrap_openai``: a name or an ``rt.Engine``; ``auto`` is not supported.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: limit on the bytes kept of one request, and of one response as it arrives (64 MiB); a
            decompressed response may be four times as large. Bytes beyond the limit are dropped and counted: the step
            then has the ``token_issue`` ``bytes_left_out``, and no ids.

    Wrapping again only changes the settings.

    Raises:
        TypeError: ``client`` is not a client of httpx, or ``max_call_bytes`` is not an integer.
        ValueError: the engine is unknown, or ``auto``, or ``max_call_bytes`` is below 1.
    """
    if http_kind(client) is None:
        raise TypeError(f"wrap_httpx() needs a Client or AsyncClient of httpx, got {client!r:.80}.")
    found, wishes = resolve(engine)
    if found is AUTO:
        raise ValueError('engine="auto" is for clients of the openai SDK: name the engine.')
    limit = check_call_bytes(max_call_bytes)
    settings = Settings(protocol_of, found, bool(keep_bytes), max_call_bytes=limit, wishes=wishes, is_http=True)
    _recording.put_on(client, settings, _methods)
    return client


def stop_recording(client: object) -> None:
    """Undoes ``wrap_httpx``. Any other object stays as it is."""
    _recording.take_off(client)


class _Exchange(HTTPExchange):
    """One request of httpx or httpx2."""

    __slots__ = ()
    _url_of = attrgetter("url.path")

    def _with_body(self, request: Any, content: bytes) -> Any:
        # Raw headers keep case, order and repetitions; the length is that of the old body.
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        options = {"content": content, "extensions": request.extensions}
        return type(request)(request.method, request.url, headers=headers, **options)

    def _of_our_own(self, inquiry: Inquiry) -> Any:
        request = super()._of_our_own(inquiry)
        left = max(0.0, inquiry.deadline - time.monotonic())
        timeout = {**dict.fromkeys(("connect", "read", "write"), left), "pool": min(left, POOL_PATIENCE)}
        request.extensions = {**request.extensions, "timeout": timeout}
        return request

    def ask(self, send: Any, client: Any, inquiry: Inquiry, args: Any, kwargs: Any) -> Reply:
        return super().ask(send, of_inquiry(client, inquiry), inquiry, args, kwargs)

    async def ask_async(self, send: Any, client: Any, inquiry: Inquiry, args: Any, kwargs: Any) -> Reply:
        return await super().ask_async(send, of_inquiry(client, inquiry), inquiry, args, kwargs)

    def _options_of_our_own(self, inquiry: Inquiry) -> dict[str, Any]:
        return {"follow_redirects": False}

    def was_refused(self, response: Any) -> bool:
        """Whether a response refuses added fields, which are then removed. Reads as much of it as that takes."""
        try:
            if self._added and response.status_code < 400:
                read_ahead(self.call, response)
        except StreamRefused as error:
            return self._drop_refused(error.status_code, error.response.content, error)
        return super().was_refused(response)

    async def was_refused_async(self, response: Any) -> bool:
        """``was_refused`` for an async client."""
        try:
            if self._added and response.status_code < 400:
                await read_ahead_async(self.call, response)
        except StreamRefused as error:
            return self._drop_refused(error.status_code, error.response.content, error)
        return await super().was_refused_async(response)

    def _read(self, response: Any) -> bytes | None:
        response.read()
        return content_of(response)

    async def _read_async(self, response: Any) -> bytes | None:
        await response.aread()
        return content_of(response)

    def _record_body(self, call: Call, response: Any) -> None:
        # Closed: `send` has read the body, as it does unless the caller asked for a stream.
        if response.is_closed:
            recorder.body(call, response.content)
            recorder.ended(call)
            if call.hides:
                hide_added(call, response)
        else:
            response.stream = tee(response.stream, call, added_chunks(call))


recorded_send = partial(recorded, _Exchange, "send")
recorded_send_async = partial(recorded_async, _Exchange, "send")


def _methods(base: Any, settings: Settings) -> dict[str, Any]:
    make = recorded_send_async if hasattr(base, "aclose") else recorded_send
    return {"send": make(base, settings)}
