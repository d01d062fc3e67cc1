"""Base of the test servers: a loopback HTTP/1.1 server that logs its requests."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TypeVar

from ._http import THREAD, HTTPServer
from ._messages import ConnectionCut, RequestRecord, Response, json_response

Server = TypeVar("Server", bound="LoopbackServer")


class LoopbackServer:
    """Base of the test servers: listens on 127.0.0.1 from `start` to `close`, or in a `with` block.

    `port` is the port to listen on; 0 means any free one. `requests` is the log. An exception raised while answering is
    kept in `errors`, answered as HTTP 400 (which SDKs do not retry), and raised when the `with` block ends.
    """

    def __init__(self, *, port: int = 0) -> None:
        self._port = port
        self.errors: list[BaseException] = []
        """Exceptions that were raised while answering."""
        self.closing = threading.Event()
        """Set once ``close`` is called: answers that wait are cut."""
        self._changed = threading.Condition()
        self._requests: list[RequestRecord] = []
        self._active = 0
        self._httpd: HTTPServer | None = None
        self._thread: threading.Thread | None = None

    def answer(self, record: RequestRecord) -> Response:
        """Return the response to one request; defined by subclasses. Called on the connection's thread."""
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
        """Wait until `count` requests came, since the start. Raises TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._requests) >= count, timeout):
                raise TimeoutError(f"{len(self._requests)} requests came in {timeout} s, not {count}")

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
        """Stop: cut the answers in flight, close connections, join threads. The log stays readable."""
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
        """Adds a request to the log; called on the connection's thread."""
        with self._changed:
            record.index = len(self._requests)
            self._requests.append(record)
            self._active += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Counts a request as answered."""
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def respond(self, record: RequestRecord) -> Response:
        """The response to one request: that of ``answer``, or HTTP 400 where it raised."""
        try:
            response = self.answer(record)
        except ConnectionCut:
            raise
        except Exception as error:
            self.errors.append(error)
            message = f"the test server could not answer: {type(error).__name__}: {error}"
            response = json_response(400, {"error": {"message": message, "type": "TestServerError", "code": 400}})
        return response
