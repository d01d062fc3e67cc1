"""Response streams of httpx and httpx2: the caller reads the bytes, and the call gets a copy.

``read_ahead`` looks for refusals inside streams. vLLM answers a streamed request for too many alternatives with 200 and
an error event. Until a server has taken such a field once, the first line of the stream is read before the caller gets
the stream: if it is that error, the call is made again without the field. The caller reads the same chunks either way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from rollout_trace import guard
from rollout_trace.clients.recorder import ResponseHead, content_of
from rollout_trace.record.call import Call, end
from rollout_trace.wire.added_chunks import AddedChunks
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.lenient import loads

_LONGEST_HEAD = 65536
"""Most bytes of a stream that are searched for an error event."""


def tee(stream: Any, call: Call, added: AddedChunks | None = None) -> Any:
    """A stream that yields what ``stream`` yields, and passes each chunk, its end and its error to the call.

    It is an instance of the HTTP library's own stream class, since those libraries check for it. ``added`` takes out
    what is not handed on; None: all is.
    """
    kind: Any = type(stream)
    return _stream_class(kind, "TeedStream", SyncTee, AsyncTee)(stream, call, added)


def added_chunks(call: Call) -> AddedChunks | None:
    """What takes the chunks out of the call's stream that come only because of added fields; None without any.

    A compressed stream is handed on as it is, unless the HTTP library unpacks it before.
    """
    return AddedChunks(call.hides) if call.hides and call.is_text_stream and call.encoding is None else None


def hide_added(call: Call, response: Any) -> None:
    """Takes what ``call.hides`` names out of a body that httpx or requests has read, and unpacked, for its caller."""
    if call.is_text_stream:
        added = AddedChunks(call.hides)
        response._content = added.shown(response._content) + added.rest()


class _Tee:
    def __init__(self, stream: Any, call: Call, added: AddedChunks | None) -> None:
        self._stream = stream
        self._call = call
        self._added = added

    def __getattr__(self, name: str) -> Any:
        # SDKs look up attributes of their own on a response's stream. `__dict__`: `self._stream` would recurse for ever
        # on an object without it (a copy that is being made).
        return getattr(self.__dict__["_stream"], name)

    def __del__(self) -> None:
        # A stream that nobody closed. It only marks the call as ended: a finalizer must take no lock.
        end(self._call, GeneratorExit())


class SyncTee(_Tee):
    """A tee on chunks that are iterated."""

    def __iter__(self) -> Iterator[bytes]:
        call, added = self._call, self._added
        try:
            for chunk in self._stream:
                try:
                    call.receive(chunk)
                except Exception as error:
                    guard.failed("receive", call, error)
                if added is None or (chunk := added.shown(chunk)):
                    yield chunk
        # GeneratorExit too: the reader stopped early.
        except BaseException as error:
            end(call, error)
            if added is not None and isinstance(error, Exception) and (rest := added.rest()):
                yield rest
            raise
        call.eof = True
        end(call)
        if added is not None and (rest := added.rest()):
            yield rest

    def close(self) -> None:
        # Before the stream is closed: should that raise, the call has ended all the same.
        end(self._call)
        self._stream.close()


class AsyncTee(_Tee):
    """A tee on chunks that are iterated asynchronously."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        call, added = self._call, self._added
        try:
            async for chunk in self._stream:
                try:
                    call.receive(chunk)
                except Exception as error:
                    guard.failed("receive", call, error)
                if added is None or (chunk := added.shown(chunk)):
                    yield chunk
        except BaseException as error:
            end(call, error)
            if added is not None and isinstance(error, Exception) and (rest := added.rest()):
                yield rest
            raise
        call.eof = True
        end(call)
        if added is not None and (rest := added.rest()):
            yield rest

    async def aclose(self) -> None:
        # As in `SyncTee.close`.
        end(self._call)
        await self._stream.aclose()


@lru_cache(maxsize=32)
def _stream_class(kind: Any, name: str, sync: Any, async_: Any) -> Any:
    """A subclass of ours and of the library's base class of streams."""
    for base in kind.__mro__:
        if base.__name__ == "SyncByteStream":
            return type(name, (sync, base), {})
        if base.__name__ == "AsyncByteStream":
            return type(name, (async_, base), {})
    raise TypeError(f"a response stream of type {kind.__module__}.{kind.__qualname__} cannot be recorded.")


class Ender:
    """Ends a call when the generator that holds it is given up before it was begun."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __del__(self, end: Callable[..., None] = end) -> None:
        # Only marks the call as ended: a finalizer must take no lock. Bound here: when the interpreter ends, the names
        # of this module may be gone.
        end(self._call, GeneratorExit())


class StreamRefused(Exception):
    """A stream that begins with an error about an added field. The call is made again: no caller gets it."""

    status_code = 400

    def __init__(self, response: Any, content: bytes) -> None:
        super().__init__(error_of(content, 400).message)
        self.response = ResponseHead(response.status_code, response.headers, content)


def read_ahead(call: Call | None, response: Any) -> None:
    """Reads the first line of a response whose stream may begin with a refusal.

    Raises:
        StreamRefused: it does. The response is closed.
    """
    stream = _ahead(call, response, iter)
    if call is None or stream is None:
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


async def read_ahead_async(call: Call | None, response: Any) -> None:
    """``read_ahead`` for an async client."""
    stream = _ahead(call, response, lambda stream: stream.__aiter__())
    if call is None or stream is None:
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


def _ahead(call: Call | None, response: Any, iterate: Callable[[Any], Any]) -> _ReadAhead | None:
    """The response's stream, exchanged for one whose first chunks can be read early; None where none is to be.

    Raises:
        StreamRefused: the body has been read, as that of a stream that its caller wants as a whole, and is a refusal.
    """
    if call is None or call.peeks is None or response.status_code >= 400:
        return None
    if (content := content_of(response)) is not None:
        if (found := _refusal(call, content)) is not None:
            raise StreamRefused(response, found)
        return None
    try:
        kind: Any = type(response.stream)
        made = _stream_class(kind, "ReadAheadStream", _SyncReadAhead, _AsyncReadAhead)
        stream: _ReadAhead = made(response.stream, iterate(response.stream))
        response.stream = stream
        return stream
    except Exception as error:
        guard.failed("peek", call, error)
        return None


def _refusal(call: Call, head: bytes | bytearray) -> bytes | None:
    """The data of the error event that a stream begins with, where that may be a refusal of an added field."""
    peeks, call.peeks = call.peeks, None
    if not head or peeks is None:
        return None
    name, _, data = bytes(head[:_LONGEST_HEAD]).lstrip().partition(b"\n")[0].partition(b":")
    content = error = None
    if name == b"data":
        with suppress(ValueError):
            value = loads(data)
            error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict) and error.get("code") in (400, 422):
        content = data
    return content if peeks(content) else None


class _ReadAhead:
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


class _SyncReadAhead(_ReadAhead):
    def __iter__(self) -> Iterator[bytes]:
        yield from self.first
        if self.error is not None:
            raise self.error
        yield from self.chunks

    def close(self) -> None:
        self._stream.close()


class _AsyncReadAhead(_ReadAhead):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.first:
            yield chunk
        if self.error is not None:
            raise self.error
        async for chunk in self.chunks:
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
