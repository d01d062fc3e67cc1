"""A tee on response streams: the caller reads the bytes, and the call gets a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any

from rollout_trace import guard
from rollout_trace.record.call import Call, end
from rollout_trace.wire.added_chunks import AddedChunks


def tee(stream: Any, call: Call, added: AddedChunks | None = None) -> Any:
    """A stream that yields what ``stream`` yields, and passes each chunk, its end and its error to the call.

    It is an instance of the HTTP library's own stream class, since those libraries check for it.

    Args:
        stream: of the response.
        call: or who receives in its place.
        added: takes out what is not handed on, from ``added_chunks``; None: all is.
    """
    kind: Any = type(stream)
    return _tee_class(kind)(stream, call, added)


def added_chunks(call: Call) -> AddedChunks | None:
    """What takes the chunks out of the call's stream that come only because of added fields; None without any.

    A compressed stream is handed on as it is, unless the HTTP library unpacks it before.
    """
    return AddedChunks(call.hides) if call.hides and call.is_text_stream and call.encoding is None else None


def hide_added(call: Call, response: Any) -> None:
    """Takes such chunks out of a body that httpx or requests has read, and unpacked, before its caller gets it."""
    if call.hides and call.is_text_stream:
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
        _exhausted(call)
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
        _exhausted(call)
        if added is not None and (rest := added.rest()):
            yield rest

    async def aclose(self) -> None:
        # As in `SyncTee.close`.
        end(self._call)
        await self._stream.aclose()


def _exhausted(call: Call) -> None:
    try:
        call.eof = True
    except Exception as error:
        guard.failed("end", call, error)
    end(call)


@lru_cache(maxsize=16)
def _tee_class(kind: Any) -> Any:
    for base in kind.__mro__:
        if base.__name__ == "SyncByteStream":
            return type("TeedStream", (SyncTee, base), {})
        if base.__name__ == "AsyncByteStream":
            return type("TeedStream", (AsyncTee, base), {})
    raise TypeError(f"a response stream of type {kind.__module__}.{kind.__qualname__} is not one that can be recorded.")
