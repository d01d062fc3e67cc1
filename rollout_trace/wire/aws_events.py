"""Parser of AWS event streams (``application/vnd.amazon.eventstream``), in which Bedrock frames events.

A frame is its length, the length of its headers and a checksum of both (4 bytes each, big endian), headers, payload,
and a checksum of the whole (https://smithy.io/2.0/aws/amazon-eventstream.html).
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Iterator

from rollout_trace.wire.lenient import loads
from rollout_trace.wire.sse import Event

_PRELUDE = struct.Struct(">III")
# Bytes of a frame. A larger length is a damaged head.
_LARGEST = 24 * 1024 * 1024
# Bytes of a header's value, by its type; 6 (bytes) and 7 (text) have their own length.
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


def is_framed(body: bytes) -> bool:
    """True where a body begins with a frame. (Neither JSON nor server-sent events begin with a zero byte.)"""
    if len(body) < _PRELUDE.size or body[0] != 0:
        return body[:1] == b"\0"
    length, headers, checksum = _PRELUDE.unpack_from(body)
    # 16 bytes around headers and payload: the head of 12 and the last checksum.
    return bool(length >= headers + 16) and zlib.crc32(body[:8]) == checksum


def events(body: bytes) -> Iterator[Event]:
    """The events of a stream, whole or cut, as Anthropic's API sends them. A bad checksum becomes an error event."""
    at = 0
    while len(body) - at >= _PRELUDE.size:
        length, headers_length, checksum = _PRELUDE.unpack_from(body, at)
        if zlib.crc32(body[at : at + 8]) != checksum or not headers_length + 16 <= length <= _LARGEST:
            yield _error("ChecksumMismatch", f"the frame at byte {at} of the event stream has a damaged head")
            return
        frame = body[at : at + length]
        if len(frame) < length:
            return
        if zlib.crc32(frame[:-4]) != int.from_bytes(frame[-4:], "big"):
            yield _error("ChecksumMismatch", f"the frame at byte {at} of the event stream is damaged")
            return
        yield from _event(_headers(frame[12 : 12 + headers_length]), frame[12 + headers_length : -4])
        at += length


def _event(headers: dict[str, str], payload: bytes) -> Iterator[Event]:
    kind = headers.get(":message-type")
    if kind in ("exception", "error"):
        code = headers.get(":exception-type") or headers.get(":error-code") or kind
        yield _error(code, headers.get(":error-message") or _message(payload))
    elif headers.get(":event-type", "chunk") == "chunk":
        data = _chunk(payload)
        yield _error("InvalidChunk", "a chunk of the event stream has no bytes") if data is None else Event(b"", data)


def _chunk(payload: bytes) -> bytes | None:
    try:
        value = loads(payload)
        return base64.b64decode(value["bytes"], validate=True)
    except (ValueError, TypeError, KeyError, binascii.Error):
        return None


def _message(payload: bytes) -> str:
    try:
        value = loads(payload)
    except ValueError:
        value = None
    message = value.get("message") or value.get("Message") if isinstance(value, dict) else None
    return message if isinstance(message, str) else payload.decode("utf-8", "replace")


def _error(code: str, message: str) -> Event:
    return Event(b"error", json.dumps({"type": "error", "error": {"type": code, "message": message}}).encode())


def _headers(data: bytes) -> dict[str, str]:
    """The headers whose values are texts."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]].decode("utf-8", "replace")
        at += 1 + data[at]
        kind = data[at] if at < len(data) else -1
        at += 1
        size = _SIZES.get(kind)
        if size is None:
            size = int.from_bytes(data[at : at + 2], "big")
            at += 2
        if kind == 7:
            found[name] = data[at : at + size].decode("utf-8", "replace")
        at += size
    return found
