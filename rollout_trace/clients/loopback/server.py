"""The base of the loopback servers: HTTP/1.1 on a loopback socket, keep-alive, chunked streams, a log of requests."""

from __future__ import annotations

import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from .messages import ConnectionCut, ConnectionReset, ConnectionStalled, RequestRecord, Response, json_response

THREAD = "rollout_trace server"
_MOST_UNREAD = 1 << 20
"""Bytes of a request that are read after it was refused."""
_LONGEST_LEAVE = 1.0
"""Seconds that its client may take for the next of them."""


class HTTPServer(ThreadingHTTPServer):
    """Owns the listening socket, the open connections and their threads, so that closing leaves nothing behind."""

    request_queue_size = 512
    daemon_threads = True

    def __init__(self, owner: LoopbackServer, port: int = 0) -> None:
        self.owner = owner
        self._open: dict[threading.Thread, socket.socket] = {}
        self._guard = threading.Lock()
        self._count = 0
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            why = f"cannot listen on port {port} of 127.0.0.1 ({error.strerror}): choose another, or 0 for a free one"
            raise OSError(error.errno, why) from error

    def server_bind(self) -> None:
        # HTTPServer.server_bind resolves a host name, which can take seconds
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def next_connection(self) -> int:
        with self._guard:
            self._count += 1
            return self._count - 1

    def process_request(self, request: Any, client_address: Any) -> None:
        arguments = request, client_address
        thread = threading.Thread(target=self._serve_connection, args=arguments, name=THREAD, daemon=True)
        with self._guard:
            self._open[thread] = request
        thread.start()

    def _serve_connection(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._open.pop(threading.current_thread(), None)

    def server_close(self) -> None:
        with self._guard:
            connections = list(self._open.items())
        for thread, connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was closed in the meantime
            thread.join()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):  # OSError: the client went away
            self.owner.errors.append(error)


class _Write(NamedTuple):
    payload: bytes
    wire: bytes


class _Handler(BaseHTTPRequestHandler):
    """One connection: reads requests and sends answers, one write per piece."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "rollout-trace"

    def setup(self) -> None:
        super().setup()
        self.http_server = cast(HTTPServer, self.server)
        self.number = self.http_server.next_connection()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        owner, record = self.http_server.owner, self._read_head()
        refused = owner._refusal_of_head(record)
        if refused is not None:
            self._refuse(refused, record)
            return
        record.body = self._read_body(record.headers)
        owner.begin(record)
        response: Response | None = None
        try:
            response = owner.respond(record)
            self._send(response, record)
        except (ConnectionCut, OSError) as error:
            record.completed = False
            self.close_connection = True
            self._break_off(error)
        finally:
            for action in response.after if response is not None else ():
                action()
            owner.end()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_GET

    def _break_off(self, error: BaseException) -> None:
        try:
            if isinstance(error, ConnectionStalled):
                while self.connection.recv(65536):
                    pass  # what the client still sends; it leaves with nothing
            if isinstance(error, ConnectionReset):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Closed here, since `shutdown`, which the server calls first, would end it properly.
                socket.close(self.connection.detach())
        except OSError:
            pass  # the client left first

    def _refuse(self, response: Response, record: RequestRecord) -> None:
        """Answers a request whose body is not read, and closes the connection."""
        self.close_connection = True
        response.headers = [*response.headers, ("connection", "close")]
        try:
            self._send(response, record)
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LONGEST_LEAVE)
            # With bytes unread the connection would be reset, and the answer lost: a few are thrown away.
            left = _MOST_UNREAD
            while left > 0 and (piece := self.rfile.read1(min(left, 1 << 16))):
                left -= len(piece)
        except OSError:
            pass  # the client left first, or stays for too long

    def _read_head(self) -> RequestRecord:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        record = RequestRecord(-1, self.number, self.command, url.path, url.query, headers, b"")
        record.socket, record.header_lines = self.connection, self.headers.items()
        return record

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join(iter(self._read_chunk, b""))
        return self.rfile.read(int(headers.get("content-length", 0)))

    def _read_chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _send(self, response: Response, record: RequestRecord) -> None:
        for wait in response.before:
            wait()
        record.status, record.response_headers = response.status, list(response.headers)
        if record.method == "HEAD":
            self._send_head(response, record)
            return
        if response.stream is not None:
            self._send_stream(response, response.stream, record)
            return
        steps = self._steps(response)
        for step in steps:
            if not isinstance(step, _Write):
                step()
                continue
            if step.payload:
                record.response_chunks.append(step.payload)
            # set before the write: the client may look at the log as soon as it has the last byte
            record.completed = step is steps[-1]
            self.wfile.write(step.wire)

    def _send_head(self, response: Response, record: RequestRecord) -> None:
        for _ in response.stream or ():
            pass
        record.completed = True
        self.wfile.write(self._head(response))

    def _send_stream(self, response: Response, stream: Generator[bytes, None, None], record: RequestRecord) -> None:
        frame = _frame_chunk if response.chunked else _frame_plain
        with closing(stream):
            self.wfile.write(self._head(response))
            for part in stream:
                record.response_chunks.append(part)
                self.wfile.write(frame(part))
            record.completed = True
            if response.chunked:
                self.wfile.write(b"0\r\n\r\n")

    def _steps(self, response: Response) -> list[_Write | Callable[[], None]]:
        """The writes of a response: the head goes with the first part, the end of a chunked body with the last."""
        frame = _frame_chunk if response.chunked else _frame_plain
        steps: list[_Write | Callable[[], None]] = [_Write(b"", self._head(response))]
        for part in response.parts:
            last = steps[-1]
            if not isinstance(part, bytes):
                steps.append(part)
            elif isinstance(last, _Write) and len(steps) == 1 and not last.payload:
                steps[0] = _Write(part, last.wire + frame(part))
            else:
                steps.append(_Write(part, frame(part)))
        if response.chunked:
            last = steps[-1]
            if isinstance(last, _Write):
                steps[-1] = _Write(last.payload, last.wire + b"0\r\n\r\n")
            else:
                steps.append(_Write(b"", b"0\r\n\r\n"))
        return steps

    def _head(self, response: Response) -> bytes:
        try:
            phrase = HTTPStatus(response.status).phrase
        except ValueError:
            phrase = "Unknown"
        if response.chunked:
            length = "transfer-encoding: chunked"
        else:
            size = sum(len(part) for part in response.parts if isinstance(part, bytes))
            length = f"content-length: {size if response.length is None else response.length}"
        lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{k}: {v}" for k, v in response.headers), length, "", ""]
        return "\r\n".join(lines).encode("latin-1")


def _frame_plain(data: bytes) -> bytes:
    return data


def _frame_chunk(data: bytes) -> bytes:
    # an empty chunk would end the body
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


Server = TypeVar("Server", bound="LoopbackServer")


class LoopbackServer:
    """Base class of the servers. Listens on 127.0.0.1 from `start` to `close`, or inside a `with` block.

    `port` is the port to listen on; 0 means any free one. `requests` is the log. An exception raised while answering is
    kept in `errors`, answered as HTTP 400 (which SDKs do not retry), and raised when the `with` block ends.
    """

    keeps_requests = True
    """Whether `requests` keeps each request with its body and headers, for tests. If False, the log stays empty."""

    def __init__(self, *, port: int = 0) -> None:
        self._port = port
        self.errors: list[BaseException] = []
        """Exceptions raised while answering."""
        self.closing = threading.Event()
        """Set when ``close`` is called, which cuts off waiting answers."""
        self._changed = threading.Condition()
        self._requests: list[RequestRecord] = []
        self._count = 0
        self._active = 0
        self._httpd: HTTPServer | None = None
        self._thread: threading.Thread | None = None

    def _refusal_of_head(self, record: RequestRecord) -> Response | None:
        """The answer to a request that is none of this server's, before its body is read; None: it is answered."""
        return None

    def answer(self, record: RequestRecord) -> Response:
        """Return the response to one request. Subclasses define it; it runs on the connection's thread."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        if self._httpd is None:
            raise RuntimeError(f"{type(self).__name__} is not running: use it in a `with` block, or call start()")
        return f"http://127.0.0.1:{self._httpd.server_address[1]}"

    @property
    def base_url(self) -> str:
        """`base_url` for an OpenAI client: `http://127.0.0.1:PORT/v1`."""
        return f"{self.url}/v1"

    @property
    def requests(self) -> list[RequestRecord]:
        """All requests so far, in the order they began."""
        with self._changed:
            return list(self._requests)

    @property
    def connections(self) -> int:
        """Number of TCP connections that carried at least one request."""
        return len({record.connection for record in self.requests})

    def wait_idle(self, timeout: float = 30.0) -> None:
        """Wait until no request is being answered. Raises TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._active == 0, timeout):
                raise TimeoutError(f"{self._active} requests are still being answered after {timeout} s")

    def wait_requests(self, count: int = 1, timeout: float = 30.0) -> None:
        """Wait until `count` requests have arrived since the start. Raises TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._requests) >= count, timeout):
                raise TimeoutError(f"after {timeout} s {len(self._requests)} requests have come; expected {count}")

    def start(self: Server) -> Server:
        """Start listening. Does nothing if the server is running. Raises OSError if the port cannot be used."""
        if self._httpd is None:
            self.closing.clear()
            self._httpd = HTTPServer(self, self._port)
            # 0.02 s between looks at the shutdown flag: `close` waits for one, with the default half a second.
            serve = self._httpd.serve_forever
            self._thread = threading.Thread(target=serve, args=(0.02,), name=THREAD, daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop the server: cut off answers in flight, close connections, join threads. The log stays readable."""
        self.closing.set()
        if self._httpd is None or self._thread is None:
            return
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()
        self._httpd = self._thread = None

    def __enter__(self: Server) -> Server:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
        if error is None and self.errors:
            raise self.errors[0]

    def begin(self, record: RequestRecord) -> None:
        """Counts a request and adds it to the log; called on the connection's thread."""
        with self._changed:
            record.index, self._count = self._count, self._count + 1
            if self.keeps_requests:
                self._requests.append(record)
            self._active += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Counts a request as answered."""
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def respond(self, record: RequestRecord) -> Response:
        """Returns the response to one request: that of ``answer``, or HTTP 400 if ``answer`` raised."""
        try:
            response = self.answer(record)
        except ConnectionCut:
            raise
        except Exception as error:
            self.errors.append(error)
            message = f"rollout_trace could not answer: {type(error).__name__}: {error}"
            response = json_response(400, {"error": {"message": message, "type": "rollout_trace", "code": 400}})
        return response
