"""The bytes that one call keeps, within a limit, and a sentence on those that it did not keep.

A request body longer than the limit is not kept: a part of it could not be read. Of a longer response the first bytes
are, and the rest is counted; so of one that is longer than ``UNPACKED`` times the limit once its content encoding is
undone. Comment lines of event streams (heartbeats) are removed as they come, and do not count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from rollout_trace.wire.sse import without_comments

UNPACKED = 4
"""The limit of an unpacked response, as a multiple of that of one as it arrives."""
PIECE = 256 * 1024
"""Bytes of a stream that are searched for comments at a time: about a millisecond of work."""
_TAIL = 512
_DONE = re.compile(rb"\ndata: ?\[DONE\]")


class KeptBytes:
    """The bytes of a call's latest attempt. ``Call`` derives from it."""

    __slots__ = ("_checked", "_tail", "chunks", "held", "is_decompressed", "left_out", "limit", "mark", "request",
                 "request_left_out")  # fmt: skip

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Most bytes that are kept of the request, and of the response as it arrives: ``max_call_bytes``."""
        self.forget_bytes()

    def forget_bytes(self) -> None:
        """Begins anew, for another attempt."""
        self.request: bytes | None = None
        """Request body; None where it is unknown, or too long to keep."""
        self.request_left_out = 0
        """Bytes of a request body that was too long to keep."""
        self.chunks: list[bytes] = []
        """Response body, as far as it has arrived, up to the limit."""
        self.held = 0
        """Bytes in ``chunks``."""
        self.left_out = 0
        """Bytes of the response that came after those in ``chunks``."""
        self.is_decompressed = False
        """Whether the response was given without its content encoding: as a whole, or by a library that undoes it."""
        self._tail = b""
        self.mark = min(PIECE, self.limit)
        """The number of held bytes above which there is something to do."""
        # The chunks before it have been searched for comments.
        self._checked = 0

    @property
    def encoding(self) -> str | None:
        """Content encoding of ``chunks``; None if they are not compressed."""
        return None

    @property
    def is_text_stream(self) -> bool:
        """Whether the response is declared a stream of server-sent events."""
        return False

    def size(self) -> int:
        """Number of bytes held until the call is decoded."""
        return len(self.request or b"") + self.held

    def drop_bytes(self) -> None:
        """Drops the bodies of a call that has been decoded."""
        self.chunks, self.request, self.held = [], None, 0

    def keep_request(self, content: bytes | None) -> None:
        """Keeps a request body, unless it is too long; None if it is unknown."""
        if content is not None and len(content) > self.limit:
            self.request_left_out = len(content)
        else:
            self.request = content

    def keep_body(self, content: bytes, *, is_encoded: bool) -> None:
        """Keeps a whole response, as far as the limit allows. ``is_encoded``: it arrived in a content encoding."""
        limit = self.limit * UNPACKED if is_encoded else self.limit
        kept = content if len(content) <= limit else content[: self.limit]
        self.chunks, self.held, self.left_out = [kept], len(kept), len(content) - len(kept)
        self.is_decompressed = True

    def past_mark(self) -> None:
        """Removes comments from what came since the last time, and keeps the response within its limit.

        To be called when ``held`` has exceeded ``mark``.
        """
        if not self.left_out:
            self._remove_comments()
        while self.held > self.limit:
            # The latest chunk; once some bytes were left out all of it is, or the stream would have a gap.
            chunk = self.chunks.pop()
            kept = chunk[: max(len(chunk) - (self.held - self.limit), 0)]
            rest = chunk[len(kept) :]
            self.held -= len(rest)
            self.left_out += len(rest)
            self._tail = (self._tail + rest[-_TAIL:])[-_TAIL:]
            if kept:
                self.chunks.append(kept)
        self.mark = self.limit if self.left_out else min(self.held + PIECE, self.limit)

    def saw_done(self) -> bool:
        """Whether the part of an uncompressed stream that was left out ended with the event [DONE]."""
        return self.encoding is None and _DONE.search(self._tail) is not None

    def has_last_event(self) -> bool:
        """Whether what has arrived of an uncompressed stream ends with the event [DONE]."""
        return self.encoding is None and _DONE.search(b"".join(self.chunks[-8:])[-_TAIL:]) is not None

    def set_done(self) -> None:
        """Of a recovered call, whose tail is not stored: ``saw_done`` is True."""
        self._tail = b"\ndata: [DONE]"

    def what_is_missing(self, *, has_more: bool) -> str | None:
        """A sentence on what is not kept; None where all is.

        ``has_more``: what is kept of the response unpacks to more than the limit of an unpacked one.
        """
        parts = []
        if self.request_left_out:
            parts.append(f"the request has {self.request_left_out:,} bytes, and none are kept")
        if self.left_out:
            parts.append(f"the response has {self.held + self.left_out:,} bytes, and the first {self.held:,} are kept")
        if has_more:
            unpacked = f"unpack to more than {UNPACKED * self.limit:,}, and the first {self.limit:,} of them are read"
            parts.append(f"{self.held:,} bytes of the response {unpacked}")
        return f"{'; '.join(parts)} (max_call_bytes is {self.limit:,})." if parts else None

    def _remove_comments(self) -> None:
        """Removes the comment lines from the chunks since ``_checked``, which then come before it."""
        if not self.is_text_stream or self.encoding is not None:
            return
        piece = b"".join(self.chunks[self._checked :])
        begins_line = not self._checked or self.chunks[self._checked - 1].endswith(b"\n")
        start = 0 if begins_line else piece.find(b"\n") + 1
        end = piece.rfind(b"\n") + 1
        before, lines, rest = piece[:start], piece[start:end], piece[max(start, end) :]
        kept = without_comments(lines)
        # A comment whose end has not come is looked at again; a very long one is not, or it would be for ever.
        is_open = rest.startswith(b":") and len(rest) < PIECE and (begins_line or start > 0)
        if len(kept) < len(lines) or is_open:
            done = [part for part in (before, kept, b"" if is_open else rest) if part]
            self.chunks[self._checked :] = [*done, rest] if is_open else done
            self.held -= len(lines) - len(kept)
            self._checked += len(done)
        else:
            self._checked = len(self.chunks)


_PLAIN = frozenset({type(None), bool, int, float})
"""Types of values that take no memory worth counting."""
_SMALL = 256
"""Bytes of a text below which it is counted wherever it stands: to remember it would take as much."""


def held_bytes(values: Iterable[Any], seen: set[int]) -> int:
    """Roughly, the bytes that values occupy with what is in them: dicts, lists, texts, arrays, records.

    Of other objects only what the object itself takes: what it refers to (a client, a simulation) is seldom its own.

    Args:
        values: any values. Each must live as long as ``seen`` is used.
        seen: ``id`` of what was counted before, which is not counted again.
    """
    total, parts = 0, list(values)
    while parts:
        part = parts.pop()
        kind = type(part)
        if kind in _PLAIN:
            continue
        if kind is str and len(part) < _SMALL:
            total += sys.getsizeof(part)
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        total += _own_bytes(part)
        if isinstance(part, dict):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            parts += part
        elif not isinstance(part, (str, bytes)):
            parts += _fields_of(part)
    return total


def _own_bytes(value: Any) -> int:
    try:
        size = sys.getsizeof(value)
        # Of an array that another one holds, and of tensors, the object alone is counted by Python.
        return max(size, int(value.nbytes)) if hasattr(type(value), "nbytes") else size
    except Exception:  # Code of a user's.
        return 0


def _fields_of(value: Any) -> list[Any]:
    """What a dataclass or a Pydantic object holds; of others nothing."""
    try:
        if is_dataclass(value) and not isinstance(value, type):
            return [getattr(value, item.name) for item in fields(value)]
        return list(vars(value).values()) if callable(getattr(type(value), "model_dump", None)) else []
    except Exception:  # Code of a user's: properties, `__getattribute__`.
        return []
