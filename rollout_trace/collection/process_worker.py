"""A worker of ``ProcessExecutor``, as the process that starts it sees it."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
from multiprocessing import spawn
from typing import Any

from rollout_trace import guard
from rollout_trace._python import without_interrupts
from rollout_trace._threads import renew_after_fork
from rollout_trace.collection.job import Job, Outcome, Work, WorkerLost
from rollout_trace.collection.pool import RemoteWorker
from rollout_trace.collection.process_main import LENGTH, UNGUARDED
from rollout_trace.collection.terminal import streams_of_workers
from rollout_trace.process.child_tasks import BOOT

NO_GUARD = (
    "each process for rollouts imports the main module of the program, which calls collect while it is imported. Put "
    'what the program does under `if __name__ == "__main__":`, and leave the agent outside of it.'
)
_PROGRAM = """
import pickle, socket, sys
channel = {socket}
stream = channel.makefile("rb")
sys.path[:] = pickle.load(stream)
from rollout_trace.collection.process_main import main
main(channel, stream)
"""
_LABEL = "rollout_trace-worker"
"""The last argument of the command line of each worker."""


class WorkerProcess(RemoteWorker):
    """A process that makes rollouts, and the connection to it. ``number``: of its start, for its name."""

    place = "another process"

    def __init__(self, number: int, *remote: Any) -> None:
        super().__init__(*remote)
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """What it was told to do, and has not said the end of."""
        self._jobs: set[int] = set()
        """Those of them that are rollouts."""
        self._stopped: set[int] = set()
        self._opened: dict[int, asyncio.Future[Any]] = {}
        self._complete: asyncio.Future[Any] | None = None
        """Done when all that it recorded is written."""
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._end: Exception | None = None
        """What rollouts get that it cannot make any more; None while it runs."""
        data = dict(spawn.get_preparation_data(f"rollouts-{number + 1}"))
        data["authkey"] = bytes(data["authkey"])
        if not os.path.isfile(data.get("init_main_from_path", "")):
            # A program that came through a pipe: `<stdin>`.
            data.pop("init_main_from_path", None)
        self._waiting = [pickle.dumps([os.getcwd() if entry == "" else entry for entry in sys.path])]
        """To be sent when it is connected."""
        self._prepared = self._ask("prepare", data, self._grace)
        # In a context of its own: what is current here is not the process's.
        self._run = asyncio.ensure_future(self._serve())

    async def open(self, work: Work) -> None:
        """Opens the worker. Raises TypeError for work that cannot be pickled, RuntimeError for the main module."""
        number, payload = self._load(work)
        await asyncio.shield(self._prepared)
        if number not in self._opened:
            self._opened[number] = self._ask("work", number, payload)
        await asyncio.shield(self._opened[number])

    def send(self, number: int, job: Job) -> asyncio.Future[Outcome]:
        return self._ask("job", number, pickle.dumps(job, pickle.HIGHEST_PROTOCOL))

    def stop(self, made: asyncio.Future[Outcome]) -> None:
        for number in self._jobs:
            if self._asked[number] is made:
                self._stopped.add(number)
                self._send("stop", number)
                # No task: a rollout may be cancelled because the event loop ends, which does not see new ones.
                asyncio.get_running_loop().call_later(self._grace, self._check_stopped, made)
                return

    async def end(self) -> None:
        try:
            if self._writer is None:
                # It has made nothing.
                self.kill("not needed")
            self._complete = self._complete or self._ask("end")
            done, _ = await asyncio.wait([self._run], timeout=self._grace)
            if not done and not self._complete.done():
                guard.warn(
                    f"a worker process did not end within {self._grace:g} seconds and was killed. What it had "
                    "not written is in its journal: rt.recover reads it."
                )
        finally:
            self.kill("it did not end in time")
            await asyncio.gather(self._run, *self._watches)

    def ask(self) -> asyncio.Future[None]:
        return self._ask("ping")

    def kill(self, why: str) -> None:
        self._why = self._why or why
        if self._process is not None and self._end is None:
            self._process.kill()

    def _ask(self, kind: str, *arguments: Any) -> asyncio.Future[Any]:
        """Tells the process to do something. The future gets what comes of it, or the end of the process."""
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        if self._end is not None:
            _settle(asked, self._end)
            return asked
        self._asked[number] = asked
        if kind == "job":
            self._jobs.add(number)
        self._send(kind, number, *arguments)
        return asked

    def _send(self, *message: Any) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if self._writer is None:
            self._waiting.append(data)
        elif self._end is None:
            self._writer.write(data)

    async def _serve(self) -> None:
        """Starts the process and takes its messages, until it has ended. Never raises."""
        loop = asyncio.get_running_loop()
        try:
            ours, theirs = socket.socketpair()
            for connection in (ours, theirs):
                renew_after_fork(connection, _close_in_fork)
            with theirs:
                self._process = await loop.run_in_executor(None, _start, theirs)
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._writer.writelines(self._waiting)
            if self._why is not None:
                self._process.kill()
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._take(*pickle.loads(await reader.readexactly(length)))
        except asyncio.CancelledError:
            # The event loop ends, in a hurry. Without its connection the process completes what it wrote, and ends.
            if self._writer is not None:
                self._writer.close()
            raise
        except (asyncio.IncompleteReadError, ConnectionError):
            self._ended(_lost(await loop.run_in_executor(None, self._wait), self._why))
        except Exception as error:
            if self._process is not None:
                self._process.kill()
                await loop.run_in_executor(None, self._process.wait)
            self._ended(RuntimeError(f"a worker process cannot be started: {guard.describe(error)}"))

    def _wait(self) -> int:
        """Waits for the end of a process that has closed its connection, and returns its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(self._grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _take(self, number: int, how: str, result: Any) -> None:
        """Takes what the process says of something that it was told to do."""
        asked = self._asked.pop(number)
        if how == "stopped" and number in self._stopped:
            asked.cancel()
        elif how == "stopped":
            _settle(asked, RuntimeError("the rollout was cancelled in its process."))
        else:
            _settle(asked, result)
        self._jobs.discard(number)
        self._stopped.discard(number)

    def _ended(self, error: Exception) -> None:
        self._end = error
        if self._writer is not None:
            self._writer.close()
        for asked in self._asked.values():
            _settle(asked, error)
        self._asked.clear()
        self._jobs.clear()
        self._on_lost(self)

    def _check_stopped(self, made: asyncio.Future[Outcome]) -> None:
        """Kills the process if it makes nothing but rollouts that were stopped long ago."""
        if not made.done() and self._jobs <= self._stopped:
            self.kill("a rollout was stopped and did not end")


def _settle(asked: asyncio.Future[Any], result: Any) -> None:
    if asked.done():
        return
    if isinstance(result, BaseException):
        asked.set_exception(result)
        # Nobody may wait for it.
        asked.exception()
    else:
        asked.set_result(result)


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Starts a worker with its end of a connection."""
    # Of the recorder's variables none: what is recorded there has no parent here.
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != BOOT]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUT_TRACE_")}
    environment.pop("PYTHONPATH", None)
    if any(path):
        environment["PYTHONPATH"] = os.pathsep.join(path)
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [os.fsdecode(spawn.get_executable() or sys.executable), *options, "-c"]
    if sys.platform == "win32":
        program = _PROGRAM.format(socket="socket.fromshare(pickle.load(sys.stdin.buffer))")
        started = subprocess.Popen([*command, program, _LABEL], stdin=subprocess.PIPE, env=environment)
        assert started.stdin is not None
        with started.stdin:
            pickle.dump(theirs.share(started.pid), started.stdin)
        return started
    program = _PROGRAM.format(socket="socket.socket(fileno=int(sys.argv[1]))")
    streams = streams_of_workers()
    # Blocked at the start, Ctrl-C cannot end one before that has a handler.
    with without_interrupts():
        return subprocess.Popen(
            [*command, program, str(theirs.fileno()), _LABEL],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdout=streams.get("stdout"),
            stderr=streams.get("stderr"),
        )


def _lost(code: int, why: str | None) -> Exception:
    if code == UNGUARDED:
        return RuntimeError(NO_GUARD)
    if why is not None:
        return WorkerLost(f"the process that made the rollout was killed: {why}.")
    if code >= 0:
        return WorkerLost(f"the process that made the rollout ended with exit code {code}.")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = ": the machine may be short of memory" if name == "SIGKILL" else ""
    return WorkerLost(f"the process that made the rollout was ended by {name}{hint}.")


def _close_in_fork(connection: socket.socket) -> None:
    """Closes a connection of the original process: through it its worker would live as long as this one."""
    if connection.fileno() >= 0:
        os.close(connection.detach())
