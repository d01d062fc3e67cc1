"""Tells if the process that writes a journal lives: it holds a lock on the file as long as it does."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

HAS_LOCKS = fcntl is not None


def hold(file: int) -> bool | None:
    """Locks an open file until its descriptor is closed, without waiting.

    Returns:
        True: locked; False: another holds it; None: there are no locks here.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


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
