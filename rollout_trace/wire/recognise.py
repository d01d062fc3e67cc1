"""Which requests are generation calls, by their path and body: for clients of which no SDK is known."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from rollout_trace.wire.protocols import RECORDS, ProtocolRecord, record_of

_PATHS: Final = sorted(
    ((path, one) for one in RECORDS if one.decoder is not None for path in one.paths),
    # Of two paths that one request ends in, the longer one counts.
    key=lambda known: -len(known[0]),
)


def protocol_of_request(method: str, url: str, body: bytes | None) -> str | None:
    """The protocol of a request; None where it is no generation call, or is not known to be one.

    Args:
        method: of HTTP.
        url: address or path.
        body: the request's; None where it is not at hand (a stream).
    """
    protocol = protocol_of_path(method, url)
    return protocol if protocol is not None and has_keys(protocol, body) else None


def protocol_of_path(method: str, url: str) -> str | None:
    """The protocol that a path may be of, whatever the body."""
    record = _record_at(url) if method.upper() == "POST" else None
    return None if record is None else record.name


def has_keys(protocol: str | None, body: bytes | None) -> bool:
    """Whether a body looks like a request of a protocol: an object with the names that each has.

    It is searched for the names and not read, which would take a millisecond of a long one. So a name may be found in
    a text: such a request is recorded, and left out when its answer is none.
    """
    if body is None or body.lstrip()[:1] != b"{":
        return False
    return all(f'"{key}"'.encode() in body for key in record_of(protocol).keys)


@lru_cache(maxsize=1024)
def _record_at(url: str) -> ProtocolRecord | None:
    # A colon may be escaped: `models/NAME%3AgenerateContent`.
    path = unquote(url.partition("?")[0].partition("#")[0]).rstrip("/")
    return next((one for known, one in _PATHS if path.endswith(known)), None)
