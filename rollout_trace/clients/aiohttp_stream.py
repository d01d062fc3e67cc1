"""Recording of the body of a response of aiohttp, as its caller reads it.

While it is read, ``response.content`` has a subclass of its own class. Every way to read it (``read``, ``readline``,
``iter_any``, ``iter_chunks``, ...) ends in one method, ``_read_nowait_chunk``. An object in its place instead would
not be one of aiohttp's class, and have none of the attributes that other libraries use.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

from rollout_trace import guard
from rollout_trace.clients import recorder
from rollout_trace.clients.tee import added_chunks
from rollout_trace.record.call import Call, end

_tees: dict[int, _Tee] = {}
"""By the ``id`` of the stream, which has no place for attributes. An entry is removed before its stream is."""


def tee(response: Any, call: Call) -> None:
    """Passes the body of a response to a call as it is read, with its end and its error."""
    content, body = response.content, getattr(response, "_body", None)
    if body is not None or content.at_eof():
        # Read before its caller gets it, as by a function given as `raise_for_status`; or empty.
        recorder.receive(call, body or b"")
        recorder.finished(call)
        recorder.ended(call)
        return
    kind: Any = type(content)
    one = _tees[id(content)] = _Tee(call)
    content.__class__ = _teed_class(kind, one.added is not None)
    if one.added is not None:
        _feed_again(content)


async def take_error_body(response: Any) -> bytes | None:
    """The body of an error response, which can be read again afterwards; None where reading it fails."""
    content = response.content
    try:
        body: bytes = await content.read()
        # A new stream, as the caller may read it in any way, for which it must not be at its end.
        again = type(content)(content._protocol, max(len(body), 2**16), loop=response._loop)
        again.feed_data(body)
        again.feed_eof()
        response.content = again
        return body
    except Exception:
        # Its caller meets the same where it is read.
        return None
    except BaseException:
        # Cancelled: the caller gets no response that could be closed, and its connection would stay taken.
        response.close()
        raise


def _feed_again(content: Any) -> None:
    """Passes what has arrived already through a stream's own ``feed_data``."""
    arrived, is_whole = [*content._buffer], content._eof
    content._buffer.clear()
    content._size, content._eof = 0, False
    content.total_bytes -= sum(map(len, arrived))
    for data in arrived:
        content.feed_data(data)
    if is_whole:
        content.feed_eof()


class _Tee:
    """What one stream passes to its call."""

    __slots__ = ("added", "call", "interruption")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.added = added_chunks(call)
        """Takes out what is not handed on. Then what arrives is recorded, not what is read."""
        self.interruption: BaseException | None = None
        """What ended the latest reading, which may be tried again: a timeout, or a cancellation."""


def _end(stream: Any, cut: BaseException | None = None, *, is_whole: bool = False) -> None:
    """Ends the call of a stream and gives the stream its own class again."""
    one = _tees.pop(id(stream), None)
    if one is not None:
        if is_whole:
            recorder.finished(one.call)
        end(one.call, None if is_whole else cut or one.interruption)
        stream.__class__ = type(stream).__mro__[1]


def _is_closing(error: BaseException) -> bool:
    """Whether an exception is what ``close`` or ``release`` of a response puts on its stream."""
    return type(error).__name__ == "ClientConnectionError" and error.args == ("Connection closed",)


def _copied(error: BaseException) -> BaseException:
    # Without its traceback, in whose frames the stream is: it would never be freed.
    return type(error)(*error.args)


@lru_cache(maxsize=16)
def _teed_class(base: Any, hides: bool) -> Any:
    """A subclass of a class of streams that records what is read. A stream has it until its end.

    Args:
        base: the stream's own class.
        hides: not all that arrives is handed on.
    """

    def _read_nowait_chunk(self: Any, n: int) -> bytes:
        data: bytes = base._read_nowait_chunk(self, n)
        one = _tees.get(id(self))
        if one is not None:
            try:
                one.interruption = None
                if one.added is None:
                    recorder.receive(one.call, data)
                if self.at_eof():
                    _end(self, is_whole=True)
            except Exception as error:
                guard.failed("receive", one.call, error)
        return data

    async def _wait(self: Any, func_name: str) -> None:
        try:
            await base._wait(self, func_name)
        except (asyncio.CancelledError, asyncio.TimeoutError) as error:
            one = _tees.get(id(self))
            if one is not None:
                one.interruption = _copied(error)
            raise

    def feed_data(self: Any, data: bytes, *args: Any, **kwargs: Any) -> Any:
        if (one := _tees.get(id(self))) is not None:
            recorder.receive(one.call, bytes(data))
            data = one.added.shown(bytes(data))  # type: ignore[union-attr]
        return base.feed_data(self, data, *args, **kwargs)

    def feed_eof(self: Any) -> None:
        one = _tees.get(id(self))
        if one is not None and one.added is not None and (rest := one.added.rest()):
            base.feed_data(self, rest)
        base.feed_eof(self)
        if self.at_eof():
            _end(self, is_whole=True)

    def set_exception(self: Any, exc: BaseException, *args: Any, **kwargs: Any) -> None:
        base.set_exception(self, exc, *args, **kwargs)
        # What has arrived and was not read cannot be read any more.
        _end(self, None if _is_closing(exc) else exc)

    def __del__(self: Any) -> None:
        # A stream that nobody closed. It only marks the call as ended: a finalizer must take no lock.
        one = _tees.pop(id(self), None)
        if one is not None:
            end(one.call, one.interruption or GeneratorExit())

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__, "__slots__": ()}
    reading = {"_read_nowait_chunk": _read_nowait_chunk, "_wait": _wait}
    ends = {"feed_eof": feed_eof, "set_exception": set_exception, "__del__": __del__}
    hiding = {"feed_data": feed_data} if hides else {}
    return type(base)(base.__name__, (base,), names | reading | hiding | ends)


__all__ = ["take_error_body", "tee"]
