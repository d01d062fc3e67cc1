"""HTTP/1.1 on a loopback socket: keep-alive, chunked streams, one write per piece, no threads left after closing."""

from __future__ import annotations

import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from ._messages import ConnectionCut, ConnectionReset, ConnectionStalled, RequestRecord, Response

THREAD = "rollout_trace test server"


class Owner(Protocol):
    """The object that answers the requests."""

    errors: list[BaseException]

    def begin(self, record: RequestRecord) -> None: ...
    def respond(self, record: RequestRecord) -> Response: ...
    def end(self) -> None: ...


class HTTPServer(ThreadingHTTPServer):
    """Owns the listening socket, the open connections and their threads, so that closing leaves nothing behind."""

    request_queue_size = 512
    daemon_threads = True

    def __init__(self, owner: Owner, port: int = 0) -> None:
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
    server_version = "rollout-trace-testing"

    def setup(self) -> None:
        super().setup()
        self.http_server = cast(HTTPServer, self.server)
        self.number = self.http_server.next_connection()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        owner, record = self.http_server.owner, self._read()
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

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

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

    def _read(self) -> RequestRecord:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = b"".join(iter(self._read_chunk, b""))
        else:
            body = self.rfile.read(int(headers.get("content-length", 0)))
        record = RequestRecord(-1, self.number, self.command, url.path, url.query, headers, body)
        record.socket = self.connection
        return record

    def _read_chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _send(self, response: Response, record: RequestRecord) -> None:
        for wait in response.before:
            wait()
        record.status, record.response_headers = response.status, list(response.headers)
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
