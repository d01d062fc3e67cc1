"""The recorder's side of a request that came to a loopback server: its call, and the answer as it passes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import credentials
from rollout_trace.clients import recorder
from rollout_trace.clients.http_exchange import HTTPExchange
from rollout_trace.clients.loopback.messages import ConnectionCut, Response
from rollout_trace.clients.loopback.watched import ClientGone
from rollout_trace.clients.recorder import ResponseHead
from rollout_trace.clients.tee import added_chunks
from rollout_trace.record.call import Call, end

if TYPE_CHECKING:
    from rollout_trace.clients.detect import Inquiry


@dataclass(frozen=True)
class ProgramRequest:
    """A request as it is to be sent on."""

    method: str
    url: str
    """The whole address."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class LoopbackExchange(HTTPExchange):
    """One request of a program, whose answer is a ``Response``."""

    __slots__ = ()
    _reads_ahead = False

    @staticmethod
    def _content_of(request: Any) -> bytes | None:
        content: bytes = request.body
        return content

    def _with_body(self, request: Any, content: bytes) -> Any:
        return replace(request, body=content)

    def _of_our_own(self, inquiry: Inquiry) -> Any:
        method = "GET" if inquiry.content is None else "POST"
        return replace(self._request, method=method, url=inquiry.url, body=inquiry.content or b"")

    def _options_of_our_own(self, inquiry: Inquiry) -> dict[str, Any]:
        return {}

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, ClientGone):
            # It gave up: no failure of the server's.
            error = Cancelled("the program closed the connection before there was an answer")
        elif isinstance(error, ConnectionCut):
            error = ConnectionError("the model server did not answer")
        super()._failed(error)

    def _head(self, response: Any, content: bytes | None = None) -> Any:
        return ResponseHead(response.status, dict(response.headers), content)

    def _remember_sent(self, response: Any) -> None:
        credentials.remember_request(self.headers, urlsplit(self.url).query)

    def _read(self, response: Any) -> bytes | None:
        content = whole_body(response)
        response.stream, response.parts = None, (content,)
        response.length = None
        return content

    def _record_body(self, call: Call, response: Any) -> None:
        response.stream = _recorded(call, replace(response))
        # Where the connection is cut before the first byte, nothing of the stream runs.
        response.after = [*response.after, lambda: recorder.ended(call)]
        response.length = None if call.hides else _length(response)
        response.chunked = response.chunked or response.length is None
        response.parts = ()


class Cancelled(BaseException):
    """Stands for a request that its client cancelled."""


def _recorded(call: Call, response: Response) -> Generator[bytes, None, None]:
    # `end` alone here: `recorder.ended`, which may decode earlier calls, runs once the answer is sent.
    added = added_chunks(call)
    try:
        with closing(_chunks(response)) as chunks:
            for chunk, is_last in chunks:
                recorder.receive(call, chunk)
                if is_last:
                    # Before it is sent: the client may be gone with it, and whoever waits for it looks at the steps.
                    recorder.finished(call)
                    end(call)
                if added is None or (chunk := added.shown(chunk)):
                    yield chunk
        recorder.finished(call)
        end(call)
        if added is not None and (rest := added.rest()):
            yield rest
    except ConnectionCut as error:
        # A program that leaves in the middle has what it wants: no failure of the server's.
        end(call, None if isinstance(error, ClientGone) else error)
        if added is not None and (rest := added.rest()):
            yield rest
        raise
    finally:
        end(call)


def _chunks(response: Response) -> Generator[tuple[bytes, bool], None, None]:
    """The pieces of the body, and whether each is known to be the last one."""
    if response.stream is not None:
        left = response.length
        with closing(response.stream) as stream:
            for chunk in stream:
                left = None if left is None else left - len(chunk)
                yield chunk, left == 0
        return
    for number, part in enumerate(response.parts, 1):
        if isinstance(part, bytes):
            yield part, number == len(response.parts)
        else:
            part()


def whole_body(response: Response) -> bytes:
    """Reads the body of an answer to its end, in place of sending it.

    Raises:
        ConnectionCut: it has none.
    """
    try:
        return b"".join(chunk for chunk, _ in _chunks(response))
    finally:
        for action in response.after:
            action()


def _length(response: Response) -> int | None:
    if response.length is not None or response.stream is not None:
        return response.length
    return sum(len(part) for part in response.parts if isinstance(part, bytes))
