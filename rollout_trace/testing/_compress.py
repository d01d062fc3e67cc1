"""Content encodings, flushed after each chunk, so that a compressed stream still arrives event by event."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from ._messages import Part
from .script import Compression


def compress_parts(parts: Sequence[Part], encoding: Compression) -> list[Part]:
    """Compress the bytes among the parts, flushed after each. Needs brotli for "br", zstandard for "zstd"."""
    step, finish = _ENCODERS[encoding]()
    encoded: list[Part] = [step(part) if isinstance(part, bytes) else part for part in parts]
    return [*encoded, finish()]


def _gzip() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    encoder = zlib.compressobj(wbits=31)
    return (lambda data: encoder.compress(data) + encoder.flush(zlib.Z_SYNC_FLUSH)), encoder.flush


def _brotli() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    encoder = _optional("brotli", "brotli").Compressor()
    return (lambda data: bytes(encoder.process(data) + encoder.flush())), (lambda: bytes(encoder.finish()))


def _zstd() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    zstandard = _optional("zstandard", "zstandard")
    encoder = zstandard.ZstdCompressor().compressobj()
    block = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return (lambda data: bytes(encoder.compress(data) + encoder.flush(block))), (lambda: bytes(encoder.flush()))


def _optional(module: str, package: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this reply asks for a compression that needs `{package}`: pip install {package}") from error


_ENCODERS: dict[Compression, Callable[[], tuple[Callable[[bytes], bytes], Callable[[], bytes]]]] = {
    "gzip": _gzip,
    "br": _brotli,
    "zstd": _zstd,
}
