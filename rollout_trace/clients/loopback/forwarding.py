"""A request that is forwarded to a real server, and its answer, as it comes. Bodies pass byte for byte."""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from rollout_trace import credentials
from rollout_trace.clients.loopback.messages import (
    CALL_HEADER,
    HOP_BY_HOP,
    ORIGIN_HEADER,
    SECRET_HEADER,
    ConnectionCut,
    Response,
)
from rollout_trace.clients.loopback.watched import ClientGone, WatchedSocket, ready

if TYPE_CHECKING:
    from rollout_trace.clients.loopback.messages import RequestRecord
    from rollout_trace.data.exchange import Outcome

_OURS = frozenset({ORIGIN_HEADER, CALL_HEADER, SECRET_HEADER})
_LONGEST_READ = 1 << 20
_LONGEST_CONNECT = 10.0
"""Seconds, which nothing can make shorter while the client waits. The answer may take as long as the client likes."""
_MOST_IDLE = 16
"""Connections to servers that are kept for the next request."""


class Connections:
    """Connections to servers that an answer was read from to its end, for the next request. Safe for threads."""

    def __init__(self) -> None:
        self._idle: list[tuple[tuple[str, str], http.client.HTTPConnection]] = []
        self._lock = threading.Lock()

    def take(self, scheme: str, place: str) -> http.client.HTTPConnection | None:
        """An open connection to a host and port; None where there is none."""
        while True:
            with self._lock:
                at = next((at for at, (where, _) in enumerate(self._idle) if where == (scheme, place)), None)
                if at is None:
                    return None
                connection = self._idle.pop(at)[1]
            # Nothing is sent on one that the server has closed, or says something on.
            if connection.sock is not None and not ready([connection.sock], (), 0):
                return connection
            connection.close()

    def give(self, scheme: str, place: str, connection: http.client.HTTPConnection) -> None:
        """Keeps a connection whose answer was read to its end."""
        with self._lock:
            self._idle.append(((scheme, place), connection))
            spare = self._idle[:-_MOST_IDLE]
            del self._idle[:-_MOST_IDLE]
        for _, one in spare:
            one.close()

    def close(self) -> None:
        """Closes all."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, one in idle:
            one.close()


class Forwarding:
    """One exchange with a real server while it goes on. A subclass keeps what passes.

    Args:
        connections: those to take, and to leave for the next one; None: each exchange has one of its own.
        encodings: gives the header ``accept-encoding`` that is sent, from that of the client, if it sent one; None: the
            header is left out.
    """

    def __init__(
        self,
        connections: Connections | None = None,
        encodings: Callable[[str | None], str | None] = lambda given: given,
    ) -> None:
        self._connections = connections
        self._encodings = encodings
        self.problem: str | None = None
        """Why there was no answer."""

    def head(self, status: int, headers: list[tuple[str, str]], length: int | None) -> None:
        """Called with the head of the answer; ``length`` is that of the body, None where it is sent in chunks."""

    def received(self, chunk: bytes) -> None:
        """Called with each piece of the body, before it is passed on."""

    def ended(self, outcome: Outcome) -> None:
        """Called once, at the end of the exchange."""

    def send(self, url: str, record: RequestRecord, closing: threading.Event) -> Response:
        """Sends the request to ``url``; the response's bytes are the server's own, as they come.

        Raises:
            ConnectionCut: there was no answer. ``ClientGone``: the client did not wait for it.
        """
        url, record = with_account(url, record)
        parts = urlsplit(url)
        # Any: its socket is no `socket.socket`.
        connection: Any = None if self._connections is None else self._connections.take(parts.scheme, parts.netloc)
        connection = connection or _connection(parts.scheme, parts.hostname or "", parts.port)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            if connection.sock is None:
                _connect(connection)
            # From here on the client may give up: then sending, and waiting for the answer, end too.
            connection.sock.watch(record.socket, closing)
            self._send(connection, record, target, parts.netloc)
            answer = connection.getresponse()
        except ClientGone:
            connection.close()
            self.ended("closed")
            raise
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.problem = f"{parts.scheme}://{parts.netloc} gave no answer: {type(error).__name__}: {error}"
            self.ended("unreachable")
            raise ConnectionCut from error
        headers = [(name.lower(), value) for name, value in answer.getheaders()]
        is_chunked = bool(answer.chunked) or answer.length is None
        length = None if is_chunked else answer.length
        if record.method == "HEAD":
            # The length is that of the body that another method would get.
            is_chunked, length = False, int(dict(headers).get("content-length") or 0)
        self.head(answer.status, headers, length)
        passed = [(name, value) for name, value in headers if name not in HOP_BY_HOP]
        pool = self._connections
        leave = None if pool is None else (lambda: pool.give(parts.scheme, parts.netloc, connection))
        stream = self._pass(answer, connection, leave)
        return Response(answer.status, passed, chunked=is_chunked, stream=stream, length=length)

    def _send(self, connection: Any, record: RequestRecord, target: str, host: str) -> None:
        connection.putrequest(record.method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("host", host)
        encoding = self._encodings(record.headers.get("accept-encoding"))
        if encoding is not None:
            connection.putheader("accept-encoding", encoding)
        if record.body or "content-length" in record.headers or "transfer-encoding" in record.headers:
            connection.putheader("content-length", str(len(record.body)))
        left_out = HOP_BY_HOP | _OURS | {"host", "accept-encoding", "expect"}
        for name, value in record.header_lines:
            if name.lower() not in left_out:
                connection.putheader(name, value)
        connection.endheaders(record.body)
        connection.sock.flush()

    def _pass(
        self,
        answer: http.client.HTTPResponse,
        connection: http.client.HTTPConnection,
        leave: Callable[[], None] | None,
    ) -> Generator[bytes, None, None]:
        is_kept = False
        try:
            while chunk := answer.read1(_LONGEST_READ):
                self.received(chunk)
                yield chunk
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            # Only then the connection is ready for the next request: reading all of a known length does not do it.
            answer.close()
            is_kept = leave is not None and not answer.will_close
            self.ended("complete")
        except (OSError, http.client.HTTPException) as error:
            self.ended("cut")
            raise ConnectionCut from error
        except (ClientGone, GeneratorExit):
            # GeneratorExit: the client could not be written to.
            self.ended("closed")
            raise
        finally:
            if is_kept and leave is not None:
                leave()
            else:
                connection.close()


def with_account(url: str, record: RequestRecord) -> tuple[str, RequestRecord]:
    """Moves the name and password of an address into the request, as the programs do that read them there.

    A request that has an authorization keeps it.
    """
    parts = urlsplit(url)
    if parts.username is None:
        return url, record
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if "authorization" in record.headers:
        return url, record
    value = _basic(parts, "authorization")
    lines = [*record.header_lines, ("authorization", value)]
    return url, replace(record, headers={**record.headers, "authorization": value}, header_lines=lines)


def _basic(address: SplitResult, header: str) -> str:
    """The value of a header for the name and password of an address."""
    pair = f"{unquote(address.username or '')}:{unquote(address.password or '')}".encode()
    value = f"Basic {b64encode(pair).decode()}"
    credentials.remember_request({header: value}, "")
    return value


def _connect(connection: Any) -> None:
    connection.connect()
    connection.sock = WatchedSocket(connection.sock)


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
    name = "proxy-authorization"
    return {} if proxy.username is None else {name: _basic(proxy, name)}


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if extra := os.environ.get("NODE_EXTRA_CA_CERTS"):
        # What the program itself would trust, where it is one of Node's.
        context.load_verify_locations(extra)
    if not context.get_ca_certs() and not ssl.get_default_verify_paths().capath:
        # An interpreter that was installed without certificates (macOS): those that HTTP libraries bring along.
        try:
            import certifi
        except ImportError:
            return context
        context.load_verify_locations(certifi.where())
    return context
