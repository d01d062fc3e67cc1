"""One run of a google-genai client's request: its call, and what its attempts bring."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.exchange import content_of, record_head
from rollout_trace.clients.outermost import current, is_inside
from rollout_trace.clients.tee import tee
from rollout_trace.record.call import end

if TYPE_CHECKING:
    from rollout_trace.record.call import Call, Settings

_sending: ContextVar[Call | None] = ContextVar("rollout_trace_google", default=None)
"""The call while its request is sent: the SDK's functions for an attempt have no argument that identifies it."""


class Request:
    """A context manager around the SDK's function that sends a request, with all its attempts."""

    __slots__ = ("_outer", "call")

    def __init__(self, settings: Settings, method: str, path: str) -> None:
        self.call: Call | None = None
        """None where there is nothing to record."""
        self._outer: Call | None = None
        try:
            # An outer layer that records has its own bytes of this request.
            protocol = None if is_inside() else settings.protocol_of(method, path)
            self.call = recorder.begin(settings, protocol, path)
        except Exception as error:
            guard.failed("begin", None, error)

    def __enter__(self) -> Request:
        self._outer = current.get()
        if self.call is not None:
            current.set(self.call)
            _sending.set(self.call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.call is None:
            return
        current.set(self._outer)
        _sending.set(None)
        if error is not None:
            recorder.failed(self.call, error)


def begin_attempt(api_client: Any, http_request: Any) -> Call | None:
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


def attempt_failed(call: Call, error: BaseException, content: bytes | None) -> None:
    """Ends an attempt with the SDK's exception; the SDK may retry.

    Args:
        call: the call being recorded.
        error: as the SDK raised it.
        content: the body of the answer that it is about, if it has been read.
    """
    try:
        response = _response_of(error)
        if response is not None:
            credentials.remember_sent(error)
            recorder.answered(call, response.status_code, response.headers)
            recorder.attempt_failed(call, _Refused(response, content))
            if content is not None:
                recorder.body(call, content)
        else:
            recorder.attempt_failed(call, error)
    except Exception as failure:
        guard.failed("attempt_failed", call, failure)


class _Response:
    """Status, headers and body of an answer, in the names of httpx."""

    def __init__(self, status_code: int, headers: Any, content: bytes | None) -> None:
        self.status_code = status_code
        self.headers = headers
        self.content = content


class _Refused(Exception):
    """Stands for an answer with an error status."""

    def __init__(self, response: _Response, content: bytes | None) -> None:
        super().__init__(f"the server answered with status {response.status_code}.")
        if content is not None:
            response.content = content
        self.response = response


def raw_response(error: BaseException) -> Any:
    """The HTTP library's response behind an exception of the SDK; None where there is none."""
    response = getattr(error, "response", None)
    return getattr(response, "_response", response)


def _response_of(error: BaseException) -> _Response | None:
    response = raw_response(error)
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    if not isinstance(status, int):
        return None
    return _Response(status, response.headers, None)


def content_of_error(error: BaseException) -> bytes | None:
    """The body of the answer that an exception is about, where it is an httpx or requests response that was read."""
    return content_of(response) if hasattr(response := raw_response(error), "status_code") else None


async def content_of_error_async(error: BaseException) -> bytes | None:
    """As ``content_of_error``, of aiohttp's responses too: the SDK has read them, and reads no more."""
    response = raw_response(error)
    if not is_aiohttp(response):
        return content_of_error(error)
    try:
        content: bytes = await response.read()
        return content
    except Exception:
        # Whatever broke the reading off is what the caller is told.
        return None


def answered(call: Call, result: Any) -> None:
    """Records the SDK's ``HttpResponse``: its body, or the HTTP library's response that is still to be read."""
    try:
        content = result.response_stream
        if isinstance(content, list):
            # The SDK has read the body, unpacked and decoded it.
            recorder.answered(call, 200, _Headers(result.headers))
            recorder.body(call, content[0].encode("utf-8", "surrogatepass") if content else b"")
        elif is_aiohttp(content):
            recorder.answered(call, content.status, content.headers)
            call.is_decompressed = True
            # Imported on use: most programs do not have aiohttp.
            from rollout_trace.clients.aiohttp_stream import tee as tee_aiohttp

            tee_aiohttp(content, call)
        elif hasattr(content, "stream"):
            record_head(call, content)
            content.stream = tee(content.stream, call)
        else:
            _tee_requests(content, call)
    except Exception as error:
        guard.failed("answered", call, error)
        # Nothing of the body will be seen.
        recorder.ended(call)


def is_aiohttp(response: object) -> bool:
    """Whether an object is a response of aiohttp."""
    return any(
        base.__name__ == "ClientResponse" and base.__module__.startswith("aiohttp.") for base in type(response).__mro__
    )


class _Headers(dict[str, str]):
    """The SDK's copy of the headers, by lower-case names."""

    def __init__(self, headers: Any) -> None:
        super().__init__((name.lower(), value) for name, value in headers.items())


def _tee_requests(response: Any, call: Call) -> None:
    """Records what is read from a response of requests, which the SDK uses with certificates of the client."""
    recorder.answered(call, response.status_code, response.headers)
    read = response.iter_content

    def iter_content(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        for chunk in read(*args, **kwargs):
            recorder.receive(call, chunk)
            yield chunk
        recorder.finished(call)

    # Its chunks are unpacked already.
    call.is_decompressed = True
    response.iter_content = iter_content


class Ender:
    """Ends a call when the stream that holds it is given up before it was begun."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __del__(self, end: Callable[..., None] = end) -> None:
        # Only marks the call as ended: a finalizer must take no lock. Bound here: when the interpreter ends, the names
        # of this module may be gone.
        end(self._call, GeneratorExit())


def stream(request: Request, chunks: Iterator[Any]) -> Iterator[Any]:
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


async def stream_async(call: Call, chunks: Any, ender: Ender) -> AsyncIterator[Any]:
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


__all__ = ["Ender", "Request", "answered", "attempt_failed", "begin_attempt", "stream", "stream_async"]
