"""Appends whole lines to a plain file, under the lock that ``JSONLWriter`` takes."""

from __future__ import annotations

import errno
import os
from typing import Any

from rollout_trace import guard
from rollout_trace.file.kinds import refuse_special_file

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has none.
    fcntl = None

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


def append_lines(path: str, data: bytes, *, mode: int = 0o666) -> None:
    """Appends lines to a file, all of them or none.

    Args:
        path: of the file, which is created if there is none.
        data: the lines, the last newline included.
        mode: permissions of a file that is created, less the process's umask.

    Raises:
        OSError: the file cannot be written. It is as it was before, where it can be truncated.
    """
    refuse_special_file(path)
    file = os.open(path, _FLAGS, mode)
    try:
        is_locked = _lock(file, path)
        end = os.lseek(file, 0, os.SEEK_END)
        if end and not _ends_with_newline(file):
            data = b"\n" + data  # A killed writer left a part of a line: this one must not become a part of it.
        try:
            _write_all(file, data)
        except BaseException:  # Also KeyboardInterrupt: Ctrl-C must not leave a part of a line.
            if is_locked and os.lseek(file, 0, os.SEEK_END) != end:
                os.ftruncate(file, end)
            raise
    finally:
        os.close(file)  # Releases the lock.


def _lock(file: int, path: str) -> bool:
    """Locks the file; False where its file system has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        guard.warn_once(
            f"no-lock:{path}",
            f"the file system of {path} has no file locks ({error.strerror}): lines are appended in one write, which "
            "most file systems keep whole.",
        )
        return False
    return True


def _ends_with_newline(file: int) -> bool:
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) == b"\n"


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
