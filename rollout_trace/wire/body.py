"""Decompression of HTTP bodies, cut ones included."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any


def decompress(body: bytes, encoding: str | None) -> bytes:
    """The body without its ``content-encoding``; of a cut body as much as can be decompressed.

    Raises:
        ValueError: the encoding is not known, its library is not installed, or the bytes are not in it.
    """
    # Listed in the order in which they were applied.
    for name in reversed((encoding or "").lower().split(",")):
        codec = name.strip()
        if codec and codec != "identity":
            body = _decompress_one(body, codec)
    return body


def _decompress_one(body: bytes, codec: str) -> bytes:
    undo = _CODECS.get(codec)
    if undo is None:
        raise ValueError(f"content-encoding {codec!r} is not known; known: {', '.join(sorted(_CODECS))}.")
    try:
        return undo(body)
    except ImportError as error:
        raise ValueError(f"content-encoding {codec!r} needs a library that is not installed: {error}.") from None
    except Exception as error:
        raise ValueError(f"the body is not in its content-encoding {codec!r}: {error}.") from error


def _gzip(body: bytes) -> bytes:
    # gzip.decompress() raises on a cut body, and a decompressobj stops after one of several members.
    parts = []
    while body:
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        parts.append(member.decompress(body))
        body = member.unused_data
    return b"".join(parts)


def _deflate(body: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(body)
    except zlib.error:
        # RFC 9110 asks for the zlib wrapper; some servers send the bare stream, and clients accept both.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(body)


def _brotli(body: bytes) -> bytes:
    decompressor = _first_of("brotli", "brotlicffi").Decompressor()
    step = decompressor.process if hasattr(decompressor, "process") else decompressor.decompress
    parts = [step(body)]
    # Some releases return a bounded piece per call, and nothing at the end.
    while parts[-1]:
        parts.append(step(b""))
    return b"".join(parts)


def _zstd(body: bytes) -> bytes:
    module = _first_of("zstandard", "compression.zstd", "backports.zstd")
    parts = []
    while body:
        frame = module.ZstdDecompressor()
        frame = frame.decompressobj() if hasattr(frame, "decompressobj") else frame
        parts.append(frame.decompress(body))
        body = frame.unused_data
    return b"".join(parts)


def _first_of(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module(names[-1])


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
