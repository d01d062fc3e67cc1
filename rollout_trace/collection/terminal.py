"""Shows above the progress bar what this process, and those that make rollouts, print meanwhile."""

from __future__ import annotations

import codecs
import os
import struct
import threading
from collections.abc import Callable
from typing import IO, Any

LONGEST = 65_536
"""Characters of a line that is held until its end comes."""
_PATIENCE = 1.0
"""Seconds to wait at the end for what processes have printed."""

_active: list[Above] = []
_current: WorkerTerminal | None = None


class Held:
    """Holds text that is not a complete line yet. Thread-safe."""

    def __init__(self, put: Callable[[str], object]) -> None:
        self._put = put
        self._text = ""
        # Reentrant: a signal handler may print while its thread does.
        self._lock = threading.RLock()

    def add(self, text: str) -> None:
        """Passes on the lines that are whole now."""
        with self._lock:
            whole, end, rest = (self._text + text).rpartition("\n")
            # A bar of the agent's own: what a terminal would show is what follows the last return.
            self._text = rest if rest.endswith("\r") else rest[rest.rfind("\r") + 1 :]
            if len(self._text) > LONGEST:
                whole, end, self._text = whole + end + self._text, "\n", ""
            if end:
                self._put(whole)

    def take(self) -> str:
        """The part of a line that is left."""
        with self._lock:
            text, self._text = self._text, ""
            return text


class Above:
    """Replaces a stream's ``write``: passes on complete lines and holds the rest.

    The object that is ``sys.stderr`` stays: handlers of ``logging`` that took it before write above the bar too.
    """

    def __init__(self, stream: IO[str], put: Callable[[str], object]) -> None:
        self.write_through: Callable[[str], int] = stream.write
        self._stream = stream
        self._put = put
        self._held = Held(put)

    def start(self) -> bool:
        """Replaces the method; False where the stream does not let it be replaced."""
        try:
            self._stream.__dict__["write"] = self._write
        except AttributeError:
            return False
        _active.append(self)
        return True

    def stop(self) -> None:
        """Puts the method back, and writes what was held."""
        if self not in _active:
            return
        _active.remove(self)
        # Another tool may have replaced it since; then this one passes on what it gets.
        if self._stream.__dict__.get("write") == self._write:
            del self._stream.__dict__["write"]
        held = self._held.take()
        if held:
            self.write_through(held)

    def forget(self) -> None:
        """As ``stop`` in a forked process: what was held is the original's, and another thread may have its lock."""
        self._held = Held(self._put)
        self.stop()

    def _write(self, text: str) -> int:
        if self not in _active or not isinstance(text, str):  # What is no text raises what it would.
            return self.write_through(text)
        self._held.add(text)
        return len(text)


class Direct:
    """A file that writes to a stream, whatever takes the place of its ``write``."""

    def __init__(self, stream: IO[str], write: Callable[[str], int]) -> None:
        self.write = write
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def same_terminal(one: Any, other: Any) -> bool:
    """Whether both streams are written to one terminal."""
    try:
        if one is None or other is None or not (one.isatty() and other.isatty()):
            return False
        return os.fstat(one.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    except (OSError, ValueError, AttributeError):  # Closed, or no file.
        return False


def streams_of_workers() -> dict[str, int]:
    """``stdout`` and ``stderr`` for ``subprocess.Popen`` of a process for rollouts; empty where no bar is shown."""
    return {} if _current is None else _current.streams


class WorkerTerminal:
    """A terminal for processes: they print in colours, line by line, as on the real one. ``put`` gets whole lines."""

    def __init__(self, put: Callable[[str], object], *, has_stdout: bool) -> None:
        self.streams: dict[str, int] = {}
        """Empty while it is closed, and where the system has no such terminals."""
        self._put = put
        self._names = ("stdout", "stderr") if has_stdout else ("stderr",)
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
        self.streams = dict.fromkeys(self._names, slave)
        name = "rollout_trace worker output"
        self._thread = threading.Thread(target=_read, args=(master, self._put), name=name, daemon=True)
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
    """A child process has no bar: its streams are as they were."""
    global _current
    _current = None
    for one in list(_active):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
