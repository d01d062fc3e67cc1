"""The page's server: on this machine alone, for who has the address.

The address has a random token. A page of another site can send requests here, and can point a name of its own at this
machine (DNS rebinding): so the token, the host, the origin and what the browser says of the request's site are checked.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rollout_trace import guard
from rollout_trace.local_requests import HOST, why_foreign
from rollout_trace.view.assets import asset, linked_page
from rollout_trace.view.page_data import MOST_STEPS, PageData, PageError, error_json

_MOST_BODY = 1 << 20
"""Bytes of the body of a request."""
_JSON = "application/json; charset=utf-8"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""


class PageServer:
    """Serves a page, until it is closed.

    Args:
        data: what the page shows.
        port: 0: one that is free.

    Raises:
        OSError: the port is taken, or not allowed.
    """

    def __init__(self, data: PageData, port: int = 0) -> None:
        self._server = _Server(data, port)

    @property
    def port(self) -> int:
        """The port."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self.port}/{self._server.token}/"

    def serve(self) -> None:
        """Answers requests until ``stop`` is called by another thread."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Ends ``serve``."""
        self._server.shutdown()

    def close(self) -> None:
        """Gives the port back."""
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # On Windows it would allow two servers on one port.
    allow_reuse_address = sys.platform != "win32"

    def __init__(self, data: PageData, port: int) -> None:
        self.data = data
        self.token = secrets.token_urlsafe(18)
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: the browser has gone away."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "rollout-trace"
    sys_version = ""
    timeout = 60
    """Seconds that a connection is kept which sends nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no lines: they would have the token, and what was searched for."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by the base class for what is no request."""
        self.close_connection = True
        self._send(code, _JSON, error_json(f"{HTTPStatus(code).phrase}: the request cannot be answered."))

    def do_GET(self) -> None:
        self._answer(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, find: Callable[[], tuple[str, bytes]]) -> None:
        try:
            self._check()
            kind, body = find()
        except PageError as error:
            # Its body may not have been read.
            self.close_connection = self.close_connection or self.command == "POST"
            self._send(error.status, _JSON, error_json(str(error)))
        except Exception as error:
            guard.warn(f"the page's server failed to answer a request: {type(error).__name__}")
            self.close_connection = True
            self._send(500, _JSON, error_json(f"The server failed: {guard.describe(error)}"))
        else:
            self._send(200, kind, body)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _check(self) -> None:
        """Refuses requests that do not come from the page.

        Raises:
            PageError: this is one.
        """
        port = self.server.server_address[1]
        if (why := why_foreign(self.headers.items(), port)) is not None:
            raise PageError(403, why)
        token = urlsplit(self.path).path.split("/")[1] if self.path.startswith("/") else ""
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            raise PageError(404, "There is no such page: open the whole address that rollout-trace view has printed.")

    def _target(self) -> tuple[str, Mapping[str, str]]:
        """The path behind the token, and the query."""
        parts = urlsplit(self.path)
        _, _, path = parts.path[1:].partition("/")
        try:
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=20)
        except ValueError as error:
            raise PageError(400, f"The query of the address cannot be read: {error}") from error
        return path, {name: values[-1] for name, values in query.items()}

    def _get(self) -> tuple[str, bytes]:
        path, query = self._target()
        if not path.startswith("api/"):
            return _asset(path)
        name = path.removeprefix("api/")
        if name not in _GET:
            raise PageError(
                404 if name != "annotate" else 405, f"There is nothing to get at api/{guard.printable(name)}."
            )
        return _JSON, _GET[name](self.server.data, query)

    def _post(self) -> tuple[str, bytes]:
        path, _ = self._target()
        if path != "api/annotate":
            raise PageError(404, "Nothing can be sent there.")
        if self.headers.get_content_type() != "application/json" or "Content-Type" not in self.headers:
            raise PageError(415, "A note is sent as application/json.")
        return _JSON, self.server.data.annotate(self._body())

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            raise PageError(411, "A note is sent with its length.")
        if len(length) > 9 or int(length) > _MOST_BODY:
            raise PageError(413, f"A note has at most {_MOST_BODY} bytes.")
        return self.rfile.read(int(length))


def _asset(name: str) -> tuple[str, bytes]:
    """A file of the page, or the page itself."""
    if not name:
        return "text/html; charset=utf-8", linked_page().encode()
    found = asset(name)
    if found is None:
        raise PageError(404, "The page has no such file.")
    return found[1], found[0]


_Query = Mapping[str, str]


def _key(query: _Query) -> str:
    if not query.get("key"):
        raise PageError(400, "key is missing: the name of a trajectory.")
    return query["key"]


def _number(query: _Query, name: str, default: int | None = None) -> int:
    text = query.get(name) or ("" if default is None else str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise PageError(400, f"{name} is {guard.printable(text, 100)!r}: give a whole number.")
    return int(text)


def _expression(query: _Query) -> str:
    if not query.get("where"):
        raise PageError(400, "where is missing: an expression.")
    return query["where"]


def _steps(data: PageData, query: _Query) -> bytes:
    first = _number(query, "first", 0)
    return data.steps(_key(query), first, _number(query, "end", first + MOST_STEPS))


_GET: dict[str, Callable[[PageData, _Query], bytes]] = {
    "info": lambda data, query: data.info(),
    "rows": lambda data, query: data.rows(_number(query, "since", 0), _number(query, "after", 0)),
    "search": lambda data, query: data.search(_expression(query)),
    "trajectory": lambda data, query: data.trajectory(_key(query)),
    "steps": _steps,
    "raw": lambda data, query: data.raw(_key(query), _number(query, "step") if query.get("step") else None),
}
