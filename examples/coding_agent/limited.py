"""Runs one command with limits, and ends every process that it started. Started by ``sandbox.py``; Linux.

    python -I -S limited.py '{"output": FILE, "seconds": 10, ...}' COMMAND...

Prints how the command ended, as JSON. It is a process of its own so that the limits can be set without running Python
code between fork and exec of a program with threads, and so that processes left behind become its children.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    limits = json.loads(sys.argv[1])
    system = ctypes.CDLL(None, use_errno=True)
    # A process whose parent ends becomes a child of this one, also in a session of its own: `end_all` finds it.
    system.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Where the program that waits for this one is killed, this one ends as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    system.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def set_limits() -> None:
        seconds = int(limits["cpu_seconds"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # SIGXCPU, then SIGKILL
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_size"], limits["file_size"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with open(limits["output"], "wb") as output:
        process = subprocess.Popen(
            sys.argv[2:],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=set_limits,
        )
    timed_out = False
    try:
        process.wait(limits["seconds"])
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        end_all(process)
    print(json.dumps({"returncode": process.returncode, "timed_out": timed_out}))


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Kills the command's process group at once, and then what has left the group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    while True:
        for child in children():
            os.kill(child, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def children() -> list[int]:
    """The ids of this process's children, those included that have ended and were not waited for."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        if parent == os.getpid():
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main()
