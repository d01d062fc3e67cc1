"""Recording for lm15, the model client inside dspy, which speaks HTTP on plain sockets.

Nothing is imported. Two methods are replaced, which every request passes through: ``StdlibTransport.stream`` and
``StdlibAsyncTransport._do_stream`` (``stream`` itself gives a context manager that only calls it). What these send a
second time, because an idle connection was closed, is one attempt.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.attempts import HTTPStatusError, ResponseHead
from rollout_trace.clients.http_exchange import HTTPExchange, begun
from rollout_trace.clients.tee import AsyncTee, SyncTee, added_chunks
from rollout_trace.record.call import Call, end

if TYPE_CHECKING:
    from rollout_trace.record.call import Settings


def recorded_stream(original: Any, settings: Settings) -> Any:
    """What takes the place of ``StdlibTransport.stream``."""

    @functools.wraps(original)
    def stream(self: Any, request: Any) -> Any:
        exchange = begun(_Exchange, request, _url_of, settings)
        if exchange is None:
            with guard.hidden_frame:
                return original(self, request)
        with exchange:
            response = original(self, exchange.next_attempt())
            while exchange.may_be_refused(response) and exchange.was_refused(response, _read(response)):
                response.close()
                response = original(self, exchange.next_attempt())
        exchange.answered(response, is_async=False)
        return response

    return stream


def recorded_stream_async(original: Any, settings: Settings) -> Any:
    """What takes the place of ``StdlibAsyncTransport._do_stream``."""

    @functools.wraps(original)
    async def stream(self: Any, request: Any) -> Any:
        exchange = begun(_Exchange, request, _url_of, settings)
        if exchange is None:
            with guard.hidden_frame:
                return await original(self, request)
        with exchange:
            response = await original(self, exchange.next_attempt())
            while exchange.may_be_refused(response) and exchange.was_refused(response, await _read_async(response)):
                await response.aclose()
                response = await original(self, exchange.next_attempt())
        exchange.answered(response, is_async=True)
        return response

    return stream


_url_of = attrgetter("url")


class _Exchange(HTTPExchange):
    """One request of the caller, and the attempts that are sent for it."""

    __slots__ = ("_request",)

    def __init__(self, request: Any) -> None:
        super().__init__(request.method, request.url, _by_name(request.headers), bytes(request.body))
        self._request = request

    def next_attempt(self) -> Any:
        """Begins an attempt and returns the request to send: the caller's own if no field is added."""
        return self.begin_attempt(self._request, _with_body)

    def may_be_refused(self, response: Any) -> bool:
        """Whether the body of a response has to be read, to see if it refuses added fields."""
        return bool(self._added) and response.status >= 400

    def was_refused(self, response: Any, content: bytes | None) -> bool:
        """Whether a response refuses added fields, which are then removed."""
        head = ResponseHead(response.status, _by_name(response.headers))
        return self._drop_refused(response.status, content, HTTPStatusError(head))

    def answered(self, response: Any, *, is_async: bool) -> None:
        """Records the response that the caller gets. Its body is still to be read."""
        call = self.call
        if call is None:
            return
        try:
            credentials.remember_request(self.headers, urlsplit(self.url).query)
            headers = _by_name(response.headers)
            recorder.answered(call, response.status, headers)
            self.learn(response.status)
            if response.status >= 400:
                # The attempt has failed for its caller too, who may still read why.
                recorder.attempt_failed(call, HTTPStatusError(ResponseHead(response.status, headers)))
            # Its chunks have no content encoding any more.
            call.is_decompressed = True
            response._chunks = (AsyncTee if is_async else SyncTee)(response._chunks, call, added_chunks(call))
            response._release = (_ended_async if is_async else _ended)(response._release, call)
        except Exception as error:
            guard.failed("answered", call, error)
            # Nothing of the body will be seen.
            recorder.ended(call)


def _ended(release: Any, call: Call) -> Any:
    """The function that gives a response's connection back, which ends its call too."""

    def released(body_consumed: bool) -> None:
        end(call)
        release(body_consumed)

    return released


def _ended_async(release: Any, call: Call) -> Any:
    async def released(body_consumed: bool) -> None:
        end(call)
        await release(body_consumed)

    return released


def _read(response: Any) -> bytes | None:
    """The body of a response, which stays there for its reader; None where it broke off."""
    parts: list[bytes] = []
    try:
        parts.extend(response._chunks)
    except Exception as error:
        response._chunks = _again(parts, error)
        return None
    response._chunks = _again(parts)
    return b"".join(parts)


async def _read_async(response: Any) -> bytes | None:
    parts: list[bytes] = []
    try:
        async for chunk in response._chunks:
            parts.append(chunk)
    except Exception as error:
        response._chunks = _again_async(parts, error)
        return None
    response._chunks = _again_async(parts)
    return b"".join(parts)


def _again(parts: Iterable[bytes], error: Exception | None = None) -> Iterator[bytes]:
    """Chunks that have been read, for whoever reads them next, and how they ended."""
    yield from parts
    if error is not None:
        raise error


async def _again_async(parts: Iterable[bytes], error: Exception | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if error is not None:
        raise error


def _by_name(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _with_body(request: Any, content: bytes) -> Any:
    """The same request with another body, whose length the transport adds."""
    headers = [(name, value) for name, value in request.headers if name.lower() != "content-length"]
    return dataclasses.replace(request, headers=headers, body=content)


__all__ = ["recorded_stream", "recorded_stream_async"]
