"""``rt.wrap_google``: recording for clients of google-genai.

``genai.Client()`` and its ``aio`` share one object that sends their requests, ``_api_client``: that object gets a
recording subclass of its own class. ``request``, ``request_streamed`` and their async forms span a whole call;
``_request_once`` and ``_async_request_once`` are one attempt each (google-genai 1.60 to 3.4). The HTTP clients below
(httpx, httpx2, aiohttp, requests) are untouched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

from rollout_trace import credentials
from rollout_trace.clients import google_calls as calls
from rollout_trace.clients import recorder
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.record.call import MAX_CALL_BYTES, Settings, check_call_bytes
from rollout_trace.wire.protocols import protocol_at

C = TypeVar("C")

_recording: ClassSwap[Settings] = ClassSwap("_rollout_trace_google")
_MODULE = "google.genai"
_NEEDED = ("request", "request_streamed", "async_request", "async_request_streamed")
_ATTEMPTS = ("_request_once", "_async_request_once")


@lru_cache(maxsize=256)
def protocol_of(method: str, path: str) -> str | None:
    """The protocol of a request, by its path; None for requests that do not generate."""
    return protocol_at("google", method, path)


def wrap_google(client: C, *, keep_bytes: bool = False, max_call_bytes: int = MAX_CALL_BYTES) -> C:
    """Records every generation call of a client of google-genai. Returns the same object.

    That is ``generate_content`` and ``generate_content_stream`` of ``client.models`` and ``client.aio.models``, and
    what is built on them (chats, automatic function calling), with the Gemini API and Vertex AI. Each request is a call
    of its own, with its retries as attempts. The client behaves as before and sends the same requests. The Live API,
    ``interactions``, batches and embeddings are not recorded.

    Args:
        client: a ``genai.Client`` of google-genai 1.60 or newer, or its ``aio``: both record then.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: most bytes that are kept of one request, and of one response as it arrives (64 MiB); four times
            as many of a response that is unpacked. The rest is counted: the step of a longer call has the
            ``token_issue`` ``bytes_left_out``, and no ids.

    Wrapping again only changes the settings.

    Raises:
        TypeError: not a client of google-genai, or ``max_call_bytes`` is no whole number.
        ValueError: ``max_call_bytes`` is below 1.
    """
    api_client = api_client_of(client)
    if api_client is None:
        raise TypeError(
            f"wrap_google() needs a client of google-genai 1.60 or newer, such as genai.Client(), got {client!r:.80}."
        )
    limit = check_call_bytes(max_call_bytes)
    record_api_client(api_client, Settings(protocol_of, keep_bytes=bool(keep_bytes), max_call_bytes=limit))
    return client


def api_client_of(client: object) -> Any:
    """The object that sends the requests of a google-genai client; None for any other object."""
    if not any(base.__module__.startswith(_MODULE) for base in type(client).__mro__):
        return None
    api_client = getattr(client, "_api_client", None)
    kind = type(api_client)
    return api_client if all(hasattr(kind, name) for name in (*_NEEDED, *_ATTEMPTS)) else None


def record_api_client(api_client: Any, settings: Settings) -> None:
    """Makes an ``_api_client`` record with these settings, which replace any it had."""
    key = getattr(api_client, "api_key", None)
    if isinstance(key, str):
        credentials.remember(key)
    _recording.put_on(api_client, settings, _methods)


def is_recording(client: object) -> bool:
    """Whether a client of google-genai, or its ``_api_client``, records."""
    return _recording.settings_of(_sender(client)) is not None


def forget_client(client: object) -> None:
    """Undoes ``wrap_google``: the client's ``_api_client`` gets its own class again. Running calls are still recorded.

    A client that is not wrapped, and any other object, stays as it is.
    """
    _recording.take_off(_sender(client))


def _sender(client: object) -> Any:
    return client if _recording.settings_of(client) is not None else api_client_of(client)


def _methods(base: Any, settings: Settings) -> dict[str, Any]:
    @functools.wraps(base.request)
    def request(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with calls.Request(settings, http_method, path) as run:
            result = base.request(self, http_method, path, *args, **kwargs)
        recorder.ended(run.call)
        return result

    @functools.wraps(base.request_streamed)
    def request_streamed(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        # The request is sent with the first item that is read: so does the call begin.
        run = calls.Request(settings, http_method, path)
        chunks = base.request_streamed(self, http_method, path, *args, **kwargs)
        yield from chunks if run.call is None else calls.stream(run, chunks)

    @functools.wraps(base.async_request)
    async def async_request(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with calls.Request(settings, http_method, path) as run:
            result = await base.async_request(self, http_method, path, *args, **kwargs)
        recorder.ended(run.call)
        return result

    @functools.wraps(base.async_request_streamed)
    async def async_request_streamed(self: Any, http_method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with calls.Request(settings, http_method, path) as run:
            chunks = await base.async_request_streamed(self, http_method, path, *args, **kwargs)
        return chunks if run.call is None else calls.stream_async(run.call, chunks, calls.Ender(run.call))

    @functools.wraps(base._request_once)
    def _request_once(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = calls.begin_attempt(self, http_request)
        try:
            result = base._request_once(self, http_request, *args, **kwargs)
        except BaseException as error:
            if call is not None:
                calls.attempt_failed(call, error, calls.content_of_error(error))
            raise
        if call is not None:
            calls.answered(call, result)
        return result

    @functools.wraps(base._async_request_once)
    async def _async_request_once(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = calls.begin_attempt(self, http_request)
        try:
            result = await base._async_request_once(self, http_request, *args, **kwargs)
        except BaseException as error:
            if call is not None:
                calls.attempt_failed(call, error, await calls.content_of_error_async(error))
            raise
        if call is not None:
            calls.answered(call, result)
        return result

    return {
        "request": request,
        "request_streamed": request_streamed,
        "async_request": async_request,
        "async_request_streamed": async_request_streamed,
        "_request_once": _request_once,
        "_async_request_once": _async_request_once,
    }


__all__ = ["api_client_of", "forget_client", "is_recording", "protocol_of", "record_api_client", "wrap_google"]
