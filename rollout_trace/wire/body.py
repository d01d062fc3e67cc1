"""Decompression of HTTP bodies, cut ones included, piece by piece: a few bytes can unpack to gigabytes."""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

_INPUT = 16 * 1024
"""Bytes unpacked at a time. A member of a body that has several ends inside one: what is left of it is copied."""
_OUTPUT = 256 * 1024
"""Most bytes that come out at a time."""


def decompress(body: bytes, encoding: str | None) -> bytes:
    """The body without its ``content-encoding``; of a cut body as much as can be decompressed.

    Raises:
        ValueError: the encoding is not known, its library is not installed, or the bytes are not in it.
    """
    return unpack(body, encoding, None)[0]


def unpack(body: bytes, encoding: str | None, limit: int | None) -> tuple[bytes, bool]:
    """Like ``decompress``, but returns at most the first ``limit`` bytes, and whether there are more.

    Nothing is unpacked beyond the limit, in any of several encodings: how much more there is is not known.

    Raises:
        ValueError: as ``decompress``.
    """
    if not encoding and (limit is None or len(body) <= limit):
        return body, False
    # Listed in the order in which they were applied.
    names = [codec for name in reversed((encoding or "").lower().split(",")) if (codec := name.strip())]
    codecs = [name for name in names if name != "identity"]
    if not codecs:
        return (body, False) if limit is None or len(body) <= limit else (body[:limit], True)
    stages: list[_Stage] = []
    parts: Iterable[bytes] = (body[at : at + _INPUT] for at in range(0, len(body), _INPUT))
    for left, name in zip(range(len(codecs) - 1, -1, -1), codecs, strict=True):
        # What is still encoded may be a little longer than what it holds.
        stage = _Stage(name, parts, limit if limit is None or not left else 2 * limit + _INPUT)
        stages.append(stage)
        parts = stage
    # Not a join of all parts, which would need the bytes twice.
    whole = io.BytesIO()
    for part in parts:
        whole.write(part)
    return whole.getvalue(), any(stage.has_more for stage in stages)


class _Stage:
    """The output of one codec: at most ``limit`` bytes."""

    def __init__(self, codec: str, parts: Iterable[bytes], limit: int | None) -> None:
        self.has_more = False
        """True once there was more than the limit."""
        self._codec = codec
        self._parts = parts
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        undo = _CODECS.get(self._codec)
        if undo is None:
            raise _WrongBody(f"content-encoding {self._codec!r} is not known; known: {', '.join(sorted(_CODECS))}.")
        try:
            yield from self._limited(undo(self._parts))
        except _WrongBody:
            # Of an encoding around this one.
            raise
        except ImportError as error:
            raise _WrongBody(
                f"content-encoding {self._codec!r} needs a library that is not installed: {error}."
            ) from None
        except Exception as error:
            raise _WrongBody(f"the body is not in its content-encoding {self._codec!r}: {error}.") from error

    def _limited(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        left = self._limit
        for part in parts:
            if left is not None and len(part) > left:
                self.has_more = True
                yield part[:left]
                return
            if left is not None:
                left -= len(part)
            yield part


class _WrongBody(ValueError):
    pass


def _gzip(parts: Iterable[bytes]) -> Iterator[bytes]:
    # gzip.decompress() raises on a cut body, and a decompressobj stops after one of several members.
    member: Any = None
    for part in parts:
        while part:
            member = member or zlib.decompressobj(zlib.MAX_WBITS | 16)
            yield from _inflated(member, part)
            part = member.unused_data
            member = None if member.eof else member


def _deflate(parts: Iterable[bytes]) -> Iterator[bytes]:
    stream: Any = None
    head = b""
    for part in parts:
        if stream is None:
            head += part
            if len(head) < 2:
                continue
            part, stream = head, zlib.decompressobj(_deflate_window(head[:2]))
        yield from _inflated(stream, part)


def _deflate_window(head: bytes) -> int:
    """RFC 9110 asks for the zlib wrapper; some servers send the bare stream, and clients accept both."""
    try:
        zlib.decompressobj().decompress(head)
    except zlib.error:
        return -zlib.MAX_WBITS
    return zlib.MAX_WBITS


def _inflated(stream: Any, part: bytes) -> Iterator[bytes]:
    while not stream.eof:
        found = stream.decompress(part, _OUTPUT)
        yield found
        part = stream.unconsumed_tail
        # A full piece: there may be more inside the stream, although it has taken all of its input.
        if not part and len(found) < _OUTPUT:
            return


def _brotli(parts: Iterable[bytes]) -> Iterator[bytes]:
    module = _first_of("brotli", "brotlicffi")
    decompressor = module.Decompressor()
    step = decompressor.process if hasattr(decompressor, "process") else decompressor.decompress
    if hasattr(decompressor, "can_accept_more_data"):
        step = partial(step, output_buffer_limit=_OUTPUT)
        for part in parts:
            yield step(part)
            while not decompressor.can_accept_more_data():
                yield step(b"")
    else:
        # Releases before 1.2 give all that is in a piece at once: a few bytes can hold 16 MiB.
        for part in parts:
            for start in range(0, len(part), 64):
                yield step(part[start : start + 64])
    # Some releases keep back what a cut body ends with, and give nothing at the end.
    while last := step(b""):
        yield last


def _zstd(parts: Iterable[bytes]) -> Iterator[bytes]:
    module = _first_of("zstandard", "compression.zstd", "backports.zstd")
    if hasattr(module.ZstdDecompressor, "stream_reader"):
        reader = module.ZstdDecompressor().stream_reader(_Source(parts), read_across_frames=True)
        while found := reader.read(_OUTPUT):
            yield found
        return
    frame: Any = None
    for part in parts:
        while part:
            frame = frame or module.ZstdDecompressor()
            found = frame.decompress(part, _OUTPUT)
            yield found
            while not (frame.eof or frame.needs_input):
                yield frame.decompress(b"", _OUTPUT)
            part, frame = (frame.unused_data, None) if frame.eof else (b"", frame)


class _Source:
    """The parts as a file."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)

    def read(self, size: int) -> bytes:
        """The next part. It may be longer than ``size``, which is only a proposal to the file."""
        return next((part for part in self._parts if part), b"")


def _first_of(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module(names[-1])


_CODECS: dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
