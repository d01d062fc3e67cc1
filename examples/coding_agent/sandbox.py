"""Runs commands of a model: with limits on time, CPU, memory and file size, without the environment's secrets, and
without leaving a process behind.

It guards against accidents, not against attackers: the command is a process of the same user, with the same disk and
network. For a model that you do not trust, run the whole example in a container or a virtual machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

LIMITED = Path(__file__).with_name("limited.py")


@dataclass(frozen=True)
class Limits:
    """What one command may use."""

    seconds: float = 20.0
    """Of time; then it is killed."""
    cpu_seconds: int = 10
    """Of CPU, in each process."""
    memory: int = 1 << 30
    """Bytes of address space, of each process."""
    file_size: int = 16 << 20
    """Bytes, of each file; what the command prints is one."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended, with all processes that it started."""

    returncode: int
    """Negative: the signal that ended it."""
    timed_out: bool
    output: str
    """Beginning and end of what it printed, errors included."""


def run(command: list[str], folder: Path, home: Path, limits: Limits, *, keep: int = 4000) -> Finished:
    """Runs a command in a folder, and waits for its end.

    Args:
        command: program and arguments; there is no shell.
        folder: the working folder.
        home: for what programs keep in a home or temporary folder.
        limits: what it may use.
        keep: characters of its output that are returned.

    Raises:
        RuntimeError: it could not be started.
    """
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"HOME": str(home), "TMPDIR": str(home)}
    with tempfile.TemporaryDirectory(prefix="coding-agent-output-") as place:
        output = Path(place, "output")
        settings = json.dumps({**asdict(limits), "output": str(output)})
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(LIMITED), settings, *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} could not be run: {done.stderr.strip() or done.returncode}")
        return Finished(**json.loads(done.stdout), output=shortened(output, keep))


def shortened(path: Path, keep: int) -> str:
    """The text of a file; of a long one, as many characters of its beginning and its end."""
    with path.open("rb") as file:
        text = file.read(keep * 4).decode(errors="replace")
        left = path.stat().st_size - file.tell()
        if not left and len(text) <= keep:
            return text
        file.seek(-min(keep * 4, path.stat().st_size), os.SEEK_END)
        end = file.read().decode(errors="replace")
    half = keep // 2
    return f"{text[:half]}\n[... {path.stat().st_size} bytes in all ...]\n{end[-half:]}"
