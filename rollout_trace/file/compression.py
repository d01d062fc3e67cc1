"""Compression of files of lines: chosen by the suffix when writing, detected by the first bytes when reading."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

GZIP_MAGIC = b"\x1f\x8b\x08"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_LEVEL = 1


def compressor(path: Path) -> Callable[[bytes], bytes] | None:
    """Function that compresses a line, by the suffix of the path; None where lines are written as they are.

    Each line becomes one gzip member or zstd frame, so that lines can be appended and read one by one.

    Raises:
        ImportError: the suffix is ``.zst`` and zstandard is not installed.
    """
    if path.suffix == ".gz":
        return _gzip
    if path.suffix != ".zst":
        return None
    zstandard = import_zstandard(path)

    def compress(line: bytes) -> bytes:
        # A new compressor for each line: two threads must not use one at the same time.
        data: bytes = zstandard.ZstdCompressor(write_checksum=True).compress(line)
        return data

    return compress


def _gzip(line: bytes) -> bytes:
    member = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
    return member.compress(line) + member.flush()


def import_zstandard(path: str | os.PathLike[str]) -> Any:
    """The optional module zstandard.

    Raises:
        ImportError: it is not installed; the message names ``path`` and the package.
    """
    try:
        import zstandard
    except ImportError:
        raise ImportError(
            f"{os.fspath(path)} is compressed with zstd, which needs the package zstandard. "
            "Install it with: pip install zstandard"
        ) from None
    return zstandard


def check_content(file: int, path: Path) -> None:
    """Checks that the first bytes of an open file fit its suffix: lines appended in another format are unreadable.

    Empty files and files that are not regular pass.

    Raises:
        ValueError: they do not fit.
    """
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return
    os.lseek(file, 0, os.SEEK_SET)
    magic = os.read(file, 4)
    # The second zstd magic is that of a skippable frame, whose first byte varies.
    kinds = (("gzip", magic.startswith(GZIP_MAGIC)), ("zstd", magic == ZSTD_MAGIC or magic[1:] == b"\x2a\x4d\x18"))
    found = next(
        (kind for kind, fits in kinds if fits), "JSON lines" if magic[:1] in b"{\n\r\t \xef" else "another format"
    )
    expected = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix, "JSON lines")
    if magic and found != expected:
        raise ValueError(
            f"{path} holds {found} (its first bytes: {magic!r}), and its name says {expected}: nothing was written. "
            "Give another name, or move the file."
        )
