"""A file that whole lines are appended to, under its lock. A failure says what it left in the file."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rollout_trace import guard
from rollout_trace.file import locking
from rollout_trace.file.addresses import make_parents, open_for_append, refuse_special_file
from rollout_trace.file.compression import check_content, members_of
from rollout_trace.file.lines import HEAD_BYTES, Damaged, end_of_lines, id_of
from rollout_trace.file.locking import NoFileLocks, lock_for

_MOST_REOPENINGS = 3


@dataclass(eq=False)
class AppendError(Exception):
    """A line was not appended, or not safely."""

    cause: Exception
    left: str
    """A sentence: what is in the file of the line."""
    is_in_file: bool = False
    """The whole line is in the file, so that appending it again would double it."""


class AppendedFile:
    """An open file, reopened when its path leads to another file. For one thread at a time.

    Args:
        path: absolute.
        shown: the path as the user gave it, for messages.
        ends_lines: the lines end with a newline; compressed files need none.
        fsync: a line is on the disk when ``append`` returns.
        mode: permission bits of the file where it is created.

    Raises:
        ValueError: the contents of the file do not fit its suffix.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, shown: Path, *, ends_lines: bool, fsync: bool, mode: int | None) -> None:
        self._path = path
        self._text_path = os.fspath(path)
        self._shown = shown
        self._ends_lines = ends_lines
        self._fsync = fsync
        self._mode = mode
        self._lock = lock_for(path, mode)
        self._may_be_locked = False
        self._file: int | None = None
        self._facts: os.stat_result | None = None
        self._reopen()

    def append(self, line: bytes, timeout: float) -> None:
        """Appends a line, or nothing.

        Args:
            timeout: seconds to wait for the lock.

        Raises:
            AppendError: the file system refused, or the lock was not free in time.
        """
        try:
            file, is_locked = self._lock_current(timeout)
            self._append(file, line, is_locked)
        except (OSError, ValueError) as error:
            raise AppendError(error, "Nothing of its line is in the file") from error
        finally:
            self._unlock()

    def close(self) -> None:
        """Closes the file; ``append`` opens it again.

        Raises:
            OSError: the file system reports only now that something was not stored.
        """
        file, self._file = self._file, None
        if file is not None and self._facts_of(file) is not None:
            os.close(file)

    def renew(self) -> None:
        """Closes a descriptor that a forked process has inherited, and with which it would share the parent's lock."""
        self._lock, self._may_be_locked = lock_for(self._path, self._mode), False
        self._close_quietly()

    def _reopen(self) -> int:
        refuse_special_file(self._path)
        make_parents(self._path.parent)
        file = open_for_append(self._path, self._mode)
        try:
            check_content(file, self._shown)
            facts = os.fstat(file)
        except BaseException:
            os.close(file)
            raise
        self._close_quietly()
        self._file, self._facts = file, facts
        return file

    def _lock_current(self, timeout: float) -> tuple[int, bool]:
        """Descriptor of the file that the path leads to, and whether it is locked."""
        end = time.monotonic() + timeout
        for attempt in range(1, _MOST_REOPENINGS + 1):
            file = self._file
            if file is None or not self._is_current(file):
                file = self._reopen()
            self._may_be_locked = True
            try:
                has_waited = self._lock.acquire(file, max(0.0, end - time.monotonic()))
            except NoFileLocks as reason:
                self._may_be_locked = False
                guard.warn_once(
                    f"no-lock:{self._path}",
                    f"{reason}: each line of {self._shown} is appended in one write, which most file systems keep "
                    "whole. If several processes or machines write at once, give each its own file.",
                )
                return file, False
            # While the lock was waited for, the file may have been rotated.
            if not has_waited or self._is_current(file):
                return file, True
            # Some network and FUSE file systems have no lasting inode numbers: opening again and again changes nothing.
            if attempt == _MOST_REOPENINGS and os.fstat(file).st_nlink:
                return file, True
            self._unlock()
        raise OSError("the file was removed each time it was created")

    def _is_current(self, file: int) -> bool:
        """False where the file was removed, or renamed, and lines written to it would be missing at the path."""
        facts = self._facts_of(file)
        if facts is None or facts.st_nlink == 0:
            return False
        if os.name == "nt":  # There an open file can be neither removed nor renamed.
            return True
        try:
            return os.path.samestat(facts, os.stat(self._text_path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # A folder may not be searched any more. The open file still has a name somewhere.
            return True

    def _facts_of(self, file: int) -> os.stat_result | None:
        """Returns None if the descriptor is no longer our file's: a program that becomes a daemon closes them all."""
        try:
            facts = os.fstat(file)
        except OSError:  # Closed; or removed by another machine (ESTALE).
            return None
        return facts if self._facts is not None and os.path.samestat(self._facts, facts) else None

    def _append(self, file: int, line: bytes, is_locked: bool) -> None:
        end = os.lseek(file, 0, os.SEEK_END)
        # A killed writer left a partial line, which this one must not become a part of. Compressed files need no
        # newline here: readers find the next member by its magic number. Looked at each time (1 us): a length that has
        # not changed does not show that the contents have not.
        data = b"\n" + line if self._ends_lines and end and not _ends_with_newline(file) else line
        if is_locked:
            self._write_or_undo(file, data, end, len(line))
        else:
            self._write_at_once(file, data, len(line))

    def _write_or_undo(self, file: int, data: bytes, end: int, length: int) -> None:
        """Writes all bytes, or truncates the file to ``end``, its length before.

        Called with the lock: without it, truncating could cut off another writer's line.
        """
        try:
            _write_all(file, data)
            self._sync(file)
        except BaseException as error:  # Also KeyboardInterrupt: Ctrl-C must not leave a partial line.
            refusal = _cut_back(file, end)
            if not isinstance(error, OSError):
                raise
            if refusal is None:
                raise AppendError(error, "The file is as it was before") from error
            try:
                left = os.lseek(file, 0, os.SEEK_END) - end
            except OSError as blind:
                unknown = f"It is not known how much of its line is in the file ({blind})"
                raise AppendError(error, unknown) from error
            raise self._failure(error, left, len(data), length, refusal) from error

    def _write_at_once(self, file: int, data: bytes, length: int) -> None:
        """Writes all bytes in one call, for files without locks: between two calls another line could be appended.

        What a partial write left stays: truncating it could cut off such a line.
        """
        written = 0
        unlocked = OSError(errno.ENOLCK, "without a lock it could cut off the line of another writer")
        try:
            written = os.write(file, data)
            if written < len(data):
                raise OSError(errno.EIO, f"only {written} of the {len(data)} bytes of its line were taken")
            self._sync(file)
        except OSError as error:
            raise self._failure(error, written, len(data), length, unlocked) from error

    def _failure(self, error: OSError, left: int, size: int, length: int, refusal: OSError) -> AppendError:
        """Describes a failure that left bytes in the file.

        Args:
            error: why the line was not appended.
            left: bytes that are in the file.
            size: bytes that were to be written: the line, maybe after a newline.
            length: bytes of the line.
            refusal: why the file was not cut back.
        """
        left -= size - length
        if left <= 0:
            return AppendError(error, "Nothing of its line is in the file")
        # Without the newline at its end a line is whole too.
        if left >= length - self._ends_lines:
            return AppendError(error, "Its line is whole in the file, though maybe not on the disk", is_in_file=True)
        return AppendError(
            error,
            f"A part of its line is at the end of the file ({left} of {length} bytes), which readers report as a "
            f"damaged line: the file was not cut back ({refusal.strerror or refusal})",
        )

    def _sync(self, file: int) -> None:
        if self._fsync:
            try:
                os.fsync(file)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} (fsync)") from error

    def _unlock(self) -> None:
        # Also where Ctrl-C came between locking and writing: a lock left behind would stop every other process.
        if self._may_be_locked and self._file is not None:
            self._may_be_locked = False
            try:
                self._lock.release(self._file)
            except OSError:  # Nothing to report, the line is written: closing releases the lock too.
                self._close_quietly()

    def _close_quietly(self) -> None:
        try:
            self.close()
        except OSError as error:
            guard.warn(f"closing {self._shown} failed ({error}): its last lines may not be on the disk.")


def _cut_back(file: int, end: int) -> OSError | None:
    """Truncates the file to its length before; the reason where that is impossible."""
    try:
        # Only if it has grown: /dev/null refuses to be truncated, and truncating a shorter file would add zeros.
        if os.lseek(file, 0, os.SEEK_END) > end:
            os.ftruncate(file, end)
    except OSError as error:
        return error
    return None


def _ends_with_newline(file: int) -> bool:
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) == b"\n"


def _write_all(file: int, data: bytes) -> None:
    written = os.write(file, data)
    if written < len(data):
        view = memoryview(data)[written:]
        while view:
            view = view[os.write(file, view) :]


# What a killed writer left


_NO_ID = 64
"""A partial line of fewer bytes may lack its id: nothing of the trajectory is in it."""


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
        if locking.lock_open(file.fileno()) is not True:
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
    """Finds the partial line at the end and its first bytes as text; the end of the file if there is none."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    # Here: writers need it in no other case.
    from rollout_trace.file.decode import is_whole

    members = members_of(file, os.fspath(path))
    if members is None:
        start = file.seek(end_of_lines(file, 0))
        tail = file.read()
        # Another program may have written the last line without its newline.
        return (end, b"") if not tail or is_whole(tail) else (start, tail[:HEAD_BYTES])
    beginning = b""
    for part in members.parts():
        if isinstance(part, Damaged):
            # In the middle: where members begin behind it is not certain.
            return (members.start, beginning) if part.is_cut else (end, b"")
        beginning = b"" if part is None else beginning + part[: HEAD_BYTES - len(beginning)]
    return end, b""
