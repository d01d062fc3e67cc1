"""Recording for sessions of requests, which send what no known SDK sends.

The package is not imported. The only method replaced is ``Session.send``, which every request passes through; what
urllib3 tries again below it is one attempt. A body that the caller reads as a stream is recorded by the class of
``response.raw``: ``iter_content``, ``iter_lines``, ``content`` and iteration all read it there.
"""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import credentials
from rollout_trace.clients import recorder
from rollout_trace.clients.detect import POOL_PATIENCE, PoolTimeout
from rollout_trace.clients.http_exchange import HTTPExchange, recorded
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.clients.tee import added_chunks, hide_added
from rollout_trace.record.call import Call, end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rollout_trace.clients.detect import Inquiry, Reply


class _Exchange(HTTPExchange):
    """One prepared request of requests."""

    __slots__ = ()
    _reads_ahead = False

    @staticmethod
    def _content_of(request: Any) -> bytes | None:
        body = request.body
        if isinstance(body, str):
            return body.encode("utf-8", "surrogatepass")
        # None where it is a stream: a file, or an iterator.
        return bytes(body) if isinstance(body, (bytes, bytearray)) else None

    def _with_body(self, request: Any, content: bytes) -> Any:
        changed = request.copy()
        changed.body = content
        changed.headers["Content-Length"] = str(len(content))
        return changed

    def _of_our_own(self, inquiry: Inquiry) -> Any:
        request = super()._of_our_own(inquiry)
        if not inquiry.runs_hooks:
            request.hooks = {}
        return request

    def ask(self, send: Any, client: Any, inquiry: Inquiry, args: Any, kwargs: Any) -> Reply:
        end = time.monotonic() + POOL_PATIENCE
        while _is_starved(client, self._request, kwargs):
            if time.monotonic() >= end:
                raise PoolTimeout
            time.sleep(0.01)
        return super().ask(send, client, inquiry, args, kwargs)

    def _options_of_our_own(self, inquiry: Inquiry) -> dict[str, Any]:
        return {"allow_redirects": False, "stream": False, "timeout": max(0.01, inquiry.deadline - time.monotonic())}

    def _failed(self, error: BaseException) -> None:
        self._remember_sent(error)
        super()._failed(error)

    def _remember_sent(self, response: Any) -> None:
        if (request := getattr(response, "request", None)) is not None:
            credentials.remember_request(request.headers, urlsplit(request.url).query)

    def _read(self, response: Any) -> bytes | None:
        try:
            content: bytes = response.content
            return content
        except Exception:
            # Its caller meets the same where it is read.
            return None

    def _record_body(self, call: Call, response: Any) -> None:
        call.is_decompressed = is_unpacked = _is_unpacked(response)
        if not response._content_consumed:
            # What is read from urllib3's response goes to the call, with its end and its error.
            vars(response.raw)[_TEE] = _Tee(call)
            _teed.put_on(response.raw, None, _methods)
            return
        is_short = _is_short(response.raw)
        record = recorder.body if is_unpacked and not is_short else recorder.receive
        record(call, response.content or b"")
        if not is_short:
            recorder.finished(call)
        recorder.ended(call, ConnectionError(_SHORT) if is_short else None)
        if call.hides:
            hide_added(call, response)


def _is_starved(session: Any, request: Any, options: Mapping[str, Any]) -> bool:
    """Whether all connections of a pool are in use that waits for one without an end: ``pool_block=True``."""
    with suppress(Exception):  # Another adapter, another version.
        of_request = {name: options.get(name, getattr(session, name)) for name in ("verify", "proxies", "cert")}
        pool = session.get_adapter(request.url).get_connection_with_tls_context(request, **of_request)
        return bool(pool.block and pool.pool.empty())
    return False


recorded_send = functools.partial(recorded, _Exchange, "send")

_SHORT = "the connection broke before the end of the body, which the HTTP library does not report."


def _is_short(raw: Any) -> bool:
    """Whether a body that has been read is shorter than announced, of which urllib3 before 2.0 raises nothing."""
    remaining = getattr(raw, "length_remaining", None)
    return isinstance(remaining, int) and remaining > 0


def _is_unpacked(response: Any) -> bool:
    """Whether the caller gets the body without its content encoding.

    urllib3 hands on what it has no decoder for (brotli, zstd) as it is.
    """
    names = [name.strip() for name in response.headers.get("content-encoding", "").lower().split(",")]
    return all(name in ("", *getattr(response.raw, "CONTENT_DECODERS", ())) for name in names)


_TEE = "_rollout_trace_tee"
"""The attribute of a ``response.raw`` that is recorded, until its call has ended."""
_teed: ClassSwap[None] = ClassSwap("_rollout_trace_teed")


class _Tee:
    __slots__ = ("added", "call", "failure", "is_over", "is_reading", "ready")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.added = added_chunks(call)
        """Takes out what is not handed on."""
        self.is_reading = False
        """Whether a method of urllib3 runs, which may call others."""
        self.ready = bytearray()
        """What is to be handed on and was not yet: more has come than its reader asked for."""
        self.is_over = False
        """Nothing more comes."""
        self.failure: BaseException | None = None
        """What the body ended with, to be raised once all of ``ready`` has been read."""

    def begin(self, raw: Any, amt: Any = None, decode_content: Any = None, cache_content: Any = False) -> None:
        """Notes whether what a method of urllib3 reads, with these arguments, is without its content encoding."""
        if not self.call.chunks and not (raw.decode_content if decode_content is None else decode_content):
            self.call.is_decompressed = False
            self.added = added_chunks(self.call)

    def receive(self, data: Any) -> None:
        """Records what was read; what is handed on of it, which may be nothing, goes to ``ready``."""
        if data:
            recorder.receive(self.call, bytes(data))
            self.ready += data if self.added is None else self.added.shown(bytes(data))

    def take(self, raw: Any, size: int | None) -> bytes:
        """The next bytes to hand on, at most ``size``; after the last ones, the failure that the body ended with."""
        if self.failure is not None and not self.ready:
            failure, self.failure = self.failure, None
            self.leave(raw)
            try:
                raise failure
            finally:
                # Its traceback has this frame: the response would not be freed.
                del failure
        found = bytes(self.ready[:size])
        del self.ready[:size]
        self.leave(raw)
        return found

    def finish(self, raw: Any) -> None:
        """Ends the call with the end of the body, unless it has ended with a failure."""
        if not self.is_over and _is_short(raw):
            self.end(raw, ConnectionError(_SHORT))
        elif not self.is_over:
            recorder.finished(self.call)
            self.end(raw)

    def end(self, raw: Any, cut: BaseException | None = None) -> None:
        """Ends the call, and gives the response its own class again unless there is still something to hand on."""
        end(self.call, cut)
        self.is_over = True
        if self.added is not None:
            self.ready += self.added.rest()
        self.leave(raw)

    def leave(self, raw: Any) -> None:
        """Gives the response its own class again, unless there is still something to hand on."""
        if self.is_over and not self.ready and self.failure is None and vars(raw).pop(_TEE, None) is not None:
            _teed.take_off(raw)

    def read(self, raw: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Reads on by a function of urllib3; returns what came: nothing, too, where it failed."""
        self.is_reading = True
        try:
            data = function(*args, **kwargs)
        except Exception as error:
            self.failure = error
            self.end(raw, error)
            return None
        except BaseException as error:
            self.end(raw, error)
            raise
        finally:
            self.is_reading = False
        self.receive(data)
        return data


def _methods(base: Any, _: None) -> dict[str, Any]:
    """The methods of a response that record what is read. It has them until its end."""

    def iterated(name: str) -> Any:
        """A method that yields what it reads."""

        def chunks(self: Any, *args: Any, **kwargs: Any) -> Iterator[bytes]:
            tee: _Tee | None = vars(self).get(_TEE)
            found = getattr(base, name)(self, *args, **kwargs)
            if tee is None or tee.is_reading or (name == "read_chunked" and not self.chunked):
                yield from found
                return
            tee.begin(self, *args, **kwargs)
            # Unpacked, a chunk may be longer than was asked for.
            size = None if tee.added is None else _size(*args, **kwargs)
            try:
                while not tee.is_over or tee.ready or tee.failure is not None:
                    if not (tee.is_over or tee.ready) and tee.read(self, next, found, None) is None:
                        tee.finish(self)
                    if tee.ready or tee.failure is not None:
                        yield tee.take(self, size)
            except GeneratorExit as error:
                found.close()
                # Of some bodies the rest can still be read.
                if self.closed:
                    tee.end(self, error)
                raise

        return chunks

    def returned(name: str) -> Any:
        """A method that returns what it reads."""

        def data(self: Any, *args: Any, **kwargs: Any) -> Any:
            tee: _Tee | None = vars(self).get(_TEE)
            if tee is None or tee.is_reading:
                return getattr(base, name)(self, *args, **kwargs)
            tee.begin(self, *args, **kwargs)
            size = _size(*args, **kwargs)
            is_all = name == "read" and size is None
            while not tee.is_over and (is_all or not tee.ready):
                read = tee.read(self, getattr(base, name), self, *args, **kwargs)
                # From 2.0 on, urllib3 may have unpacked more of a body than it has given, or hold more to unpack.
                is_held = getattr(getattr(self, "_decoder", None), "has_unconsumed_tail", False)
                if self.closed and not (is_held or len(getattr(self, "_decoded_buffer", ()))):
                    tee.finish(self)
                elif not read:
                    break
            return tee.take(self, None if tee.added is None else size)

        return data

    def close(self: Any) -> None:
        tee: _Tee | None = vars(self).get(_TEE)
        # Before it is closed: should that raise, the call has ended all the same.
        if tee is not None and not tee.is_reading:
            tee.end(self)
            tee.ready.clear()
            tee.failure = None
            tee.leave(self)
        base.close(self)

    def __del__(self: Any) -> None:
        # A response that nobody closed. It only marks the call as ended: a finalizer must take no lock.
        tee: _Tee | None = vars(self).get(_TEE)
        if tee is not None:
            end(tee.call, GeneratorExit())
        base.__del__(self)

    methods: dict[str, Any] = {"close": close, "__del__": __del__}
    # urllib3 before 2.0 has no `read1`.
    for ways, kind in ((("stream", "read_chunked"), iterated), (("read", "read1"), returned)):
        methods.update((name, functools.wraps(getattr(base, name))(kind(name))) for name in ways if hasattr(base, name))
    return methods


def _size(amt: Any = None, *args: Any, **kwargs: Any) -> int | None:
    """The most bytes that a method of urllib3, called with these arguments, may give at once; None: any number."""
    return None if amt is None or amt < 0 else amt
