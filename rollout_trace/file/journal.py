"""The journal of a recording: its records as bytes, and the files that they are appended to. docs/files.md describes
the format.

A record is a frame (magic number, kind, lengths, its checksum), a head (JSON), blobs (raw bytes), with a checksum over
all of it. A damaged place costs the records that it touches: readers go on at the next whole one.

Files are appended to without locks, rotated, and deleted when nothing needs them. The garbage collector may append: it
ends calls, in the middle of anything, in any thread. A lock that this thread holds already would stop it for ever, so
there is none: each record is one write to a descriptor that appends, and what is kept in memory is changed by single
operations on sets and dicts, in an order that is right however threads take turns.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from rollout_trace import guard
from rollout_trace._threads import renew_after_fork
from rollout_trace._version import __version__
from rollout_trace.file import locking
from rollout_trace.file.plain import dumps, loads

VERSION = 3
"""Of the format. A reader reads every version up to its own; within one, unknown kinds and fields are skipped."""
MAGIC = b"\xf1RTJ"
"""Begins each record. Its first byte cannot follow in UTF-8 as it does here, so it is in no text."""

FILE, HEAD, CALL, PART, STEPS, TOOL_RUN, WRITTEN, AMEND, FINAL = range(1, 10)
"""Kinds of records: the file's own; fields of a trajectory; a call that ended; the beginning of one in flight; steps
without bytes; a tool run; the trajectory is in the output; what became known of a call after its end; what the final
steps have beside all that."""

_FRAME = struct.Struct("<4sBxHIII")  # magic, kind, number of blobs, bytes of head, bytes of blobs, checksum
_CHECK = struct.Struct("<I")
_LENGTHS = [struct.Struct(f"<{count}I") for count in range(16)]
_SIZE = _FRAME.size + _CHECK.size
_LARGEST = 0xFFFFFFFF
_SMALL = 8192
"""Bytes of the blobs below which a record is copied into one buffer."""


class Damage(NamedTuple):
    """Bytes of a journal that are not a complete record."""

    offset: int
    length: int
    problem: str


class Record(NamedTuple):
    """A whole record."""

    offset: int
    kind: int
    head: dict[str, Any]
    blobs: list[memoryview]
    """Views of the journal's bytes."""


def pack(kind: int, head: bytes, blobs: Sequence[bytes] = ()) -> list[bytes]:
    """The buffers of a record, to be written one after the other at once.

    Args:
        blobs: raw bytes, at most 15; their lengths go into the record.

    Raises:
        ValueError: more than 4 GB.
    """
    sizes = [len(blob) for blob in blobs]
    lengths = _LENGTHS[len(sizes)].pack(*sizes)
    size = sum(sizes) + len(lengths)
    if size > _LARGEST or len(head) > _LARGEST:
        raise ValueError(f"a record of {size} bytes is more than a journal takes (4 GB)")
    # To copy little takes less time than to sum up and write each part.
    if size < _SMALL:
        body = [b"".join((head, lengths, *blobs))]
        total = crc32(body[0])
    else:
        body, total = [head + lengths, *blobs], 0
        for part in body:
            total = crc32(part, total)
    frame = _FRAME.pack(MAGIC, kind, len(sizes), len(head), size, total)
    return [frame + _CHECK.pack(crc32(frame)), *body]


def records(data: Any) -> Iterator[Record | Damage]:
    """Yields the complete records of a journal, and the damaged places between them.

    Args:
        data: its bytes: ``bytes`` or an ``mmap``. The blobs are views of it.
    """
    view = memoryview(data)
    at = bad = 0
    problem = ""
    while at < len(view):
        found = _record(view, at)
        if isinstance(found, str):
            problem = problem or found
            at = data.find(MAGIC, at + 1)
            at = len(view) if at < 0 else at
            continue
        if problem:
            yield Damage(bad, at - bad, problem)
        record, at = found
        yield record
        bad, problem = at, ""
    if problem:
        yield Damage(bad, len(view) - bad, problem)


def _record(view: memoryview, at: int) -> tuple[Record, int] | str:
    """The record that begins at an offset, and the offset of its end; or why there is none."""
    left = len(view) - at
    if bytes(view[at : at + 4]) != MAGIC[: min(4, left)]:
        return "expected the beginning of a record, got other bytes"
    if left < _SIZE:
        return "the journal ends inside a record (its process was killed while it wrote?)"
    frame = view[at : at + _FRAME.size]
    # Checked on its own: lengths out of damaged bytes would have the reader sum up the whole file, once at each place.
    if _CHECK.unpack_from(view, at + _FRAME.size)[0] != crc32(frame):
        return "the checksum of a record's frame is wrong"
    _, kind, count, head_size, size, total = _FRAME.unpack(frame)
    start = at + _SIZE
    end = start + head_size + size
    if end > len(view):
        return "the journal ends inside a record (its process was killed while it wrote?)"
    if crc32(view[start:end]) != total:
        return "the checksum of a record is wrong"
    return _contents(view, at, kind, count, start, head_size, end)


def _contents(
    view: memoryview, at: int, kind: int, count: int, start: int, head_size: int, end: int
) -> tuple[Record, int] | str:
    place = start + head_size
    try:
        head = loads(view[start:place])
    except ValueError as error:
        return f"the head of a record is no JSON: {error}"
    if not isinstance(head, dict) or place + 4 * count > end:
        return "the head of a record is no JSON object, or its blobs have no lengths"
    sizes = [int.from_bytes(view[place + 4 * one : place + 4 * one + 4], "little") for one in range(count)]
    place += 4 * count
    if place + sum(sizes) != end:
        return "the lengths of a record's blobs do not add up"
    blobs = []
    for size in sizes:
        blobs.append(view[place : place + size])
        place += size
    return Record(at, kind, head, blobs), end


# Files

ROTATE_AT = 64 * 1024 * 1024
"""Size in bytes past which the next record goes to a new file."""
CHECK_SECONDS = 1.0
"""Seconds between two looks at whether another program has deleted the file that is written to."""
SUFFIX = ".journal"
NEW_SUFFIX = ".new"
"""Of a file that is being made: it gets its name when its process holds the lock."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
_TRIES = 32


def folder_of(output: str | os.PathLike[str]) -> Path:
    """The folder with the journals of an output: beside a file, and in a folder of shards."""
    path = os.fspath(output)
    return Path(path, SUFFIX) if os.path.isdir(path) else Path(f"{path}{SUFFIX}")


class Pin:
    """Keeps files from being deleted: one unfinished trajectory."""

    __slots__ = ("files",)

    def __init__(self) -> None:
        self.files: dict[JournalFile, None] = {}
        """The files with its records."""


class JournalFile:
    """A file of a journal, open and locked until nothing refers to it any more."""

    __slots__ = ("_gone", "check_at", "fd", "path", "pins", "size", "writing")

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path
        self.size = 0
        """About its size in bytes: threads may count past each other."""
        self.pins: set[Pin] = set()
        self.writing: set[object] = set()
        """One item for each write that is going on."""
        self.check_at = 0.0
        """When to look next whether another program has deleted it, as ``time.monotonic`` seconds."""
        self._gone: list[None] = [None]

    def __del__(self) -> None:
        # Not closed by hand: a thread in the middle of a write refers to the file, and the number of a closed
        # descriptor may belong to a file of the user's a moment later.
        self.close()

    def close(self) -> None:
        """Closes the descriptor. By hand only where nobody can be writing.

        In a forked process at once: its descriptor shares the lock, which would outlive the other process.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            _close(fd)

    @property
    def is_needed(self) -> bool:
        """Tells whether an unfinished trajectory has records in it, or one is being written."""
        return bool(self.pins or self.writing)

    @property
    def is_there(self) -> bool:
        """False where another program has deleted it."""
        try:
            return os.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def contents(self) -> bytes:
        """Returns what has been written to the file.

        Read through the open descriptor: there may be no further one, and another program may have deleted the file.

        Raises:
            OSError: it cannot be read.
        """
        if self.fd < 0:
            # Closed in a forked process.
            return self.path.read_bytes()
        parts, size = list[bytes](), 0
        # A single read returns at most 2 GB.
        while part := os.pread(self.fd, os.fstat(self.fd).st_size - size, size):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def delete(self) -> None:
        """Removes the file; a second call does nothing."""
        try:
            # `pop` is one operation: of two threads one removes it.
            self._gone.pop()
        except IndexError:
            return
        if not locking.HAS_LOCKS:
            # Windows deletes no open file. Nobody writes: whoever began to would be in `writing`.
            self.close()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            guard.warn_once(
                f"journal-delete:{self.path.parent}", f"the journal {self.path} cannot be deleted: {error}."
            )


class JournalFiles:
    """The files that one recording in one process writes."""

    def __init__(self, output: str | os.PathLike[str], mode: int | None = None) -> None:
        """``mode``: permission bits of the files, and of the folder where it is made; None: as the system has it."""
        # Absolute: the process may change its folder. Real: whoever recovers may name the file, or another link to it.
        self.output = Path(os.path.realpath(output))
        self.folder = folder_of(self.output)
        self.failures = 0
        """Records that could not be written so far."""
        self.epoch = 0
        """Grows when files were lost: what was in them is not to be built upon."""
        self.generation = 0
        """Grows in a forked process: what was opened before is the other process's."""
        self._is_closed = False
        self._mode = mode
        self._current: JournalFile | None = None
        self._numbers = count()
        self._start = os.urandom(4).hex()
        self._files: set[JournalFile] = set()
        renew_after_fork(self, JournalFiles.renew)

    @property
    def prefix(self) -> str:
        """Beginning of the names of its files."""
        return f"{locking.host()}-{os.getpid()}-{self._start}-"

    def append(self, buffers: list[bytes], pin: Pin) -> bool:
        """Appends a record, and keeps its file until ``release(pin)``. False if it could not be written.

        Never raises. The failure is counted, and the first one of its kind logged.
        """
        turn = object()
        try:
            file = self._begin(turn)
            try:
                self._write(file, buffers)
                if file not in pin.files:
                    file.pins.add(pin)
                    pin.files[file] = None
            finally:
                file.writing.discard(turn)
                if self._current is not file:
                    self._reap(file)
        except OSError as error:
            self._failed(error)
            return False
        if self._is_closed:
            # By another thread meanwhile: nobody would release it any more.
            self.release(pin)
            return False
        return True

    def has(self, pin: Pin) -> bool:
        """Tells whether the files with its records are all there still."""
        return bool(pin.files) and all(file.is_there for file in list(pin.files))

    def forget_deleted(self, pin: Pin) -> None:
        """Another program deleted files: they hold nothing of the trajectory any more."""
        for file in list(pin.files):
            if not file.is_there:
                pin.files.pop(file, None)
                file.pins.discard(pin)
                self._reap(file)

    def release(self, pin: Pin, record: list[bytes] | None = None) -> None:
        """After a trajectory is finished: deletes files that no other trajectory needs, and the folder if empty.

        Args:
            pin: what it was kept by.
            record: appended to the files that stay for other trajectories. It saves looking into the output, which may
                have been moved away when they are read.
        """
        for file in list(pin.files):
            if record is not None and file.pins - {pin}:
                # Not to the current file instead: that one may be deleted before this one.
                try:
                    self._write(file, record)
                except OSError as error:
                    self._failed(error)
            pin.files.pop(file, None)
            file.pins.discard(pin)
            if not file.is_needed and self._current is file:
                self._current = None
            self._reap(file)

    def close(self) -> None:
        """Deletes what nothing needs and lets go of the other files: they are for ``recover`` then."""
        self._is_closed = True
        self._current = None
        for file in list(self._files):
            self._reap(file)
            for pin in list(file.pins):
                # The last references: with them go the descriptor and its lock.
                pin.files.clear()
            file.pins.clear()
        self._files.clear()

    def renew(self) -> None:
        """Resets in a forked process: the files belong to the other process, and the next record creates new ones."""
        for file in list(self._files):
            file.close()
        self._files, self._current = set(), None
        self._start = os.urandom(4).hex()
        self.generation += 1

    def _begin(self, turn: object) -> JournalFile:
        """The file to write to, with a mark in it that a write is going on: so it is not deleted meanwhile."""
        while True:
            file = self._current
            if file is None or file.size >= ROTATE_AT:
                file = self._next()
            file.writing.add(turn)
            # Another thread may have retired it since. It first does that, and then looks at `writing`; here it is
            # the other way around: at least one of the two sees the other.
            if self._current is file:
                return file
            file.writing.discard(turn)
            self._reap(file)

    def _write(self, file: JournalFile, buffers: list[bytes]) -> None:
        now = time.monotonic()
        if now >= file.check_at:
            file.check_at = now + CHECK_SECONDS
            if not file.is_there:
                self.epoch += 1
                if self._current is file:
                    self._current = None
                raise FileNotFoundError(errno.ENOENT, "another program deleted the journal", os.fspath(file.path))
        size = sum(map(len, buffers))
        written = os.writev(file.fd, buffers) if _WRITEV else os.write(file.fd, b"".join(buffers))
        file.size += written
        if written < size:
            # What came is no whole record: readers skip it. It cannot be undone, others may have appended already.
            raise OSError(errno.ENOSPC, f"only {written} of {size} bytes were taken", os.fspath(file.path))

    def _next(self) -> JournalFile:
        before = self._current
        file = self._open()
        if self._current is not before:
            # Another thread was faster.
            current = self._current
            if current is not None and current.size < ROTATE_AT:
                file.delete()
                return current
        self._files.add(file)
        self._current = file
        if before is not None:
            self._reap(before)
        return file

    def _open(self) -> JournalFile:
        folder_mode = 0o777 if self._mode is None else self._mode | (self._mode & 0o444) >> 2
        for _ in range(_TRIES):
            made = name = f"{self.prefix}{next(self._numbers)}{SUFFIX}"
            if locking.HAS_LOCKS:
                made += NEW_SUFFIX
            # Recovery may remove an empty folder, and a file that nobody holds, at any time: then once more.
            try:
                self.folder.mkdir(mode=folder_mode, parents=True, exist_ok=True)
                fd = os.open(self.folder / made, _FLAGS, 0o666 if self._mode is None else self._mode)
            except FileNotFoundError:
                continue
            except FileExistsError:
                # Also where the folder was there for `mkdir`, and removed before it looked what it is.
                if os.path.lexists(self.folder) and not self.folder.is_dir():
                    raise
                continue
            file = JournalFile(fd, self.folder / made)
            is_held = locking.lock_open(fd)
            if is_held is False:
                continue
            self._begin_file(file, is_locked=is_held is True)
            try:
                # The lock before the name: a journal that nobody holds is a dead process's.
                file.path.rename(self.folder / name)
            except FileNotFoundError:
                continue
            file.path = self.folder / name
            return file
        raise FileNotFoundError(errno.ENOENT, "the folder is removed again and again", os.fspath(self.folder))

    def _begin_file(self, file: JournalFile, *, is_locked: bool) -> None:
        head: dict[str, Any] = {
            "format": VERSION,
            "library": __version__,
            "output": os.fspath(self.output),
            "is_locked": is_locked,
            **locking.owner(),
        }
        try:
            self._write(file, pack(FILE, dumps(head)))
        except BaseException:
            file.delete()
            raise

    def _reap(self, file: JournalFile) -> None:
        """Deletes a file that is retired and that nothing needs."""
        if self._current is file or file.is_needed or file not in self._files:
            return
        self._files.discard(file)
        file.delete()
        if not self._files:
            try:
                self.folder.rmdir()
            except OSError:
                # Not empty: others write there, or left what is to be recovered.
                pass

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        guard.count("recorder_errors")
        guard.warn_once(
            f"journal:{self.folder}:{error.errno}",
            f"the journal {self.folder} cannot be written: {guard.describe(error)}. The agent goes on, and the next "
            "record is tried again. If the process is killed, what is not in the journal is lost.",
        )


_WRITEV = hasattr(os, "writev")
_close = os.close  # Finalizers run when the names of modules may be gone.
