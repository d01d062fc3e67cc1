"""Refusals inside streams: vLLM answers a streamed request for too many alternatives with 200 and an error event.

Until a server has taken such a field once, the first line of the stream is read before the caller gets the stream: if
it is that error, the call is made again without the field. The caller reads the same chunks either way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.clients.exchange import content_of
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.lenient import loads

if TYPE_CHECKING:
    from rollout_trace.record.call import Call

_LONGEST_HEAD = 65536
"""Most bytes of a stream that are searched for an error event."""


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
    """Reads the first line of a response whose stream may begin with a refusal.

    Raises:
        StreamRefused: it does. The response is closed.
    """
    if call is None or call.peeks is None or response.status_code >= 400 or _was_read(call, response):
        return
    stream = _peeked(call, response, iter)
    if stream is None:
        return
    try:
        for chunk in stream.chunks:
            if stream.add(chunk):
                break
    except Exception as error:
        # It is the caller's, who gets it where the stream is read.
        stream.error = error
    except BaseException:
        # The caller gets no response that could be closed.
        response.close()
        raise
    if (content := _refusal(call, stream.head)) is not None:
        response.close()
        raise StreamRefused(response, content)


async def peek_async(call: Call | None, response: Any) -> None:
    """``peek`` for an async client."""
    if call is None or call.peeks is None or response.status_code >= 400 or _was_read(call, response):
        return
    stream = _peeked(call, response, lambda stream: stream.__aiter__())
    if stream is None:
        return
    try:
        async for chunk in stream.chunks:
            if stream.add(chunk):
                break
    except Exception as error:
        stream.error = error
    except BaseException:
        await response.aclose()
        raise
    if (content := _refusal(call, stream.head)) is not None:
        await response.aclose()
        raise StreamRefused(response, content)


def _was_read(call: Call, response: Any) -> bool:
    """Whether the body has been read, as of a stream that its caller wants as a whole; then that is checked."""
    content = content_of(response)
    if content is None:
        return False
    if (found := _refusal(call, content)) is not None:
        raise StreamRefused(response, found)
    return True


def _peeked(call: Call, response: Any, iterate: Callable[[Any], Any]) -> Any:
    """The response's stream, exchanged for one whose first chunks can be read early; None where it cannot be."""
    try:
        kind: Any = type(response.stream)
        response.stream = _peeked_class(kind)(response.stream, iterate(response.stream))
        return response.stream
    except Exception as error:
        guard.failed("peek", call, error)
        return None


def _refusal(call: Call, head: bytes | bytearray) -> bytes | None:
    peeks, call.peeks = call.peeks, None
    if not head or peeks is None:
        return None
    content = _error_event(bytes(head[:_LONGEST_HEAD]))
    return content if peeks(content) else None


def _error_event(head: bytes) -> bytes | None:
    """The data of the error event that a stream begins with; None if it begins with something else."""
    name, _, data = head.lstrip().partition(b"\n")[0].partition(b":")
    if name != b"data":
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
        self.chunks = chunks
        self.first: list[bytes] = []
        """The chunks that were read: one, unless the first line goes on in the next."""
        self.head = bytearray()
        """The same, as one."""
        self.error: Exception | None = None
        """What reading them raised."""

    def add(self, chunk: bytes) -> bool:
        """Adds a chunk. True once the first line is whole, or cannot be that of an error event."""
        self.first.append(chunk)
        self.head += chunk
        begins_event = b"data:".startswith(self.head[:5])
        return b"\n" in chunk or not begins_event or len(self.head) > _LONGEST_HEAD

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_stream"], name)


class _SyncPeeked(_Peeked):
    def __iter__(self) -> Iterator[bytes]:
        yield from self.first
        if self.error is not None:
            raise self.error
        yield from self.chunks

    def close(self) -> None:
        self._stream.close()


class _AsyncPeeked(_Peeked):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.first:
            yield chunk
        if self.error is not None:
            raise self.error
        async for chunk in self.chunks:
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


__all__ = ["StreamRefused", "peek", "peek_async"]
