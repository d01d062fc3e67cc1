"""The loopback server that stands for every model server while a test runs: it replays a cassette, or records one."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from functools import partial

from rollout_trace.clients.loopback.messages import ConnectionCut, RequestRecord, Response, refusal
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.clients.loopback.watched import is_closed
from rollout_trace.data.exchange import Exchange
from rollout_trace.wire.added_chunks import AddedChunks, answers_to
from rollout_trace.wire.profiles import capture_fields
from rollout_trace.wire.protocols import protocol_of_request

from ._normal_form import parsed
from .matching import Matcher, Request, Unmatched
from .replay import response_of
from .unseen import UnseenCalls, as_meant
from .upstream import RecordedForwarding

_LEFT_OPEN = 30.0
"""Seconds that a caller which once closed a stream early is waited for to do so again."""


_RETRY_AFTER = "retry-after-ms"


class CassetteServer(LoopbackServer):
    """Base of both servers: identifies a request's test, and handles calls that no recorder of this process sees.

    ``unseen`` records those of child processes; ``environ``, from before the test, has the addresses they would call.
    """

    def __init__(self, unseen: UnseenCalls | None = None, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        self._unseen = unseen
        self._environ = dict(environ)
        self._left = 0
        """Requests of which nothing more comes, whose clients are waited for to go."""

    def settle(self, timeout: float) -> bool:
        """Waits until all clients have got everything there is to send; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._active <= self._left, timeout)

    def answer(self, record: RequestRecord) -> Response:
        """Answer one request (called by the server)."""
        request, url = as_meant(record, self._environ)
        if self._unseen is None:
            return self.respond_to(request, record, url)
        return self._unseen.watched(request, record, lambda request: self.respond_to(request, record, url))

    def respond_to(self, request: Request, record: RequestRecord, url: str) -> Response:
        """The answer to a request that was meant for ``url``; defined by subclasses. Raises ConnectionCut."""
        raise NotImplementedError


class ReplayingServer(CassetteServer):
    """Answers with recorded exchanges; with ``timing``, in their recorded pace."""

    def __init__(
        self,
        matcher: Matcher,
        *,
        timing: bool = False,
        unseen: UnseenCalls | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__(unseen, environ)
        self._matcher = matcher
        self._timing = timing
        self._unanswered: list[Unmatched | ValueError] = []
        self._found_lock = threading.Lock()

    @property
    def unanswered(self) -> list[Unmatched | ValueError]:
        """The requests that no recorded exchange answers, in their order; an error where ``normalize`` failed."""
        with self._found_lock:
            return list(self._unanswered)

    def respond_to(self, request: Request, record: RequestRecord, url: str) -> Response:
        """Returns the recorded answer; without one, status 404 (which SDKs do not retry) with the difference."""
        found: Exchange | Unmatched | ValueError
        try:
            found = self._matcher.take(request)
        except ValueError as failure:
            found = failure
        if isinstance(found, Exchange):
            return self._replay(found, record, asked_beside(found, request))
        with self._found_lock:
            self._unanswered.append(found)
        text = found.text() if isinstance(found, Unmatched) else str(found)
        # In a line: the difference is what the test fails with.
        message = " ".join(text.partition("\n\n")[0].split())
        return refusal("not_recorded", message)

    def _replay(self, exchange: Exchange, record: RequestRecord, added: AddedChunks | None) -> Response:
        leave = partial(self._leave, record.socket)
        response = response_of(exchange, wait=self._wait if self._timing else None, leave=leave, added=added)
        if response.status >= 400 and not self._timing:
            # SDKs that try again do so at once, in place of the seconds that they waited then.
            kept = [(name, value) for name, value in response.headers if name != _RETRY_AFTER]
            response.headers = [*kept, (_RETRY_AFTER, "1")]
        if exchange.status is None:
            for part in response.before:
                part()
        return response

    def _leave(self, connection: socket.socket | None) -> None:
        with self._changed:
            self._left += 1
            self._changed.notify_all()
        try:
            wait_for_close(connection, self.closing)
        finally:
            with self._changed:
                self._left -= 1

    def _wait(self, seconds: float) -> None:
        if self.closing.wait(seconds):
            raise ConnectionCut


class RecordingServer(CassetteServer):
    """Forwards each request to the server that it was meant for, and keeps what passes."""

    def __init__(self, unseen: UnseenCalls | None = None, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(unseen, environ)
        self._exchanges: list[RecordedForwarding] = []
        self._began_lock = threading.Lock()

    @property
    def exchanges(self) -> list[Exchange]:
        """The recorded exchanges, in the order of the requests."""
        with self._began_lock:
            begun = list(self._exchanges)
        return [one.exchange(str(index)) for index, one in enumerate(begun)]

    @property
    def unreachable(self) -> list[str]:
        """Why servers gave no answer, a sentence each."""
        with self._began_lock:
            return [one.problem for one in self._exchanges if one.problem is not None]

    def respond_to(self, request: Request, record: RequestRecord, url: str) -> Response:
        """The answer of the server at ``url``."""
        protocol = protocol_of_request(request.method, request.path, request.body)
        forwarding = RecordedForwarding(request, protocol)
        with self._began_lock:
            self._exchanges.append(forwarding)
        return forwarding.send(url, record, self.closing)


def asked_beside(exchange: Exchange, request: Request) -> AddedChunks | None:
    """Returns a filter for a recorded stream's chunks that exist only because of fields this request lacks.

    A recorder had added them, and not handed these chunks on. One that adds them again takes them out itself.
    """
    own, then = parsed(request.body), parsed(exchange.request)
    is_readable = (
        isinstance(own, dict) and isinstance(then, dict) and not dict(exchange.headers).get("content-encoding")
    )
    if not is_readable or "text/event-stream" not in exchange.content_type:
        return None
    added = {name: then[name] for name in capture_fields() if name in then and then[name] != own.get(name)}
    names = answers_to(exchange.protocol or "", added, own)
    return AddedChunks(names) if names else None


def wait_for_close(connection: socket.socket | None, closing: threading.Event) -> None:
    """Waits until the client has closed its end of a connection, the server closes, or the time is over."""
    end = time.monotonic() + _LEFT_OPEN
    while connection is not None and not closing.is_set() and time.monotonic() < end:
        # In slices: nothing wakes it when the server closes.
        if is_closed(connection, 0.05):
            return
        closing.wait(0.02)
