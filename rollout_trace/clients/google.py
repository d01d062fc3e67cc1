"""``rt.wrap_google``: recording for clients of google-genai.

``genai.Client()`` and its ``aio`` share one object that sends their requests, ``_api_client``: that object gets a
recording subclass of its own class. ``request``, ``request_streamed`` and their async forms span a whole call;
``_request_once`` and ``_async_request_once`` are one attempt each (google-genai 1.60 to 3.4). The HTTP clients below
(httpx, httpx2, aiohttp, requests) are untouched.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_trace import credentials, guard
from rollout_trace._wrong_use import explained
from rollout_trace.clients import recorder
from rollout_trace.clients.recorder import Exchange, ResponseHead, content_of, is_inside
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.clients.tee import Ender, tee
from rollout_trace.record.settings import MAX_CALL_BYTES, Settings, check_call_bytes
from rollout_trace.wire.protocols import protocol_at

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.record.call import Call

C = TypeVar("C")

_recording: ClassSwap[Settings] = ClassSwap("_rollout_trace_google")
_MODULE = "google.genai"
_NEEDED = (
    "request", "request_streamed", "async_request", "async_request_streamed", "_request_once", "_async_request_once",
)  # fmt: skip
_sending: ContextVar[Call | None] = ContextVar("rollout_trace_google", default=None)
"""The call while its request is sent: the SDK's functions for an attempt have no argument that identifies it."""


@lru_cache(maxsize=256)
def protocol_of(method: str, path: str) -> str | None:
    """The protocol of a request, by its path; None for requests that do not generate."""
    return protocol_at("google", method, path)


@explained
def wrap_google(client: C, *, keep_bytes: bool = False, max_call_bytes: int = MAX_CALL_BYTES) -> C:
    """Records every generation call of a client of google-genai. Returns the same object.

    Recorded are ``generate_content`` and ``generate_content_stream`` of ``client.models`` and ``client.aio.models``,
    and what is built on them (chats, automatic function calling), with the Gemini API and Vertex AI. Each request is
    one call; its retries are attempts of that call. The client behaves as before and sends the same requests. The Live
    API, ``interactions``, batches and embeddings are not recorded.

    Args:
        client: a ``genai.Client`` of google-genai 1.60 or newer, or its ``aio``; wrapping either one records both.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: limit on the bytes kept of one request, and of one response as it arrives (64 MiB); a
            decompressed response may be four times as large. Bytes beyond the limit are dropped and counted: the step
            then has the ``token_issue`` ``bytes_left_out``, and no ids.

    Wrapping again only changes the settings.

    Raises:
        TypeError: ``client`` is not a client of google-genai, or ``max_call_bytes`` is not an integer.
        ValueError: ``max_call_bytes`` is below 1.
    """
    api_client = api_client_of(client)
    if api_client is None:
        raise TypeError(
            f"wrap_google() needs a client of google-genai 1.60 or newer, such as genai.Client(), got {client!r:.80}."
        )
    limit = check_call_bytes(max_call_bytes)
    settings = Settings(protocol_of, keep_bytes=bool(keep_bytes), max_call_bytes=limit)
    if isinstance(key := getattr(api_client, "api_key", None), str):
        credentials.remember(key)
    _recording.put_on(api_client, settings, _methods)
    return client


def api_client_of(client: object) -> Any:
    """The object that sends the requests of a google-genai client; None for any other object."""
    if not any(base.__module__.startswith(_MODULE) for base in type(client).__mro__):
        return None
    api_client = getattr(client, "_api_client", None)
    kind = type(api_client)
    return api_client if all(hasattr(kind, name) for name in _NEEDED) else None


def is_recording(client: object) -> bool:
    """Whether a client of google-genai, or its ``_api_client``, records."""
    return _recording.settings_of(_sender(client)) is not None


def stop_recording(client: object) -> None:
    """Undoes ``wrap_google``: the client's ``_api_client`` gets its own class again. Running calls are still recorded.

    A client that is not wrapped, and any other object, stays as it is.
    """
    _recording.take_off(_sender(client))


def _sender(client: object) -> Any:
    return client if _recording.settings_of(client) is not None else api_client_of(client)


class _Request(Exchange):
    """One run of the SDK's function that sends a request, with all its attempts."""

    __slots__ = ("_method", "_path")

    def __init__(self, settings: Settings, method: str, path: str) -> None:
        super().__init__()
        self._method = method
        self._path = path
        self.begin(settings)

    def _endpoint(self) -> tuple[str, str]:
        return self._method, self._path

    def _protocol(self, settings: Settings, method: str, path: str) -> str | None:
        # An outer layer that records has its own bytes of this request.
        return None if is_inside() else super()._protocol(settings, method, path)

    def __enter__(self) -> Self:
        if self.call is not None:
            super().__enter__()
            _sending.set(self.call)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.call is not None:
            _sending.set(None)
            super().__exit__(kind, error, traceback)


def _methods(base: Any, settings: Settings) -> dict[str, Any]:
    """The methods of a recording ``_api_client``."""

    @functools.wraps(base.request)
    def request(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with _Request(settings, http_method, path) as run:
            result = base.request(self, http_method, path, *args, **kwargs)
        recorder.ended(run.call)
        return result

    @functools.wraps(base.request_streamed)
    def request_streamed(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        # The request is sent with the first item that is read: so does the call begin.
        run = _Request(settings, http_method, path)
        chunks = base.request_streamed(self, http_method, path, *args, **kwargs)
        yield from chunks if run.call is None else _stream(run, chunks)

    @functools.wraps(base.async_request)
    async def async_request(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with _Request(settings, http_method, path) as run:
            result = await base.async_request(self, http_method, path, *args, **kwargs)
        recorder.ended(run.call)
        return result

    @functools.wraps(base.async_request_streamed)
    async def async_request_streamed(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with _Request(settings, http_method, path) as run:
            chunks = await base.async_request_streamed(self, http_method, path, *args, **kwargs)
        return chunks if run.call is None else _stream_async(run.call, chunks, Ender(run.call))

    @functools.wraps(base._request_once)
    def _request_once(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin_attempt(self, http_request)
        try:
            result = base._request_once(self, http_request, *args, **kwargs)
        except BaseException as error:
            _attempt_failed(call, error, _content_of_error(error))
            raise
        _answered(call, result)
        return result

    @functools.wraps(base._async_request_once)
    async def _async_request_once(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin_attempt(self, http_request)
        try:
            result = await base._async_request_once(self, http_request, *args, **kwargs)
        except BaseException as error:
            if call is not None:
                content = _content_of_error(error)
                if _is_aiohttp(response := _raw_response(error)):
                    # The SDK has read it, and reads no more. What breaks this off is what the caller is told.
                    with suppress(Exception):
                        content = await response.read()
                _attempt_failed(call, error, content)
            raise
        _answered(call, result)
        return result

    named = {one.__name__: one for one in (request, request_streamed, async_request, async_request_streamed)}
    return {**named, "_request_once": _request_once, "_async_request_once": _async_request_once}


def _begin_attempt(api_client: Any, http_request: Any) -> Call | None:
    """Begins an attempt of the call that is being sent; None where there is none."""
    call = _sending.get()
    if call is None:
        return None
    try:
        headers = {name.lower(): value for name, value in http_request.headers.items()}
        credentials.remember_request(headers, http_request.url.partition("?")[2])
        recorder.attempt(call, _body(api_client, http_request))
    except Exception as error:
        guard.failed("attempt", call, error)
    return call


def _body(api_client: Any, http_request: Any) -> bytes | None:
    """The body as it is sent.

    The SDK encodes a dict when it sends it, in every attempt, and takes bytes as they are. With the credentials of
    Google Cloud it does not: there the same is encoded a second time.
    """
    data = http_request.data
    if isinstance(data, bytes) or not data:
        return data or None
    encoded = json.dumps(data).encode()
    if not getattr(api_client, "vertexai", None):
        http_request.data = encoded
    return encoded


def _attempt_failed(call: Call | None, error: BaseException, content: bytes | None) -> None:
    """Ends an attempt with the SDK's exception; the SDK may retry. ``content``: the body that it is about, if read."""
    if call is None:
        return
    try:
        response = _raw_response(error)
        status = getattr(response, "status_code", None) or getattr(response, "status", None)
        if isinstance(status, int):
            credentials.remember_sent(error)
            head = ResponseHead(status, response.headers, content)
            recorder.answered(call, status, head.headers)
            recorder.attempt_failed(call, recorder.HTTPStatusError(head))
            if content is not None:
                recorder.body(call, content)
        else:
            recorder.attempt_failed(call, error)
    except Exception as failure:
        guard.failed("attempt_failed", call, failure)


def _raw_response(error: BaseException) -> Any:
    """The HTTP library's response behind an exception of the SDK; None where there is none."""
    response = getattr(error, "response", None)
    return getattr(response, "_response", response)


def _content_of_error(error: BaseException) -> bytes | None:
    """The body of the answer that an exception is about, where it is an httpx or requests response that was read."""
    return content_of(response) if hasattr(response := _raw_response(error), "status_code") else None


def _answered(call: Call | None, result: Any) -> None:
    """Records the SDK's ``HttpResponse``: its body, or the HTTP library's response that is still to be read."""
    if call is None:
        return
    try:
        content = result.response_stream
        if isinstance(content, list):
            # The SDK has read the body, unpacked and decoded it.
            recorder.answered(call, 200, {name.lower(): value for name, value in result.headers.items()})
            recorder.body(call, content[0].encode("utf-8", "surrogatepass") if content else b"")
        elif _is_aiohttp(content):
            recorder.answered(call, content.status, content.headers)
            call.is_decompressed = True
            # Imported on use: most programs do not have aiohttp.
            from rollout_trace.clients.aiohttp import tee as tee_aiohttp

            tee_aiohttp(content, call)
        elif hasattr(content, "stream"):
            recorder.record_head(call, content)
            content.stream = tee(content.stream, call)
        else:
            # Of requests, which the SDK uses with certificates of the client; its chunks are unpacked already.
            recorder.answered(call, content.status_code, content.headers)
            call.is_decompressed = True
            content.iter_content = _recorded_chunks(content.iter_content, call)
    except Exception as error:
        guard.failed("answered", call, error)
        # Nothing of the body will be seen.
        recorder.ended(call)


def _is_aiohttp(response: object) -> bool:
    """Whether an object is a response of aiohttp."""
    return any(
        base.__name__ == "ClientResponse" and base.__module__.startswith("aiohttp.") for base in type(response).__mro__
    )


def _recorded_chunks(read: Any, call: Call) -> Any:
    def iter_content(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        for chunk in read(*args, **kwargs):
            recorder.receive(call, chunk)
            yield chunk
        recorder.finished(call)

    return iter_content


def _stream(request: _Request, chunks: Iterator[Any]) -> Iterator[Any]:
    """What the SDK's stream yields; sends the request with the first item, and ends the call with the last."""
    call = request.call
    try:
        with request:
            try:
                first = next(chunks)
            except StopIteration:
                recorder.ended(call)
                return
        yield first
        yield from chunks
    except BaseException as error:
        recorder.ended(call, _cut_by(error))
        raise
    recorder.ended(call)


def _cut_by(error: BaseException) -> BaseException | None:
    """The exception that broke a stream off; None for the SDK's own about an error of the server's, which is in the
    bytes."""
    is_about_error = type(error).__module__.startswith("google.genai.") and hasattr(error, "details")
    return None if is_about_error else error


async def _stream_async(call: Call, chunks: Any, ender: Ender) -> AsyncIterator[Any]:
    """What the SDK's stream yields; ends the call with its last item. ``ender`` ends it if it never begins."""
    try:
        async for chunk in chunks:
            yield chunk
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            # Closed by its reader: the SDK's own generator ends now too, not when it is collected.
            await chunks.aclose()
        recorder.ended(call, _cut_by(error))
        raise
    recorder.ended(call)
