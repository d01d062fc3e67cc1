"""What an output holds already, and the partial line that a killed writer left at its end."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

import orjson

from rollout_trace.file import journal_lock
from rollout_trace.file.compression import GZIP_MAGIC, ZSTD_MAGIC, import_zstandard
from rollout_trace.file.decode import BadLine, decode
from rollout_trace.file.lines import Damaged, SplitLine, lines

_ID = re.compile(rb'"id":("(?:[^"\\]|\\.)*")')
_HEAD = 4096
"""Bytes of a line in which its id is looked for: it is one of the first fields."""
_CHUNK = 1 << 18
_NO_ID = 64
"""A partial line of fewer bytes may lack its id: nothing of the trajectory is in it."""


def ids_in(path: str | os.PathLike[str], wanted: Collection[str]) -> set[str]:
    """Those of the trajectories that have a whole line in a file; none where there is no file.

    Only their lines are decoded: of the others, the first bytes are looked at.

    Raises:
        OSError: the file cannot be read.
        ImportError: it is compressed with zstd and the package zstandard is not installed.
    """
    found: set[str] = set()
    if not os.path.exists(path):
        return found
    for _, line in lines(os.fspath(path)):
        if isinstance(line, Damaged):
            continue
        # A line in two compressed members may be the rest of a killed writer's, and then a whole one.
        for part in (line, bytes(line[line.seam :])) if isinstance(line, SplitLine) else (line,):
            name = id_of(part)
            if name is not None and name in wanted and name not in found and _is_whole(part):
                found.add(name)
    return found


def id_of(line: bytes) -> str | None:
    """The id of the trajectory whose line begins so; None where it cannot be found."""
    match = _ID.search(line[:_HEAD])
    try:
        return None if match is None else str(orjson.loads(match[1]))
    except orjson.JSONDecodeError:
        return None


def _is_whole(line: bytes) -> bool:
    try:
        decode(line)
    except (BadLine, RecursionError):
        return False
    return True


def cut_partial_line(path: Path, is_known: Callable[[str], bool]) -> int:
    """Removes a partial line from the end of a file, if its trajectory is known, or too little came to have an id.

    A writer that was killed left it; nobody else may be writing. Nothing is done where a lock says otherwise.

    Returns:
        Bytes that were removed.

    Raises:
        OSError: the file cannot be read or changed.
    """
    try:
        file = open(path, "r+b")  # noqa: SIM115 - it is closed by the `with` below
    except FileNotFoundError:
        return 0
    with file:
        if journal_lock.hold(file.fileno()) is not True:
            return 0
        size = file.seek(0, os.SEEK_END)
        start, beginning = _partial_end(file, path)
        if start == size:
            return 0
        name = id_of(beginning)
        if (len(beginning) > _NO_ID) if name is None else not is_known(name):
            return 0
        file.truncate(start)
        return size - start


def _partial_end(file: BinaryIO, path: Path) -> tuple[int, bytes]:
    """Where the partial line begins, and its first bytes as text; the end of the file where there is none."""
    file.seek(0)
    magic = file.read(4)
    if magic.startswith(GZIP_MAGIC) or path.suffix == ".gz":
        return _partial_member(file, lambda: zlib.decompressobj(31), (zlib.error,))
    if magic == ZSTD_MAGIC or path.suffix == ".zst":
        zstandard = import_zstandard(path)
        return _partial_member(file, lambda: zstandard.ZstdDecompressor().decompressobj(), (zstandard.ZstdError,))
    return _partial_line(file)


def _partial_line(file: BinaryIO) -> tuple[int, bytes]:
    end = file.seek(0, os.SEEK_END)
    start, tail = end, b""
    while start > 0 and b"\n" not in tail:
        start = max(0, start - _CHUNK)
        file.seek(start)
        tail = file.read(end - start)
    tail = tail[tail.rfind(b"\n") + 1 :]
    # Another program may have written the last line without its newline.
    return (end, b"") if not tail or _is_whole(tail) else (end - len(tail), tail[:_HEAD])


def _partial_member(
    file: BinaryIO, new: Callable[[], object], errors: tuple[type[Exception], ...]
) -> tuple[int, bytes]:
    """The last compressed member, if the file ends inside it."""
    end = file.seek(0, os.SEEK_END)
    start, data = 0, b""
    file.seek(0)
    while start < end:
        member, beginning = _member(new), b""
        data = data or file.read(_CHUNK)
        try:
            while True:
                text = member.decompress(data)
                beginning += text[: _HEAD - len(beginning)]
                if member.eof:
                    break
                data = file.read(_CHUNK)
                if not data:
                    return start, beginning
        except errors:
            # Damage in the middle: where members begin after it is not certain.
            return end, b""
        data = member.unused_data
        start = file.tell() - len(data)
    return end, b""


def _member(new: Callable[[], object]) -> zlib._Decompress:
    made = new()
    return made  # type: ignore[return-value]
