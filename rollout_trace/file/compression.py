"""Compresses and unpacks files of lines: by the suffix when writing, by the first bytes when reading.

Each line is a member of its own, and reading goes on behind a damaged one.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

GZIP_MAGIC = b"\x1f\x8b\x08"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_LEVEL = 1
_CHUNK = 1 << 16
_BURST = 1 << 24
"""Bytes that are decompressed at once, at most."""
_ZSTD_SLICE = 1 << 11
"""Compressed bytes that zstd is given at once. It has no limit for what comes out, which is 64 MB at most of these."""


def is_compressed(magic: bytes) -> bool:
    """True where the first four bytes of a file are those of gzip or zstd."""
    return magic.startswith(GZIP_MAGIC) or magic == ZSTD_MAGIC


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
            f"{path} holds {found} (its first bytes: {magic!r}), but its name says {expected}: nothing was written. "
            "Give another name, or move the file."
        )


# Unpacking


class Damaged(Exception):
    """Compressed bytes that cannot be decompressed, or a line that is too long; yielded in place of lines.

    Args:
        problem: what was expected, and what was found.
        code: name of the rule that is broken, as that of ``BadLine``.
        is_cut: the file ends here, inside of a compressed member.
    """

    def __init__(self, problem: str, code: str = "damaged-compression", *, is_cut: bool = False) -> None:
        super().__init__(problem)
        self.code, self.is_cut = code, is_cut


def members_of(file: BinaryIO, path: str) -> Members | None:
    """The members of a compressed file; None of a plain one. Leaves the file at its begin."""
    magic, suffix = file.read(4), os.path.splitext(path)[1]
    file.seek(0)
    # A file may lack its suffix, or have it and be unpacked: the bytes decide where they can.
    is_json = magic[:1] in (b"{", b"\n", b"\r", b" ", b"\xef")
    if magic.startswith(GZIP_MAGIC) or (suffix == ".gz" and magic and not is_json):
        return Members(file, GZIP_MAGIC, lambda: zlib.decompressobj(31), zlib.error)
    if magic == ZSTD_MAGIC or (suffix == ".zst" and magic and not is_json):
        zstandard = import_zstandard(path)
        return Members(file, ZSTD_MAGIC, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError)
    return None


class Members:
    """The decompressed parts of a file of gzip members or zstd frames, one after the other."""

    def __init__(self, file: BinaryIO, magic: bytes, new: Any, error: type[Exception]) -> None:
        self._file = file
        self._magic = magic
        self._new = new
        self._error = error
        self.start = 0
        """Offset in the file of the member being read."""

    def parts(self) -> Iterator[bytes | Damaged | None]:
        """Yields parts from ``start`` on, None after each member, and ``Damaged`` in the place of a damaged one."""
        while True:
            try:
                yield from self._members()
                return
            except (self._error, EOFError) as error:
                problem = f"expected compressed data, got bytes that cannot be decompressed: {error}"
                damaged = Damaged(problem, is_cut=isinstance(error, EOFError))
                damaged.__cause__ = error
                yield damaged
            if not self._seek_next():
                return

    def _members(self) -> Iterator[bytes | None]:
        """Yields the parts of each member from ``self.start`` on, and None after it; raises at a damaged one."""
        self._file.seek(self.start)
        data = self._file.read(_CHUNK)
        while data:
            member = self._new()
            while True:
                data = yield from self._inflate(member, data)
                if member.eof:
                    break
                data = self._file.read(_CHUNK)
                if not data:
                    raise EOFError("the file ends inside of them (its writer was stopped?)")
            self.start = self._file.tell() - len(data)
            yield None
            data = data or self._file.read(_CHUNK)

    def _inflate(self, member: Any, data: bytes) -> Generator[bytes, None, bytes]:
        """Yields what the bytes decompress to, in parts of bounded size. Returns those behind the member's end."""
        if self._magic == ZSTD_MAGIC:
            for at in range(0, len(data), _ZSTD_SLICE):
                yield member.decompress(data[at : at + _ZSTD_SLICE])
                if member.eof:
                    return bytes(member.unused_data) + data[at + _ZSTD_SLICE :]
            return b""
        while True:
            part = member.decompress(data, _BURST)
            yield part
            data = member.unconsumed_tail
            # A full part: more may be left although all bytes were taken.
            if member.eof or (not data and len(part) < _BURST):
                return bytes(member.unused_data)

    def _seek_next(self) -> bool:
        """Moves ``self.start`` to the next magic number after the damaged member. False where there is none."""
        at, window = self.start + 1, b""
        self._file.seek(at)
        while chunk := self._file.read(_CHUNK):
            window += chunk
            found = window.find(self._magic)
            if found >= 0:
                self.start = at + found
                return True
            at += max(0, len(window) - len(self._magic) + 1)
            # The magic number may lie across two chunks.
            window = window[-len(self._magic) + 1 :]
        return False
