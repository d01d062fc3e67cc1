"""The end of a file of lines: from where its last lines are, and what is whole of a file that is being written."""

from __future__ import annotations

import io
import os
import zlib
from typing import Any, BinaryIO

from rollout_trace.file.compression import GZIP_MAGIC, ZSTD_MAGIC, import_zstandard

_BLOCK = 1 << 18


def is_compressed(file: BinaryIO) -> bool:
    """Whether a file holds gzip or zstd, by its first bytes. Its place is kept."""
    before = file.tell()
    file.seek(0)
    magic = file.read(4)
    file.seek(before)
    return magic.startswith(GZIP_MAGIC) or magic == ZSTD_MAGIC


def begin_of_last(file: BinaryIO, count: int, end: int) -> int:
    """The offset at which the last lines before ``end`` begin; 0 where there are fewer. Read from the end.

    Args:
        file: not compressed.
        count: number of lines; blank ones count.
    """
    # The newline that ends the last line separates nothing.
    wanted, at = count + (count > 0 and end > 0 and _byte(file, end - 1) == b"\n"), end
    if not count:
        return end
    while at > 0:
        begin = max(0, at - _BLOCK)
        file.seek(begin)
        block = file.read(at - begin)
        number = block.count(b"\n")
        if number >= wanted:
            place = len(block)
            for _ in range(wanted):
                place = block.rfind(b"\n", 0, place)
            return begin + place + 1
        wanted, at = wanted - number, begin
    return 0


def _byte(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    return file.read(1)


def newlines_before(file: BinaryIO, end: int) -> int:
    """Number of newlines before an offset of a plain file."""
    file.seek(0)
    number = 0
    while end > 0 and (block := file.read(min(_BLOCK, end))):
        number += block.count(b"\n")
        end -= len(block)
    return number


def end_of_whole(file: BinaryIO, begin: int, path: str) -> int:
    """The offset at which the last whole line ends, from an offset at which one begins. Of a compressed file, the last
    whole member: our writers put a line in each.

    Args:
        path: for the message where zstandard is missing.
    """
    file.seek(begin)
    magic = file.read(4)
    if magic.startswith(GZIP_MAGIC):
        return _end_of_members(file, begin, lambda: zlib.decompressobj(31), zlib.error)
    if magic == ZSTD_MAGIC:
        zstandard = import_zstandard(path)
        new = zstandard.ZstdDecompressor().decompressobj
        return _end_of_members(file, begin, new, zstandard.ZstdError)
    end = file.seek(0, os.SEEK_END)
    return begin + _length_of_whole(file, begin, end)


def _length_of_whole(file: BinaryIO, begin: int, end: int) -> int:
    at = end
    while at > begin:
        start = max(begin, at - _BLOCK)
        file.seek(start)
        place = file.read(at - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1 - begin
        at = start
    return 0


def _end_of_members(file: BinaryIO, begin: int, new: Any, error: type[Exception]) -> int:
    end = begin
    while True:
        file.seek(end)
        member, read = new(), 0
        while not member.eof:
            data = file.read(_BLOCK)
            if not data:
                return end
            read += len(data)
            try:
                member.decompress(data)
            except error:
                # Damaged, not unfinished: given to the reader, which reports it and goes on behind it.
                return file.seek(0, os.SEEK_END)
        end += read - len(member.unused_data)


class Part(io.RawIOBase):
    """The bytes [begin, end) of a file, as a file of its own.

    Args:
        file: open; closed with the part.
    """

    def __init__(self, file: BinaryIO, begin: int, end: int) -> None:
        self._file = file
        self._begin = begin
        self._end = end
        file.seek(begin)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._file.tell())
        return self._file.read(left if size is None or size < 0 else min(size, left))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: self._begin, os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._end}[whence]
        return self._file.seek(base + offset) - self._begin

    def tell(self) -> int:
        return self._file.tell() - self._begin

    def close(self) -> None:
        self._file.close()
        super().close()
