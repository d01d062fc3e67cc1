"""Recording for sessions of requests, which send what no known SDK sends.

The package is not imported. The only method replaced is ``Session.send``, which every request passes through; what
urllib3 tries again below it is one attempt. A body that the caller reads as a stream is recorded by the class of
``response.raw``: ``iter_content``, ``iter_lines``, ``content`` and iteration all read it there.
"""

from __future__ import annotations

import functools
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.attempts import HTTPStatusError
from rollout_trace.clients.http_exchange import UnpeekedExchange, begun
from rollout_trace.clients.tee import added_chunks, hide_added
from rollout_trace.record.call import Call, end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from rollout_trace.record.call import Settings


def recorded_request(original: Any, settings: Settings) -> Any:
    """What takes the place of ``Session.send``, in a class or a subclass of it."""

    @functools.wraps(original)
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = begun(_Exchange, request, _url_of, settings)
        if exchange is None:
            with guard.hidden_frame:
                return original(self, request, *args, **kwargs)
        with exchange:
            response = original(self, exchange.next_attempt(), *args, **kwargs)
            while exchange.was_refused(response):
                response = original(self, exchange.next_attempt(), *args, **kwargs)
        exchange.answered(response)
        return response

    return send


_url_of = attrgetter("url")


class _Exchange(UnpeekedExchange):
    """One prepared request of the caller, and the attempts that are sent for it."""

    __slots__ = ("_request",)

    def __init__(self, request: Any) -> None:
        super().__init__(request.method, request.url, request.headers, _content_of(request.body))
        self._request = request

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            _remember_keys(getattr(error, "request", None))
        super().__exit__(kind, error, traceback)

    def next_attempt(self) -> Any:
        """Begins an attempt and returns the request to send: the caller's own if no field is added."""
        return self.begin_attempt(self._request, _with_body)

    def was_refused(self, response: Any) -> bool:
        """Whether a response refuses added fields, which are then removed. Reads an error response to its end."""
        if not self._added or response.status_code < 400:
            return False
        try:
            content = response.content
        except Exception:
            # Its caller meets the same where it is read.
            return False
        return self._drop_refused(response.status_code, content, HTTPStatusError(response))

    def answered(self, response: Any) -> None:
        """Records the response that the caller gets. Its body may be a stream that is still to be read."""
        call = self.call
        if call is None:
            return
        try:
            _remember_keys(response.request)
            redirects = [(one.status_code, one.headers) for one in response.history]
            recorder.answered(call, response.status_code, response.headers, redirects)
            self.learn(response.status_code)
            if response.status_code >= 400:
                # The attempt has failed for its caller too, who may still read why.
                recorder.attempt_failed(call, HTTPStatusError(response))
            is_unpacked = _is_unpacked(response)
            if not response._content_consumed:
                call.is_decompressed = is_unpacked
                _tee(response.raw, call)
            elif _is_short(response.raw):
                call.is_decompressed = is_unpacked
                recorder.receive(call, response.content or b"")
                recorder.ended(call, ConnectionError(_SHORT))
                hide_added(call, response)
            else:
                _whole(call, response.content or b"", is_unpacked=is_unpacked)
                hide_added(call, response)
        except Exception as error:
            guard.failed("answered", call, error)
            # Nothing of the body will be seen.
            recorder.ended(call)


def _whole(call: Call, content: bytes, *, is_unpacked: bool) -> None:
    """Records a body that has been read."""
    if is_unpacked:
        recorder.body(call, content)
    else:
        recorder.receive(call, content)
        recorder.finished(call)
    recorder.ended(call)


_SHORT = "the connection broke before the end of the body, which the HTTP library does not report."


def _is_short(raw: Any) -> bool:
    """Whether a body that has been read is shorter than announced, of which urllib3 before 2.0 raises nothing."""
    remaining = getattr(raw, "length_remaining", None)
    return isinstance(remaining, int) and remaining > 0


def _content_of(body: Any) -> bytes | None:
    """The body of a request as it is sent; None where it is a stream: a file, or an iterator."""
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    return bytes(body) if isinstance(body, (bytes, bytearray)) else None


def _with_body(request: Any, content: bytes) -> Any:
    """A copy of a request with another body."""
    changed = request.copy()
    changed.body = content
    changed.headers["Content-Length"] = str(len(content))
    return changed


def _remember_keys(request: Any) -> None:
    if request is not None:
        credentials.remember_request(request.headers, urlsplit(request.url).query)


def _is_unpacked(response: Any) -> bool:
    """Whether the caller gets the body without its content encoding.

    urllib3 hands on what it has no decoder for (brotli, zstd) as it is.
    """
    names = [name.strip() for name in response.headers.get("content-encoding", "").lower().split(",")]
    return all(name in ("", *getattr(response.raw, "CONTENT_DECODERS", ())) for name in names)


_TEE = "_rollout_trace_tee"
"""The attribute of a ``response.raw`` that is recorded, until its call has ended."""


def _tee(raw: Any, call: Call) -> None:
    """Passes what is read from a response of urllib3 to a call, with its end and its error."""
    kind: Any = type(raw)
    vars(raw)[_TEE] = _Tee(call)
    raw.__class__ = _teed_class(kind)


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

    def begin(self, raw: Any, *args: Any, **kwargs: Any) -> None:
        """Notes whether what is read, with these arguments, is without its content encoding."""
        if not self.call.chunks and not _unpacks(raw, *args, **kwargs):
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
            self._leave(raw)
            try:
                raise failure
            finally:
                # Its traceback has this frame: the response would not be freed.
                del failure
        found = bytes(self.ready[:size])
        del self.ready[:size]
        self._leave(raw)
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
        self._leave(raw)

    def drop(self, raw: Any) -> None:
        """Hands nothing more on: the response is closed."""
        self.ready.clear()
        self.failure = None
        self._leave(raw)

    def _leave(self, raw: Any) -> None:
        if self.is_over and not self.ready and self.failure is None and vars(raw).pop(_TEE, None) is not None:
            raw.__class__ = type(raw).__mro__[1]

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


@lru_cache(maxsize=16)
def _teed_class(base: Any) -> Any:
    """A subclass of a class of responses that records what is read. A response has it until its end."""

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
                if self.closed and not _holds_more(self):
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
            tee.drop(self)
        base.close(self)

    def __del__(self: Any) -> None:
        # A response that nobody closed. It only marks the call as ended: a finalizer must take no lock.
        tee: _Tee | None = vars(self).get(_TEE)
        if tee is not None:
            end(tee.call, GeneratorExit())
        base.__del__(self)

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__, "__slots__": ()}
    methods: dict[str, Any] = {"close": close, "__del__": __del__}
    # urllib3 before 2.0 has no `read1`.
    for ways, kind in ((("stream", "read_chunked"), iterated), (("read", "read1"), returned)):
        methods.update((name, functools.wraps(getattr(base, name))(kind(name))) for name in ways if hasattr(base, name))
    return type(base)(base.__name__, (base,), names | methods)


def _holds_more(raw: Any) -> bool:
    """Whether urllib3, from 2.0 on, has unpacked more of a body than it has given, or holds more to unpack."""
    is_held = getattr(getattr(raw, "_decoder", None), "has_unconsumed_tail", False)
    return bool(is_held or len(getattr(raw, "_decoded_buffer", ())))


def _size(amt: Any = None, *args: Any, **kwargs: Any) -> int | None:
    """The most bytes that a method of urllib3, called with these arguments, may give at once; None: any number."""
    return None if amt is None or amt < 0 else amt


def _unpacks(raw: Any, amt: Any = None, decode_content: Any = None, cache_content: Any = False) -> bool:
    """Whether a method of urllib3 that reads, called with these arguments, undoes the content encoding."""
    return bool(raw.decode_content if decode_content is None else decode_content)


__all__ = ["recorded_request"]
