"""One request that is forwarded to a real server, and what came back, chunk by chunk, for a cassette."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from urllib.parse import urlsplit, urlunsplit

from rollout_trace import credentials
from rollout_trace.clients.loopback.forwarding import Forwarding
from rollout_trace.data.exchange import Exchange, Outcome

from .matching import Request

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
_KEYS_IN_QUERY = re.compile(r"((?:^|&)(?:key|api[-_]key|access_token|token)=)[^&]+", re.I)


class RecordedForwarding(Forwarding):
    """An exchange with a real server in progress, and what has passed so far. ``protocol``: None, it generates not."""

    def __init__(self, request: Request, protocol: str | None) -> None:
        # What comes is kept: unpacked, it can be read in the file, and matches whatever the client can unpack.
        super().__init__(encodings=lambda given: "identity")
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

    def exchange(self, name: str) -> Exchange:
        """Returns what was recorded so far."""
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

    def head(self, status: int, headers: list[tuple[str, str]], length: int | None) -> None:
        """Keeps the head of the answer."""
        self._status, self._outcome = status, "cut"
        self._headers = _kept(headers)
        if length is not None:
            self._headers = (*self._headers, ("content-length", str(length)))

    def received(self, chunk: bytes) -> None:
        """Keeps a piece of the body, and when it came."""
        self._times.append(time.perf_counter() - self._began)
        self._chunks.append(chunk)

    def ended(self, outcome: Outcome) -> None:
        """Keeps how the exchange ended."""
        self._outcome, self._ended = outcome, time.perf_counter()


def _kept(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    kept = [(name, value) for name, value in headers if name in _KEPT or name.startswith(_KEPT_PREFIXES)]
    # Of an address its path: a client goes on from its own. Requests are matched without their hosts.
    for parts in (urlsplit(value) for name, value in headers if name == "location"):
        kept.append(("location", urlunsplit(("", "", parts.path or "/", cut_query(parts.query), ""))))
    return tuple((name, credentials.cut(value)) for name, value in kept)


def cut_query(query: str) -> str:
    """A query without the values of keys, whatever they look like: nobody compares them."""
    return _KEYS_IN_QUERY.sub(rf"\g<1>{credentials.MASK}", query)
