"""A terminal for the processes that make rollouts while a bar is shown: what they print appears above the bar."""

from __future__ import annotations

import codecs
import os
import struct
import threading
from collections.abc import Callable

from rollout_trace.collection.above import Held

_PATIENCE = 1.0
"""Seconds to wait at the end for what processes have printed."""

_current: WorkerTerminal | None = None


def streams_of_workers() -> dict[str, int]:
    """Arguments for ``subprocess.Popen``: ``stdout`` and ``stderr`` of a process that makes rollouts.

    Empty where no bar is shown: then it has those of this process.
    """
    return {} if _current is None else _current.streams


class WorkerTerminal:
    """A terminal of its own: programs print in colours on it, and line by line, as on the real one.

    Args:
        put: called with whole lines.
        has_stdout: whether stdout goes there too, or stderr alone.
    """

    def __init__(self, put: Callable[[str], object], *, has_stdout: bool) -> None:
        self.streams: dict[str, int] = {}
        """Empty while it is closed, and where the system has no such terminals."""
        self._put = put
        self._has_stdout = has_stdout
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Opens it."""
        global _current
        try:
            import fcntl
            import termios

            master, slave = os.openpty()
        except (ImportError, AttributeError, OSError):  # Windows; or none is left.
            return
        try:
            attributes = termios.tcgetattr(slave)
            attributes[1] &= ~termios.OPOST  # No returns before line ends.
            termios.tcsetattr(slave, termios.TCSANOW, attributes)
            size = os.get_terminal_size(2)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
        except (OSError, termios.error):  # Of unknown size.
            pass
        self.streams = {"stdout": slave, "stderr": slave} if self._has_stdout else {"stderr": slave}
        self._thread = threading.Thread(
            target=_read, args=(master, self._put), name="rollout_trace worker output", daemon=True
        )
        self._thread.start()
        _current = self

    def stop(self) -> None:
        """Closes it, when what was printed has been shown. Processes that run still may go on to print."""
        global _current
        if _current is self:
            _current = None
        if self._thread is None:
            return
        os.close(self.streams["stderr"])
        self.streams = {}
        self._thread.join(_PATIENCE)


def _read(master: int, put: Callable[[str], object]) -> None:
    held, decoder = Held(put), codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while data := os.read(master, 65_536):
            held.add(decoder.decode(data))
    except OSError:  # No process has it open any more.
        pass
    finally:
        os.close(master)
    rest = held.take()
    if rest:
        put(rest)


def _after_fork() -> None:
    global _current
    _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
