"""Exclusive locks between processes on an open file: waited for with a limit, or held as long as the file is open.

And whether a process lives that a file names, where it holds no lock.

Where there is ``flock`` (Linux, macOS), the file itself is locked, as every version of this library has done. Elsewhere
(Windows) the package filelock locks ``<path>.lock``, because what is locked there cannot be read by others.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = None

HAS_LOCKS = fcntl is not None
"""Whether an open file is locked itself."""

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05
"""Seconds between two attempts; each pause is twice the one before."""


class NoFileLocks(OSError):
    """The file cannot be locked on this file system or system, so that others may write at any time."""


class FileLock:
    """A lock on one file itself, which one process at a time holds. Not for two threads at once.

    A child that inherits the descriptor shares the lock.

    Every method takes the descriptor of the file, which may be another one each time (the file was opened anew).
    """

    def __init__(self, path: Path, mode: int | None = None) -> None:
        self._path = path
        self._mode = mode

    def acquire(self, file: int, timeout: float) -> bool:
        """Locks the file; waits at most ``timeout`` seconds. 0 tries once.

        Returns:
            Whether it had to wait, so that meanwhile others may have changed the file.

        Raises:
            TimeoutError: another process held the lock all that time.
            NoFileLocks: the file cannot be locked.
            OSError: locking failed.
        """
        end, pause, has_waited = time.monotonic() + timeout, _FIRST_PAUSE, False
        while not self.try_acquire(file):
            has_waited = True
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(self._held(file, timeout))
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return has_waited

    def try_acquire(self, file: int) -> bool:
        """Locks the file if nobody else has; False where another process, or another descriptor, holds the lock.

        Raises:
            NoFileLocks: the file cannot be locked.
            OSError: locking failed.
        """
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            reason = f"the file system of {self._path} has no file locks ({error.strerror})"
            raise NoFileLocks(reason) from error
        return True

    def release(self, file: int) -> None:
        """Unlocks the file; nothing happens where it is not locked."""
        fcntl.flock(file, fcntl.LOCK_UN)

    def _held(self, file: int, timeout: float) -> str:
        holders = _holders(file)
        who = f"process {' and '.join(map(str, holders))}" if holders else "another process"
        return (
            f"{who} holds its lock, which was not free within {round(timeout, 2):g} seconds (`lsof {self._path}` "
            "lists the processes that have the file open; lock_timeout= sets how long to wait)"
        )


class _LockFile(FileLock):
    """A lock on the empty file ``<path>.lock``, by the package filelock."""

    def __init__(self, path: Path, mode: int | None = None) -> None:
        super().__init__(path, mode)
        self._lock_path = Path(f"{path}.lock")
        self._lock: Any = None

    def try_acquire(self, file: int) -> bool:
        try:
            import filelock
        except ImportError as error:
            raise NoFileLocks(
                "this system locks files with the package filelock, which is not installed (pip install filelock)"
            ) from error
        if self._lock is None:
            make: Any = filelock.FileLock
            options = {} if self._mode is None else {"mode": self._mode}
            self._lock = make(self._lock_path, thread_local=False, **options)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            return False
        return True

    def release(self, file: int) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _held(self, file: int, timeout: float) -> str:
        return (
            f"another process holds its lock, {self._lock_path}, which was not free within {round(timeout, 2):g} "
            "seconds (lock_timeout= sets how long to wait)"
        )


def lock_for(path: Path, mode: int | None = None) -> FileLock:
    """The lock of a file, of the kind that this system has.

    Args:
        mode: permission bits of a lock file, if there is one.
    """
    return _LockFile(path, mode) if fcntl is None else FileLock(path, mode)


def hold(file: int, path: Path) -> FileLock | None:
    """The lock of an open file, held from now on; None where another process holds it.

    It is held until the file is closed or the process ends. Keep the object until then: where the lock is on a file of
    its own, it is released with the object. A forked child inherits an ``flock``, and has to close the descriptor.

    Raises:
        NoFileLocks: the file cannot be locked.
        OSError: locking failed.
    """
    lock = lock_for(path)
    return lock if lock.try_acquire(file) else None


def _holders(file: int) -> list[int]:
    """The processes that hold an ``flock`` on the file, where Linux lists them; else none."""
    if not sys.platform.startswith("linux"):
        return []
    try:
        facts = os.fstat(file)
        place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
        with open("/proc/locks", encoding="ascii", errors="replace") as lines:
            # 1: FLOCK  ADVISORY  WRITE 2199 fe:00:2146367 0 EOF; those that wait have "->" after the number.
            found = [fields for line in lines if len(fields := line.split()) > 5 and fields[5] == place]
        return sorted({int(fields[4]) for fields in found if fields[1] == "FLOCK" and int(fields[4]) > 0})
    except (OSError, ValueError):
        return []


def lock_open(file: int) -> bool | None:
    """Locks an open file until its descriptor is closed, without waiting.

    Returns:
        True: locked; False: another holds it; None: there are no locks here.
    """
    try:
        return None if fcntl is None else FileLock(Path()).try_acquire(file)
    except OSError:
        return None


# Processes


def owner() -> dict[str, Any]:
    """Host, process id and start time of this process, as a journal's first record has them."""
    return {"host": host(), "pid": os.getpid(), "process_start": start_of(os.getpid())}


@lru_cache(maxsize=1)
def host() -> str:
    """Name of this machine."""
    return socket.gethostname()


def start_of(pid: int) -> int | None:
    """When a process of this machine began, in clock ticks since the machine did; None where it cannot be read.

    With it a process is not taken for an earlier one that had the same id.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name of the program comes first, in parentheses, and may hold spaces.
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def may_live(first: dict[str, Any]) -> bool:
    """Tells whether the process that wrote a journal may live still, by its first record: for files without locks.

    True for a process of another machine: nothing can be found out about it here.
    """
    pid = first.get("pid")
    if first.get("host") != host() or not isinstance(pid, int):
        return True
    if fcntl is None:
        # `os.kill(pid, 0)` ends the process on Windows.
        return pid == os.getpid() or _lives_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    start = first.get("process_start")
    return start is None or start_of(pid) in (None, start)


def _lives_on_windows(pid: int) -> bool:
    import ctypes

    kernel: Any = getattr(ctypes, "windll").kernel32  # noqa: B009 - mypy on other systems has no such name
    handle = kernel.OpenProcess(0x00100000, False, pid)  # SYNCHRONIZE
    if not handle:
        return False
    waits: bool = kernel.WaitForSingleObject(handle, 0) == 0x102  # WAIT_TIMEOUT: it has not ended
    kernel.CloseHandle(handle)
    return waits
