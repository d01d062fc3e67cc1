"""One request that is forwarded to a real server, and what came back, chunk by chunk."""

from __future__ import annotations

import http.client
import re
import selectors
import socket
import ssl
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Generator
from datetime import datetime, timezone
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from rollout_trace import credentials
from rollout_trace.data.exchange import Exchange, Outcome
from rollout_trace.process.redirect import CALL_HEADER

from ._messages import ConnectionCut, RequestRecord, Response
from .matching import Request
from .replay import HOP_BY_HOP
from .routing import ORIGIN_HEADER

_KEPT = (
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-request-id",
    "request-id",
)
_KEPT_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
"""Headers that SDKs and agents act on. No other goes to a file: they may hold addresses, cookies, names of accounts."""
_OURS = frozenset({ORIGIN_HEADER, CALL_HEADER})
_KEYS_IN_QUERY = re.compile(r"((?:^|&)(?:key|api[-_]key|access_token|token)=)[^&]+", re.I)
_LONGEST_READ = 1 << 20
_LONGEST_CONNECT = 10.0
"""Seconds, which nothing can make shorter while the test waits. The answer may take as long as the client likes."""
_SELECTOR = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Forwarding:
    """One exchange with a real server while it goes on.

    Args:
        request: as it came, without what stands for the server's address.
        protocol: of the request; None where it generates nothing.
    """

    def __init__(self, request: Request, protocol: str | None) -> None:
        self._request = request
        self._protocol = protocol
        self._started_at = datetime.now(timezone.utc)
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._status: int | None = None
        self._headers: tuple[tuple[str, str], ...] = ()
        self._chunks: list[bytes] = []
        self._times: list[float] = []
        self._outcome: Outcome = "unreachable"
        self.problem: str | None = None
        """Why there was no answer."""

    def exchange(self, name: str) -> Exchange:
        """What was recorded so far."""
        return Exchange(
            name=name,
            method=self._request.method,
            path=self._request.path,
            request=self._request.body,
            status=self._status,
            headers=self._headers,
            response=b"".join(self._chunks),
            chunk_sizes=tuple(map(len, self._chunks)),
            request_content_type=self._request.content_type,
            protocol=self._protocol,
            call_id=self._request.call,
            chunk_times=tuple(self._times),
            outcome=self._outcome,
            started_at=self._started_at,
            duration=self._duration(),
        )

    def _duration(self) -> float | None:
        if self._outcome == "complete" and self._times:
            # Measured before the client had it: a call that it made next began later.
            return self._times[-1]
        return None if self._ended is None else self._ended - self._began

    def send(self, url: str, record: RequestRecord, closing: threading.Event) -> Response:
        """Sends the request to ``url``; the response's bytes are the server's own, as they come.

        Raises:
            ConnectionCut: there was no answer.
        """
        parts = urlsplit(url)
        connection = _connection(parts.scheme, parts.hostname or "", parts.port)
        watch = _ClientWatch(record.socket, connection, closing)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            _send(connection, record, target, parts.netloc)
            # Until the head is here the client may give up: then waiting for it ends too.
            watch.start()
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._end("closed" if watch.is_gone else "unreachable")
            if not watch.is_gone:
                self.problem = f"{parts.scheme}://{parts.netloc} gave no answer: {type(error).__name__}: {error}"
            watch.stop()
            connection.close()
            raise ConnectionCut from error
        headers = [(name.lower(), value) for name, value in answer.getheaders()]
        self._status, self._outcome = answer.status, "cut"
        self._headers = _kept(headers)
        is_chunked = bool(answer.chunked) or answer.length is None
        if not is_chunked:
            self._headers = (*self._headers, ("content-length", str(answer.length)))
        passed = [(name, value) for name, value in headers if name not in HOP_BY_HOP]
        stream = self._pass(answer, connection, watch)
        return Response(answer.status, passed, chunked=is_chunked, stream=stream, length=answer.length)

    def _pass(
        self, answer: http.client.HTTPResponse, connection: http.client.HTTPConnection, watch: _ClientWatch
    ) -> Generator[bytes, None, None]:
        try:
            while chunk := answer.read1(_LONGEST_READ):
                self._times.append(time.perf_counter() - self._began)
                self._chunks.append(chunk)
                yield chunk
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            self._end("complete")
        except (OSError, http.client.HTTPException) as error:
            self._end("closed" if watch.is_gone else "cut")
            raise ConnectionCut from error
        except GeneratorExit:
            # The client could not be written to.
            self._end("closed")
            raise
        finally:
            watch.stop()
            connection.close()

    def _end(self, outcome: Outcome) -> None:
        self._outcome, self._ended = outcome, time.perf_counter()


def _send(connection: http.client.HTTPConnection, record: RequestRecord, target: str, host: str) -> None:
    connection.connect()
    connection.sock.settimeout(None)
    connection.putrequest(record.method, target, skip_host=True, skip_accept_encoding=True)
    connection.putheader("host", host)
    # What comes is kept: unpacked, it can be read in the file, and matches whatever the client can unpack.
    connection.putheader("accept-encoding", "identity")
    connection.putheader("content-length", str(len(record.body)))
    left_out = HOP_BY_HOP | _OURS | {"host", "accept-encoding"}
    for name, value in record.headers.items():
        if name not in left_out:
            connection.putheader(name, value)
    connection.endheaders(record.body)


def _kept(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    kept = [(name, value) for name, value in headers if name in _KEPT or name.startswith(_KEPT_PREFIXES)]
    # Of an address its path: a client goes on from its own. Requests are matched without their hosts.
    kept += [(name, _without_host(value)) for name, value in headers if name == "location"]
    return tuple((name, credentials.cut(value)) for name, value in kept)


def _without_host(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(("", "", parts.path or "/", cut_query(parts.query), ""))


def cut_query(query: str) -> str:
    """A query without the values of keys, whatever they look like: nobody compares them."""
    return _KEYS_IN_QUERY.sub(rf"\g<1>{credentials.MASK}", query)


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=_LONGEST_CONNECT)
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(host):
        return http.client.HTTPSConnection(host, port, timeout=_LONGEST_CONNECT, context=_tls())
    through = urlsplit(proxy)
    connection = http.client.HTTPSConnection(
        through.hostname or "", through.port, timeout=_LONGEST_CONNECT, context=_tls()
    )
    connection.set_tunnel(host, port, _proxy_headers(through))
    return connection


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    value = f"Basic {b64encode(pair).decode()}"
    credentials.remember_request({"proxy-authorization": value}, "")
    return {"proxy-authorization": value}


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not context.get_ca_certs() and not ssl.get_default_verify_paths().capath:
        # An interpreter that was installed without certificates (macOS): those that HTTP libraries bring along.
        try:
            import certifi
        except ImportError:
            return context
        context.load_verify_locations(certifi.where())
    return context


class _ClientWatch:
    """Notices that the client has gone while its answer is waited for, and ends the waiting."""

    def __init__(
        self, client: socket.socket | None, connection: http.client.HTTPConnection, closing: threading.Event
    ) -> None:
        self._client = client
        self._connection = connection
        self._closing = closing
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rollout_trace client watch", daemon=True)
        self.is_gone = False
        """Whether the client closed its connection, or the server is closing."""

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while self._client is not None and not self._stopped.is_set():
            is_gone = is_closed(self._client, 0.02) or self._closing.is_set()
            if is_gone and not self._stopped.is_set():
                self.is_gone = True
                _shut(self._connection.sock)
                return
            self._stopped.wait(0.02)


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the other end of a connection is closed, or is within some seconds."""
    try:
        # Not `select.select`, which takes no descriptor above 1023: a process may have that many files open.
        with _SELECTOR() as selector:
            selector.register(connection, selectors.EVENT_READ)
            # Bytes that come are of the next request, or an empty line too many.
            return bool(selector.select(seconds)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError, KeyError):
        return True


def _shut(connection: socket.socket | None) -> None:
    try:
        if connection is not None:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was closed in the meantime
