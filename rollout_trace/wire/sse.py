"""Parsers of streams: server-sent events, and AWS's event streams (``application/vnd.amazon.eventstream``) of Bedrock.

By https://html.spec.whatwg.org/multipage/server-sent-events.html and
https://smithy.io/2.0/aws/amazon-eventstream.html: a frame is its length, the length of its headers and a checksum of
both (4 bytes each, big endian), headers, payload, and a checksum of the whole.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from json import JSONDecoder

from msgspec import Struct

from rollout_trace.wire.lenient import loads

_BOM = b"\xef\xbb\xbf"
_COMMENT = re.compile(rb"^:[^\r\n]*\r?\n", re.MULTILINE)
_DATA = b"data: "
_BETWEEN = b"\n\n" + _DATA
"""What stands between two events of one line of data each."""
_BLANK_LINES = re.compile(rb"\n{3,}|(?:\r\n){3,}")
_SLICE = 1024 * 1024
"""Bytes of a stream that are split into events at a time. Empty events cost more memory than the bytes they are of."""

_HEAD = 100
"""First bytes of an error that is no event: they name it."""


class Event(Struct, frozen=True, gc=False):
    """One event: its type (empty where none was sent) and its data, lines joined by a newline."""

    type: bytes
    data: bytes
    complete: bool = True
    """False where the stream ended before the blank line that closes the event."""


_data_event = partial(Event, b"")


def events(body: bytes) -> Iterator[Event]:
    """The events of a stream, whole or cut, in order.

    Unlike in a browser, a last event without its closing blank line counts too (``complete`` is False): some servers
    leave the line out, and a stream that was cut ends in the middle of an event.
    """
    lines = data_lines(body)
    if lines is not None:
        yield from map(_data_event, lines)
        return
    if body.startswith(_BOM):
        body = body[len(_BOM) :]
    # By the standard a lone \r ends a line too. It cannot be inside JSON, which escapes it.
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    start = 0
    while len(body) - start > _SLICE and (end := body.find(b"\n\n", start + _SLICE)) >= 0:
        # Heartbeats for hours: as events of their own they would take seconds.
        yield from _whole_events(without_comments(body[start:end]).split(b"\n\n"))
        start = end + 2
    *blocks, rest = (body[start:] if start else body).split(b"\n\n")
    yield from _whole_events(blocks)
    yield from _event(rest, complete=False)


def data_lines(body: bytes) -> list[bytes] | None:
    """The data of the events of a whole stream that has nothing but one line of data in each; None of any other."""
    if b"\r" in body or not (body.startswith(_DATA) and body.endswith(b"\n\n")):
        return None
    found, at, find, between = [], len(_DATA), body.find, _BETWEEN
    # `find` of a single character is much faster than `split`.
    while between == _BETWEEN:
        end = find(b"\n", at)
        found.append(body[at:end])
        at = end + len(_BETWEEN)
        between = body[end:at]
    return found if between == b"\n\n" else None


def without_comments(lines: bytes) -> bytes:
    """The same events without comment lines (heartbeats), and without most of the blank lines between events.

    ``lines`` are part of a stream, from the beginning of a line on. What stands after the last line end stays as it is.
    """
    if b"\n:" not in lines and not lines.startswith(b":"):
        return lines
    first = _COMMENT.search(lines)
    if first is not None:
        # Heartbeats are equal, and `replace` is ten times as fast as the pattern, which finds the other comments.
        lines = (b"\n" + lines).replace(b"\n" + first.group(), b"\n")[1:]
    # A blank line ends the event before it: one stays. Further ones have no meaning.
    return _BLANK_LINES.sub(b"\n\n", _COMMENT.sub(b"", lines))


def _whole_events(blocks: list[bytes]) -> Iterator[Event]:
    for block in filter(None, blocks):
        # Nearly every event of every engine is one such line.
        if block.startswith(b"data: ") and b"\n" not in block:
            yield Event(b"", block[6:])
            continue
        # Those of Anthropic and of Responses are two.
        name, _, data = block.partition(b"\n")
        if name.startswith(b"event: ") and data.startswith(b"data: ") and b"\n" not in data:
            yield Event(name[7:], data[6:])
        else:
            yield from _event(block)


def _event(block: bytes, *, complete: bool = True) -> Iterator[Event]:
    if block.startswith(b"{") and b'"error"' in block[:_HEAD]:
        # Google and proxies end a stream with an error that is in no field; Google's may come twice.
        yield Event(b"error", _first_object(block), complete)
        return
    kind, data = b"", []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
        elif name == b"error":
            # llama.cpp before b6380 (September 2025) sends an error as a field of its own.
            kind, data = b"error", [*data, value]
    if data:
        yield Event(kind, b"\n".join(data), complete)


def _first_object(text: bytes) -> bytes:
    """The JSON object that a text begins with; the whole text where it is none."""
    value = text.decode("utf-8", "replace")
    try:
        return value[: JSONDecoder().raw_decode(value)[1]].encode()
    except (ValueError, RecursionError):
        return text


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


def framed_events(body: bytes) -> Iterator[Event]:
    """The events of frames, whole or cut, as Anthropic's API sends them. A bad checksum becomes an error event."""
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
        yield from _events_of_frame(_headers(frame[12 : 12 + headers_length]), frame[12 + headers_length : -4])
        at += length


def _events_of_frame(headers: dict[str, str], payload: bytes) -> Iterator[Event]:
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
