"""The recording of what has no other: of a process whose output was named when it was started.

A program's own ``rt.recording`` goes before it. Its file is created when the first trajectory needs it.
"""

from __future__ import annotations

import os
import threading
import time

from rollout_trace import guard
from rollout_trace.record import process_end
from rollout_trace.record.recording import recording

_path: str | None = None
_recording: recording | None = None
# Reentrant: the garbage collector may close an agent, and its trajectory, while the lock is held.
_lock = threading.RLock()


def _after_fork() -> None:
    """Renews the lock in a forked process: another thread may have held it at the fork."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def use(path: str | None) -> None:
    """Sets the file for trajectories that have no recording of their own; None: there is none any more.

    One that is open is ended first, and what was closed is written.
    """
    global _path
    with _lock:
        end()
        _path = path
    if path is not None:
        guard.run_all("exit", lambda: process_end.watch(for_good=True))


def path() -> str | None:
    """Its file; None without one."""
    return _path


def opened() -> recording | None:
    """The recording, if a trajectory has needed it."""
    return _recording


def for_the_rest() -> recording | None:
    """The recording, which is opened where it is not; None where there is none, or its file cannot be opened."""
    global _path, _recording
    with _lock:
        if _recording is None and _path is not None:
            try:
                one = recording(_path)
                one.open_without_block()
                _recording = one
            except (OSError, ValueError, ImportError) as error:
                name, _path = _path, None
                guard.count("recorder_errors")
                guard.warn(f"nothing is recorded to {name}: {guard.describe(error)}")
        return _recording


def end() -> None:
    """Ends it: what has closed is written. To be called once everything is closed, at the end of the process."""
    global _recording
    with _lock:
        one, _recording = _recording, None
    if one is not None:
        one.end_with_process(time.monotonic() + process_end.CLOSE_TIMEOUT)


process_end.add_closer(end)
