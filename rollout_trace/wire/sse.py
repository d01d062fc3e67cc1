"""Parser of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its type (empty where none was sent) and its data, lines joined by a newline."""

    type: bytes
    data: bytes
    complete: bool = True
    """False where the stream ended before the blank line that closes the event."""


def events(body: bytes) -> Iterator[Event]:
    """The events of a stream, whole or cut, in order.

    Unlike in a browser, a last event without its closing blank line counts too (``complete`` is False): some servers
    leave the line out, and a stream that was cut ends in the middle of an event.
    """
    if body.startswith(_BOM):
        body = body[len(_BOM) :]
    # By the standard a lone \r ends a line too. It cannot be inside JSON, which escapes it.
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *blocks, rest = body.split(b"\n\n")
    for block in blocks:
        # Nearly every event of every engine is one such line.
        if block.startswith(b"data: ") and b"\n" not in block:
            yield Event(b"", block[6:])
        else:
            yield from _event(block)
    yield from _event(rest, complete=False)


def _event(block: bytes, *, complete: bool = True) -> Iterator[Event]:
    kind, data = b"", []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
    if data:
        yield Event(kind, b"\n".join(data), complete)
