"""Turns an answer into a response: as JSON or as events, whole, held, cut or compressed."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_trace._python import cached_property
from rollout_trace.clients.loopback.messages import (
    JSON_HEADERS,
    ConnectionCut,
    ConnectionReset,
    ConnectionStalled,
    Part,
    Response,
    cut,
    json_bytes,
)

from .script import Compression, Fault, Reply, reply_of


def compress_parts(parts: Sequence[Part], encoding: Compression) -> list[Part]:
    """Compress the bytes among the parts, flushed after each. Needs brotli for "br", zstandard for "zstd"."""
    step, finish = _ENCODERS[encoding]()
    encoded: list[Part] = [step(part) if isinstance(part, bytes) else part for part in parts]
    return [*encoded, finish()]


def _gzip() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    encoder = zlib.compressobj(wbits=31)
    return (lambda data: encoder.compress(data) + encoder.flush(zlib.Z_SYNC_FLUSH)), encoder.flush


def _brotli() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    encoder = _optional("brotli").Compressor()
    return (lambda data: bytes(encoder.process(data) + encoder.flush())), (lambda: bytes(encoder.finish()))


def _zstd() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    zstandard = _optional("zstandard")
    encoder = zstandard.ZstdCompressor().compressobj()
    block = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return (lambda data: bytes(encoder.compress(data) + encoder.flush(block))), (lambda: bytes(encoder.flush()))


def _optional(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise ImportError(f"this reply asks for a compression that needs `{name}`: pip install {name}") from error


_ENCODERS: dict[Compression, Callable[[], tuple[Callable[[bytes], bytes], Callable[[], bytes]]]] = {
    "gzip": _gzip,
    "br": _brotli,
    "zstd": _zstd,
}


class Holds:
    """Makes responses wait until the test releases them. Permits may be given before a response reaches its hold."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = 0
        self._permits: float = 0
        self._closed = False

    def hold(self) -> None:
        """Wait for a permit; cut the connection if the server closes meanwhile."""
        with self._changed:
            self._held += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._permits > 0)
            self._held -= 1
            self._permits = max(0, self._permits - 1)
            self._changed.notify_all()
            if self._closed:
                raise ConnectionCut

    def release(self, count: int | None) -> None:
        """Continue `count` responses, or all (now and later) if None."""
        with self._changed:
            self._permits += math.inf if count is None else count
            self._changed.notify_all()

    def wait_held(self, count: int, timeout: float) -> None:
        """Wait until `count` responses are held. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held >= count, timeout):
                raise TimeoutError(f"after {timeout} s {self._held} responses are held; expected {count}")

    def close(self) -> None:
        """End every hold by cutting its connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


_DONE = b"data: [DONE]\n\n"
_BROKEN = b'{"id": "broken", "choices": [{'
BREAKS = "the script breaks this stream"


@dataclass(frozen=True)
class Pace:
    """Speed of one answer."""

    first_token: float = 0.0  # seconds before it
    per_token: float = 0.0  # seconds between tokens


class _Clock:
    """Waits until points in time, not for spans: a pause that took too long makes the next one shorter."""

    def __init__(self, wait: Callable[[float], None]) -> None:
        self._wait = wait
        self._due: float | None = None

    def restart(self) -> None:
        """Count from now: what a test held back is not made up for."""
        self._due = None

    def after(self, seconds: float) -> Callable[[], None]:
        """Returns a pause that ends this many seconds after the end of the previous one."""

        def pause() -> None:
            now = time.monotonic()
            self._due = (now if self._due is None else self._due) + seconds
            if self._due > now:
                self._wait(self._due - now)

        return pause


@dataclass(frozen=True)
class Delivery:
    """Builds the response of one answer. `hold` and `wait` are the server's functions to pause."""

    answer: Reply | Fault
    hold: Callable[[], None]
    wait: Callable[[float], None]
    pace: Pace = Pace()
    chunk_bytes: int | None = None
    tokens: int = 0  # that the answer takes the time of

    @property
    def fault(self) -> Fault:
        return self.answer if isinstance(self.answer, Fault) else Fault(self.answer)

    def _held(self) -> None:
        self.hold()
        self._clock.restart()

    @cached_property
    def _clock(self) -> _Clock:
        return _Clock(self.wait)

    def error(self, usual: object) -> Response:
        """The error response of a fault with a status. `usual`: the body, where the fault has none."""
        body = usual if self.fault.body is None else self.fault.body
        data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json_bytes(body)
        return Response(self.fault.status or 500, self._headers(JSON_HEADERS), [data], before=self._pauses(0))

    def json(self, value: object) -> Response:
        """An unstreamed answer."""
        data = _BROKEN if self.fault.bad_json else json_bytes(value)
        parts = self._with_faults([data], [data[at : at + 1] for at in range(len(data))])
        return self._response("application/json", parts, chunked=False)

    def events(self, values: Iterable[Mapping[str, Any]], *, named: bool = False) -> Response:
        """A stream of server-sent events. `named`: with `event:` lines and without `[DONE]`, as the Responses API."""
        events = [(f"event: {v['type']}\n".encode() if named else b"") + sse(json_bytes(v)) for v in values]
        error = sse(json_bytes(vllm_error(500, BREAKS, "InternalServerError")))
        end = b"" if named or self.fault.no_done else _DONE
        return self.stream(events, sse(_BROKEN), error, "text/event-stream; charset=utf-8", end=end)

    def stream(
        self,
        items: list[bytes],
        broken: bytes,
        error: bytes,
        content_type: str,
        *,
        frame: Callable[[int, bytes], bytes] | None = None,
        end: bytes = b"",
    ) -> Response:
        """A streamed answer of items: ``frame`` says what is sent of each by its number, and ``end`` comes after all.

        A fault puts ``broken``, which is no JSON, or ``error``, which ends the stream, among them.
        """
        if self.fault.bad_json:
            items.insert(1, broken)
        if self.fault.error_event_after is not None:
            items[self.fault.error_event_after :] = [error]
        pieces = items if frame is None else [frame(at, item) for at, item in enumerate(items)]
        pieces = [*pieces, end] if end else pieces
        return self._response(content_type, self._with_faults(pieces, pieces), chunked=True)

    def _with_faults(self, whole: Sequence[bytes], pieces: Sequence[bytes]) -> list[Part]:
        """Insert what the fault does between the pieces, at its counts."""
        fault = self.fault
        places: list[tuple[int | None, Callable[[], None]]] = [
            (fault.hold_after, self._held),
            (fault.cut_after, _reset if fault.reset else cut),
            (fault.stall_after, _stall),
        ]
        found = [(place, action) for place, action in places if place is not None]
        if not found:
            return list(whole)
        parts: list[Part] = []
        begin = 0
        for place, action in sorted(found, key=lambda item: item[0]):
            parts += [*_as_parts(whole, pieces[begin:place]), action]
            begin = min(place, len(pieces))
        return parts + _as_parts(whole, pieces[begin:])

    def _response(self, content_type: str, parts: list[Part], *, chunked: bool) -> Response:
        reply = reply_of(self.answer)
        headers = self._headers([("content-type", content_type)])
        if chunked:
            parts = self._paced(parts)
        if reply.compress is not None:
            parts = compress_parts(parts, reply.compress)
            headers.append(("content-encoding", reply.compress))
        pauses = self._pauses(0.0 if chunked else self.tokens * self.pace.per_token)
        size = reply.chunk_bytes or self.chunk_bytes
        if size is not None:
            parts, chunked = _split(parts, size), True
        return Response(200, headers, parts, chunked, pauses)

    def _paced(self, parts: list[Part]) -> list[Part]:
        """The chunks of a stream with the time between them: that of all tokens, evenly."""
        chunks = sum(isinstance(part, bytes) for part in parts)
        seconds = self.fault.chunk_delay + self.tokens * self.pace.per_token / max(1, chunks - 1)
        if not seconds or chunks < 2:
            return parts
        paced: list[Part] = []
        for part in parts:
            if isinstance(part, bytes) and any(isinstance(one, bytes) for one in paced):
                paced.append(self._clock.after(seconds))
            paced.append(part)
        return paced

    def _headers(self, usual: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        extra = [*reply_of(self.answer).headers.items(), *self.fault.headers.items()]
        return list((dict(usual) | {name.lower(): value for name, value in extra}).items())

    def _pauses(self, tokens: float) -> list[Callable[[], None]]:
        """Returns the pauses before the head. `tokens`: seconds that the tokens of an unstreamed answer take."""
        fault = self.fault
        # Also where it is no time at all: the clock of the chunks begins here.
        pauses: list[Callable[[], None]] = [self._clock.after(self.pace.first_token + fault.delay + tokens)]
        if fault.hold:
            pauses.append(self._held)
        if fault.stall:
            pauses.append(_stall)
        if fault.reset and fault.cut_after is None:
            pauses.append(_reset)
        return pauses


def vllm_error(status: int, message: str, kind: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error object as vLLM sends it."""
    kinds = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 500: "InternalServerError"}
    return {"error": {"message": message, "type": kind or kinds.get(status, "Error"), "param": param, "code": status}}


def sse(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def _reset() -> None:
    raise ConnectionReset


def _stall() -> None:
    raise ConnectionStalled


def _as_parts(whole: Sequence[bytes], pieces: Sequence[bytes]) -> list[Part]:
    # a JSON body is one piece per byte for counting only: it is not sent byte by byte
    return [b"".join(pieces)] if len(whole) == 1 else list(pieces)


def _split(parts: Sequence[Part], size: int) -> list[Part]:
    """Cut the bytes between the pauses into pieces of `size`, ignoring the boundaries of parts."""
    result: list[Part] = []
    run = b""
    for part in parts:
        if isinstance(part, bytes):
            run += part
            continue
        result += [run[at : at + size] for at in range(0, len(run), size)]
        result.append(part)
        run = b""
    return result + [run[at : at + size] for at in range(0, len(run), size)]
