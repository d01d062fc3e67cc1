"""Other processes that write to a file, for the tests of the writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLOCK = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
"""Holds the lock of a file as every version of this library does, until a line comes."""

LOCK_FILE = """
import os, sys
import filelock
with filelock.FileLock(sys.argv[1] + ".lock"):
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""
"""The same where there is no flock."""


def environment() -> dict[str, str]:
    """Of a child that imports what this process can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(program: str, *arguments: str | Path, folder: Path | None = None) -> str:
    """What a program printed that ran in ``folder``. It must end well, and write nothing to stderr."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Holder:
    """A process that holds the lock of a file, and is stopped by SIGSTOP."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def release(self) -> None:
        """Lets it go on, and waits for its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.communicate("\n", timeout=60)

    def kill(self) -> None:
        """Kills it, and waits for its end."""
        self._process.kill()
        self._process.communicate(timeout=60)


@contextmanager
def stopped_holder(path: Path, program: str = FLOCK) -> Iterator[Holder]:
    """A process that has locked ``path`` and is stopped."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    holder = Holder(process)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid}\n"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # Until it is stopped.
        yield holder
    finally:
        holder.release()
