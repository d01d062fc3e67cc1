"""Requests and responses of the loopback servers."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

JSON_HEADERS = (("content-type", "application/json"),)
Part = bytes | Callable[[], None]
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "trailer"})
"""Headers of a connection or of how a body is sent: a server sends its own."""
ORIGIN_HEADER = "x-rollout-trace-origin"
"""Header of a redirected request: scheme, host and port of where it was going."""
SECRET_HEADER = "x-rollout-trace-secret"
"""Header of a program that cannot have the secret in its address."""
CALL_HEADER = "x-rollout-trace-call"
"""Header of a redirected request that is an attempt of a recorded call: ``PID/CALL``. A forked process has its own."""


class ConnectionCut(Exception):
    """Raised by a part of a response to close the connection there, without a proper end."""


class ConnectionReset(ConnectionCut):
    """Raised to reset the connection (RST)."""


class ConnectionStalled(ConnectionCut):
    """Raised to send nothing more until the client leaves, or the server closes."""


@dataclass
class RequestRecord:
    """One request and its answer, filled in while it is served and final once `LoopbackServer.wait_idle` returns."""

    index: int
    """Order in which requests began, from 0."""
    connection: int
    """Number of the TCP connection that the request came on, from 0."""
    method: str
    """HTTP method."""
    path: str
    """Path of the request, without the query."""
    query: str
    """Query of the request, without the question mark."""
    headers: dict[str, str]
    """Request headers by lower-case name; of repeated headers, the last value."""
    body: bytes
    """Body of the request as sent, before any decoding."""
    status: int | None = None
    """HTTP status of the answer; None until its head is sent."""
    response_headers: list[tuple[str, str]] = field(default_factory=list)
    """Headers of the answer, as they were sent."""
    response_chunks: list[bytes] = field(default_factory=list)
    """Body of the answer in the chunks that were sent, without the HTTP chunk framing."""
    completed: bool = False
    """Whether the whole response was sent."""
    socket: socket.socket | None = field(default=None, repr=False, compare=False)
    """Socket of the connection."""
    header_lines: list[tuple[str, str]] = field(default_factory=list, repr=False)
    """The request's headers as they arrived: in order, in their original case, including repeated ones."""

    @property
    def json(self) -> Any:
        """The body as JSON, or None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def response_body(self) -> bytes:
        """The bytes of the response body that were sent; still compressed if the response was."""
        return b"".join(self.response_chunks)


@dataclass
class Response:
    """An HTTP response. `parts` are sent in order; a callable among them runs at its place, to wait or to cut.

    With `stream` set, the bytes come from there instead. `stream` is closed at the end, even if the client has
    disconnected.
    """

    status: int = 200
    headers: Sequence[tuple[str, str]] = JSON_HEADERS
    parts: Sequence[Part] = ()
    chunked: bool = False
    before: Sequence[Callable[[], None]] = ()
    """Called before the head is sent."""
    stream: Generator[bytes, None, None] | None = None
    """Bytes of the body, used instead of `parts`."""
    length: int | None = None
    """Length of the body in bytes, if it differs from that of `parts`."""
    after: Sequence[Callable[[], None]] = ()
    """Called once the response was sent, or was cut off."""


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(value: object) -> bytes:
    """Compact UTF-8 JSON, as the engines write it."""
    return _encode(value).encode()


def cut() -> None:
    """A part of a response that closes the connection there."""
    raise ConnectionCut


def refusal(kind: str, message: str) -> Response:
    """Status 404, which no SDK sends again, with an error in a shape that SDKs of all protocols read."""
    error = {"message": message, "type": kind, "code": 404, "status": "NOT_FOUND"}
    return json_response(404, {"type": "error", "error": error})


_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """An error object as Anthropic sends it."""
    return {"type": "error", "error": {"type": _ANTHROPIC_ERRORS.get(status, "api_error"), "message": message}}


def json_response(status: int, value: object, headers: Iterable[tuple[str, str]] = ()) -> Response:
    return Response(status, [*JSON_HEADERS, *headers], [json_bytes(value)])
