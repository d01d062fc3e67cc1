"""Recording for lm15, the model client inside dspy, which speaks HTTP on plain sockets.

Nothing is imported. Two methods are replaced, which every request passes through: ``StdlibTransport.stream`` and
``StdlibAsyncTransport._do_stream`` (``stream`` itself gives a context manager that only calls it). What these send a
second time, because an idle connection was closed, is one attempt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import credentials
from rollout_trace.clients.http_exchange import HTTPExchange, recorded, recorded_async
from rollout_trace.clients.recorder import ResponseHead
from rollout_trace.clients.tee import AsyncTee, SyncTee, added_chunks
from rollout_trace.record.call import Call, end

if TYPE_CHECKING:
    from typing_extensions import Self


class _Exchange(HTTPExchange):
    """One request of lm15."""

    __slots__ = ()

    @classmethod
    def of(cls, request: Any) -> Self:
        """The exchange of a request."""
        return cls(request, request.method, request.url, _by_name(request.headers), bytes(request.body))

    def _with_body(self, request: Any, content: bytes) -> Any:
        # Without its length, which the transport adds.
        headers = [(name, value) for name, value in request.headers if name.lower() != "content-length"]
        return dataclasses.replace(request, headers=headers, body=content)

    def was_refused(self, response: Any) -> bool:
        """Whether a response refuses added fields, which are then removed; then it is closed."""
        is_refused = super().was_refused(response)
        if is_refused:
            response.close()
        return is_refused

    async def was_refused_async(self, response: Any) -> bool:
        """``was_refused`` for an async client."""
        is_refused = await super().was_refused_async(response)
        if is_refused:
            await response.aclose()
        return is_refused

    def _head(self, response: Any, content: bytes | None = None) -> Any:
        return ResponseHead(response.status, _by_name(response.headers))

    def _remember_sent(self, response: Any) -> None:
        credentials.remember_request(self.headers, urlsplit(self.url).query)

    def _read(self, response: Any) -> bytes | None:
        parts: list[bytes] = []
        failure = None
        try:
            parts.extend(response._chunks)
        except Exception as error:
            failure = error
        response._chunks = _again(parts, failure)
        return b"".join(parts) if failure is None else None

    async def _read_async(self, response: Any) -> bytes | None:
        parts: list[bytes] = []
        failure = None
        try:
            async for chunk in response._chunks:
                parts.append(chunk)
        except Exception as error:
            failure = error
        response._chunks = _again_async(parts, failure)
        return b"".join(parts) if failure is None else None

    def _record_body(self, call: Call, response: Any) -> None:
        # Its chunks have no content encoding any more.
        call.is_decompressed = True
        is_async = hasattr(response._chunks, "__aiter__")
        response._chunks = (AsyncTee if is_async else SyncTee)(response._chunks, call, added_chunks(call))
        release = response._release

        def released(body_consumed: bool) -> Any:
            """Gives the connection back, which ends the call too. Of an async response, a coroutine."""
            end(call)
            return release(body_consumed)

        response._release = released


recorded_stream = partial(recorded, _Exchange, "stream")
recorded_stream_async = partial(recorded_async, _Exchange, "_do_stream")


def _again(parts: Iterable[bytes], error: Exception | None) -> Iterator[bytes]:
    """Chunks that have been read, for whoever reads them next, and how they ended."""
    yield from parts
    if error is not None:
        raise error


async def _again_async(parts: Iterable[bytes], error: Exception | None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if error is not None:
        raise error


def _by_name(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}
