"""What really went over the connection, kept below the SDK and below the recorder."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2


@dataclass
class Exchange:
    """One request and its answer, as they were on the wire."""

    path: str
    request: bytes
    status: int
    content_type: str
    chunks: list[bytes] = field(default_factory=list)

    @property
    def response(self) -> bytes:
        """The body of the answer."""
        return b"".join(self.chunks)

    @property
    def asked(self) -> dict[str, Any]:
        """The body of the request."""
        body: dict[str, Any] = json.loads(self.request)
        return body

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The JSON of the answer: one object, or one for each event of a stream."""
        text = self.response.decode()
        if "event-stream" not in self.content_type:
            return [json.loads(text)]
        data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        # llama-server sends `null` where it has nothing to say yet.
        return [json.loads(item) for item in data if item.strip() not in ("[DONE]", "null")]


class Capture(httpx2.BaseTransport):
    """A transport that keeps every POST."""

    def __init__(self) -> None:
        self._inner = httpx2.HTTPTransport()
        self._lock = threading.Lock()
        self.exchanges: list[Exchange] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends the request and keeps the answer as it is read."""
        response = self._inner.handle_request(request)
        assert "content-encoding" not in response.headers
        if request.method == "POST":
            kind = response.headers.get("content-type", "")
            exchange = Exchange(request.url.path, request.read(), response.status_code, kind)
            assert isinstance(response.stream, httpx2.SyncByteStream)
            response.stream = _Kept(response.stream, exchange.chunks)
            with self._lock:
                self.exchanges.append(exchange)
        return response

    def close(self) -> None:
        """Closes the connections."""
        self._inner.close()


class _Kept(httpx2.SyncByteStream):
    def __init__(self, inner: httpx2.SyncByteStream, chunks: list[bytes]) -> None:
        self._inner = inner
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._inner:
            self._chunks.append(chunk)
            yield chunk

    def close(self) -> None:
        self._inner.close()
