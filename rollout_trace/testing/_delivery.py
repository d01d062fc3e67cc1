"""Turns an answer into a response: as JSON or as events, whole, held, cut or compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._compress import compress_parts
from ._messages import JSON_HEADERS, ConnectionCut, Part, Response, json_bytes
from .script import Fault, Reply, reply_of

_DONE = b"data: [DONE]\n\n"
_BROKEN = b'{"id": "broken", "choices": [{'


@dataclass(frozen=True)
class Delivery:
    """Builds the response of one answer. `hold` and `wait` are the server's functions to pause."""

    answer: Reply | Fault
    hold: Callable[[], None]
    wait: Callable[[float], None]
    delay: float
    chunk_bytes: int | None

    @property
    def fault(self) -> Fault:
        return self.answer if isinstance(self.answer, Fault) else Fault(self.answer)

    def error(self) -> Response:
        """The error response of a fault with a status."""
        status, body = self.fault.status or 500, self.fault.body
        if body is None:
            body = vllm_error(status, f"the script answers with status {status}")
        data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json_bytes(body)
        return Response(status, self._headers(JSON_HEADERS), [data], before=self._pauses())

    def json(self, value: object) -> Response:
        """An unstreamed answer."""
        data = _BROKEN if self.fault.bad_json else json_bytes(value)
        return self._response("application/json", self._with_faults([data], list(map(_one_byte, data))), chunked=False)

    def events(self, values: Iterable[Mapping[str, Any]], *, named: bool = False) -> Response:
        """A stream of server-sent events. `named`: with `event:` lines and without `[DONE]`, as the Responses API."""
        events = [(f"event: {v['type']}\n".encode() if named else b"") + sse(json_bytes(v)) for v in values]
        if self.fault.bad_json:
            events.insert(1, sse(_BROKEN))
        after = self.fault.error_event_after
        if after is not None:
            events[after:] = [sse(json_bytes(vllm_error(500, "the script breaks this stream", "InternalServerError")))]
        if not (named or self.fault.no_done):
            events.append(_DONE)
        parts = self._with_faults(events, events)
        return self._response("text/event-stream; charset=utf-8", parts, chunked=True)

    def _with_faults(self, whole: Sequence[bytes], pieces: Sequence[bytes]) -> list[Part]:
        """Insert the hold and the cut between the pieces, at the counts of the fault."""
        places: list[tuple[int, Callable[[], None]]] = []
        if self.fault.hold_after is not None:
            places.append((self.fault.hold_after, self.hold))
        if self.fault.cut_after is not None:
            places.append((self.fault.cut_after, _cut))
        if not places:
            return list(whole)
        parts: list[Part] = []
        begin = 0
        for place, action in sorted(places, key=lambda item: item[0]):
            parts += [*_as_parts(whole, pieces[begin:place]), action]
            begin = min(place, len(pieces))
        return parts + _as_parts(whole, pieces[begin:])

    def _response(self, content_type: str, parts: list[Part], *, chunked: bool) -> Response:
        reply = reply_of(self.answer)
        headers = self._headers([("content-type", content_type)])
        if reply.compress is not None:
            parts = compress_parts(parts, reply.compress)
            headers.append(("content-encoding", reply.compress))
        size = reply.chunk_bytes or self.chunk_bytes
        if size is not None:
            parts, chunked = _split(parts, size), True
        return Response(200, headers, parts, chunked, self._pauses())

    def _headers(self, usual: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        extra = [*reply_of(self.answer).headers.items(), *self.fault.headers.items()]
        return list((dict(usual) | {name.lower(): value for name, value in extra}).items())

    def _pauses(self) -> list[Callable[[], None]]:
        seconds = self.delay + self.fault.delay
        pauses: list[Callable[[], None]] = [lambda: self.wait(seconds)] if seconds else []
        return [*pauses, self.hold] if self.fault.hold else pauses


def vllm_error(status: int, message: str, kind: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error object as vLLM sends it."""
    kinds = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 500: "InternalServerError"}
    return {"error": {"message": message, "type": kind or kinds.get(status, "Error"), "param": param, "code": status}}


def sse(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def _one_byte(value: int) -> bytes:
    return bytes([value])


def _cut() -> None:
    raise ConnectionCut


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
