"""Refusals inside streams: vLLM answers a streamed request for too many alternatives with 200 and an error event.

Until a server has taken such a field once, the first chunk of the stream is read before the caller gets the stream: if
it is that error, the call is made again without the field. The caller reads the same chunks either way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.lenient import loads

if TYPE_CHECKING:
    from rollout_trace.record.call import Call


class StreamRefused(Exception):
    """A stream that begins with an error about an added field. The call is made again: no caller gets it."""

    status_code = 400

    def __init__(self, response: Any, content: bytes) -> None:
        super().__init__(error_of(content, 400).message)
        self.response = _Head(response.status_code, response.headers, content)


class _Head:
    def __init__(self, status_code: int, headers: Any, content: bytes) -> None:
        self.status_code = status_code
        self.headers = headers
        self.content = content


def peek(call: Call | None, response: Any) -> None:
    """Reads the first chunk of a response whose stream may begin with a refusal.

    Raises:
        StreamRefused: it does. The response is closed.
    """
    if call is None or call.peeks is None or response.status_code >= 400:
        return
    kind = _kind_of(call, response)
    if kind is None:
        return
    chunks = iter(response.stream)
    stream = kind(response.stream, chunks)
    try:
        stream.first.extend(chunk for _, chunk in zip(range(1), chunks, strict=False))
    except Exception as error:
        # It is the caller's, who gets it where the stream is read.
        stream.error = error
    response.stream = stream
    if (content := _refusal(call, stream.first)) is not None:
        response.close()
        raise StreamRefused(response, content)


async def peek_async(call: Call | None, response: Any) -> None:
    """``peek`` for an async client."""
    if call is None or call.peeks is None or response.status_code >= 400:
        return
    kind = _kind_of(call, response)
    if kind is None:
        return
    chunks = response.stream.__aiter__()
    stream = kind(response.stream, chunks)
    try:
        stream.first.append(await chunks.__anext__())
    except StopAsyncIteration:
        pass
    except Exception as error:
        stream.error = error
    response.stream = stream
    if (content := _refusal(call, stream.first)) is not None:
        await response.aclose()
        raise StreamRefused(response, content)


def check_body(call: Call | None, response: Any, content: bytes) -> None:
    """``peek`` for a response whose body has been read.

    Raises:
        StreamRefused: it begins with a refusal.
    """
    if call is not None and call.peeks is not None and response.status_code < 400:
        found = _refusal(call, [content])
        if found is not None:
            raise StreamRefused(response, found)


def _kind_of(call: Call, response: Any) -> Any:
    try:
        kind: Any = type(response.stream)
        return _peeked_class(kind)
    except Exception as error:
        guard.failed("peek", call, error)
        return None


def _refusal(call: Call, first: list[bytes]) -> bytes | None:
    peeks, call.peeks = call.peeks, None
    content = _error_event(first[0]) if first else None
    return content if first and peeks is not None and peeks(content) else None


def _error_event(chunk: bytes) -> bytes | None:
    """The data of the error event that a stream begins with; None if it begins with something else."""
    head, _, data = chunk[:65536].lstrip().partition(b"\n")[0].partition(b":")
    if head != b"data":
        return None
    try:
        value = loads(data)
    except ValueError:
        return None
    error = value.get("error") if isinstance(value, dict) else None
    return data if isinstance(error, dict) and error.get("code") in (400, 422) else None


class _Peeked:
    def __init__(self, stream: Any, chunks: Any) -> None:
        self._stream = stream
        self._chunks = chunks
        self.first: list[bytes] = []
        """The chunk that was read."""
        self.error: Exception | None = None
        """What reading it raised."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_stream"], name)


class _SyncPeeked(_Peeked):
    def __iter__(self) -> Iterator[bytes]:
        yield from self.first
        if self.error is not None:
            raise self.error
        yield from self._chunks

    def close(self) -> None:
        self._stream.close()


class _AsyncPeeked(_Peeked):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.first:
            yield chunk
        if self.error is not None:
            raise self.error
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@lru_cache(maxsize=16)
def _peeked_class(kind: Any) -> Any:
    for base in kind.__mro__:
        if base.__name__ == "SyncByteStream":
            return type("PeekedStream", (_SyncPeeked, base), {})
        if base.__name__ == "AsyncByteStream":
            return type("PeekedStream", (_AsyncPeeked, base), {})
    raise TypeError(f"a response stream of type {kind.__module__}.{kind.__qualname__} is not one that can be recorded.")


__all__ = ["StreamRefused", "check_body", "peek", "peek_async"]
