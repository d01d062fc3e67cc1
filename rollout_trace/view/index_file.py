"""What an index asks of a file: whether it is the one that was read, and single lines of it."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, NamedTuple

from rollout_trace.file.addresses import is_address, open_binary, size_of
from rollout_trace.file.decode import decode
from rollout_trace.file.line_format import BadLine, at_any_depth
from rollout_trace.file.lines import Place
from rollout_trace.file.media import MissingMedia, name_of_folder, restore
from rollout_trace.file.notes import notes_path

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view.index_store import IndexedFile

_HEAD, _TAIL = 1024, 256
"""Bytes at the beginning, and before the place where reading went to, that are compared."""


class FileState(NamedTuple):
    """A file, as it is now."""

    state: str
    """Changes when the file does."""
    identity: str
    """Stays while the file is the same one, and grows."""
    size: int


def file_state(path: str) -> FileState:
    """The state of a file; of an address, its size.

    Raises:
        OSError: it is not there.
    """
    if is_address(path):
        # What is at an address is replaced, never appended to.
        size = size_of(path)
        return FileState(f"{size}", f"{size}", size)
    facts = os.stat(path)
    identity = f"{facts.st_dev}:{facts.st_ino}"
    return FileState(f"{identity}:{facts.st_size}:{facts.st_mtime_ns}", identity, facts.st_size)


def notes_state(path: str) -> str:
    """The state of the notes of a file; an empty text without any."""
    beside = notes_path(path)
    if is_address(path) or beside == path:
        return ""
    try:
        return file_state(beside).state
    except OSError:
        return ""


def digest_of(path: str, end: int, length: int) -> bytes:
    """A digest of at most ``length`` bytes of a file before ``end``, with where they are."""
    begin = max(0, end - length)
    with open_binary(path) as file:
        file.seek(begin)
        data = file.read(end - begin)
    return begin.to_bytes(8, "big") + end.to_bytes(8, "big") + hashlib.blake2b(data, digest_size=16).digest()


def digests(path: str, size: int, rest: Place, *, is_packed: bool) -> tuple[bytes, bytes]:
    """The digests of a file's beginning and of what is before ``rest``."""
    end = rest.member if is_packed else rest.begin
    return digest_of(path, min(size, _HEAD), _HEAD), digest_of(path, end, _TAIL)


def is_up_to_date(known: IndexedFile, now: FileState, notes: str) -> bool:
    """Whether an index has all of a file, and of its notes, in these states."""
    return known.state == now.state and known.done >= known.size and known.notes == notes


def continues(known: IndexedFile, now: FileState) -> bool:
    """Whether a file is the one that was read, with more at its end; else it is another one, or was rewritten."""
    if not known.state.startswith(f"{now.identity}:") and known.state != now.identity:
        return False
    was_read = known.done >= known.size
    if now.state != known.state and (now.size <= known.size if was_read else now.size < known.size):
        return False
    return all(_is_same(known.path, digest) for digest in (known.head, known.tail))


def _is_same(path: str, digest: bytes) -> bool:
    begin, end = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
    return digest_of(path, end, end - begin) == digest


def trajectory_of(path: str, number: int, line: bytes, *, with_media: bool) -> Trajectory:
    """The trajectory of a line, without its notes.

    Args:
        path: of the file.
        number: of the line.
        line: its bytes.
        with_media: False: references to media stay in their places. So they do where the media are missing.

    Raises:
        FormatError: the line is none.
    """
    if with_media:
        try:
            line = restore(line, name_of_folder(path))
        except (MissingMedia, OSError):
            pass
    try:
        return at_any_depth(decode, line)
    except BadLine as error:
        raise error.at(f"{path}, line {number}") from error
