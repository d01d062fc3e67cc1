"""Python programs in processes of their own, forked from one that has already imported what they need.

A process that begins with the interpreter spends most of its time on imports: the command 0.15 seconds, an SDK's client
0.8. How programs begin is shown by the tests that start them with the interpreter; the others can use a `Starter`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SERVE = """
import atexit, gc, json, os, socket, sys, threading

def standard_streams():
    "As the interpreter makes them when it begins."
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, name)
        lines = name == "stderr" or os.isatty(fd)
        new = open(fd, mode, -1, old.encoding, old.errors, None if mode == "r" else "\\n", closefd=False)
        if mode == "w":
            new.reconfigure(line_buffering=lines)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)

def serve(channel):
    "Forks for each request, and returns in the new process alone: with its program."
    while True:
        message, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            os._exit(0)
        child = os.fork()
        if child:
            for fd in fds:
                os.close(fd)
            channel.send(str(child).encode())
            channel.send(str(os.waitpid(child, 0)[1]).encode())
            continue
        channel.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        request = json.loads(message)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[1:] = request["args"]
        standard_streams()
        return request["program"]

def run_and_end(program):
    "As the interpreter does, save that what was imported is not taken apart: most of what a short program takes."
    try:
        code = exec(program, {"__name__": "__main__"})
    except SystemExit as error:
        code = error.code
    if not isinstance(code, int | None):
        sys.exit(code)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code or 0)

run = run_and_end if sys.argv.pop(1) == "True" else lambda program: exec(program, {"__name__": "__main__"})
exec(compile(sys.argv.pop(1), "<imports>", "exec"), {"__name__": "imports"})
# What is imported is not looked at, and so not copied, when a process ends: two thirds of its time.
gc.collect()
gc.freeze()
run(compile(serve(socket.socket(fileno=int(sys.argv.pop(1)))), "<string>", "exec"))
"""


class Started:
    """A process that runs; the next can be started when it has ended."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.pid = int(self._answer())

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or the negative number of the signal that ended it, as `subprocess` has it.

        Raises:
            TimeoutError: it took longer; it is killed.
        """
        self._channel.settimeout(timeout)
        try:
            return os.waitstatus_to_exitcode(int(self._answer()))
        except TimeoutError:
            self._channel.settimeout(None)
            os.kill(self.pid, signal.SIGKILL)
            self._answer()
            raise
        finally:
            self._channel.settimeout(None)

    def _answer(self) -> bytes:
        answer = self._channel.recv(100)
        if not answer:
            raise RuntimeError("the process that forks has ended: its imports failed, see stderr")
        return answer


class Starter:
    """Starts processes of programs.

    Args:
        imports: the program that imports what those of the processes need. It starts no threads.
        options: of the interpreter, such as ``-W error``.
        cwd: the folder in which they are imported.
        takes_apart: whether a process takes apart what was imported when it ends, as the interpreter does.
    """

    def __init__(self, imports: str, *options: str, cwd: Path | None = None, takes_apart: bool = True) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = _of_the_interpreter(os.environ)
        with theirs:
            command = [sys.executable, *options, "-c", _SERVE, str(not takes_apart), imports, str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=cwd, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self._close)

    def _close(self) -> None:
        self._channel.close()
        self._process.wait()

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether the interpreter would begin alike in this environment."""
        return _of_the_interpreter(environment) == self._environment

    def start(
        self,
        program: str,
        args: Sequence[str],
        *,
        cwd: Path,
        fds: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> Started:
        """Starts ``python -c program args`` with these standard streams, in this environment or that of this process.

        What the interpreter itself reads in its environment when it begins has no effect.
        """
        variables = dict(os.environ if environment is None else environment)
        request = {"program": program, "args": args, "cwd": str(cwd), "environment": variables}
        socket.send_fds(self._channel, [json.dumps(request).encode()], list(fds))
        return Started(self._channel)

    def run(self, program: str, args: Sequence[str], *, cwd: Path, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        """Runs a program to its end: its exit code, and what it wrote to stdout and stderr."""
        (in_fd, feed), (out, out_fd), (err, err_fd) = os.pipe(), os.pipe(), os.pipe()
        try:
            started = self.start(program, args, cwd=cwd, fds=(in_fd, out_fd, err_fd))
        finally:
            for fd in (in_fd, out_fd, err_fd):
                os.close(fd)
        with ThreadPoolExecutor(3) as pool:
            pool.submit(_write, feed, stdin)
            written = [pool.submit(_read, fd) for fd in (out, err)]
            code = started.wait(120)
            return code, written[0].result(), written[1].result()


def _of_the_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(("PYTHON", "LC_", "LANG"))}


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(fd, "wb") as file:
        file.write(data)


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()
