"""A program that is not Python, and its loopback server: started, recorded and ended together."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from subprocess import DEVNULL, PIPE, CompletedProcess
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.clients.loopback.program_server import ProgramServer
from rollout_trace.clients.loopback.programs import Program, Start, program_of
from rollout_trace.clients.loopback.trajectories import ProgramTrajectories
from rollout_trace.process import children, launched, options, rewards
from rollout_trace.process.children import child_environment
from rollout_trace.record import context, process_end, program, scope
from rollout_trace.record.ancestry import NAME
from rollout_trace.record.settings import Settings
from rollout_trace.wire.protocols import protocol_of_path

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for what is left of a program, and for the rest of its output after them."""
_PLAIN = Settings(protocol_of_path, is_http=True, is_guess=True)


def _settings() -> Settings:
    return options.HTTP if options.is_active() else _PLAIN


class Hosted:
    """A program of ``rollout-trace run``, whose variables this process has: its recorder, and its loopback server.

    Args:
        command: that starts the program.
        environment: the program's.
        cli: the name of the known program that it is, where its own is another.

    Raises:
        ValueError: ``cli`` is unknown.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cli: str | None = None) -> None:
        known = program_of(command, cli)
        os.environ.setdefault(NAME, known.name if known is not None else os.path.basename(command[0]))
        process_end.leave_atexit()
        launched.start()
        self._trajectories = ProgramTrajectories(_main, known, environment)
        self._server = ProgramServer(command, environment, self._trajectories, _settings, known)

    def start(self) -> Start:
        """Starts the server; returns how to start the program."""
        self._server.start()
        return self._server.start_of_program()

    def end(self, *, is_aborted: bool) -> None:
        """Stops the server, writes what was recorded, and prints the summary of the run: the program has ended."""
        self._server.close()
        self._trajectories.close(is_aborted=is_aborted)
        guard.run_all("reward", rewards.give_to_open)
        program.close(status="aborted" if is_aborted else None)
        process_end.close_all()


def _main() -> Trajectory | None:
    return program.of_call(None, datetime.now(timezone.utc))


async def run_program(
    command: Sequence[str],
    *,
    cli: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
) -> CompletedProcess[str]:
    """Runs a program written in any language, and records its model calls in the current trajectory.

        async def agent(task, rollout):
            done = await rt.run_program(["claude", "-p", task["prompt"]], cwd=rollout.folder)
            return done.stdout

    The program's calls go through a server on 127.0.0.1 that forwards them byte for byte to their original address and
    stops with the program. Python programs that it starts are recorded in their own process. Sub-agents become
    trajectories inside the current one. Without a current trajectory, one is opened with the name of the program. When
    the program has ended, or the caller is cancelled, the remaining processes of its group are ended.

    Args:
        command: the program and its arguments.
        cli: name of a known program (``claude-code``, ``codex``, ...), if its executable has another name.
        cwd: folder in which the program runs; None: that of this process.
        env: the program's environment; None: that of this process. Variables that point to the server are added.
        input: text for the program's standard input; None: nothing.

    Returns:
        The arguments, the exit code (negative: the number of the signal), and the complete standard output and error as
        text. Output of processes that have left the group is not waited for.

    Raises:
        ValueError: ``command`` is empty, or ``cli`` is unknown.
        OSError: the program cannot be started.
    """
    if not command or isinstance(command, (str, bytes)):
        raise ValueError(f"rt.run_program({command!r:.80}): expected a list with a program and its arguments.")
    known = program_of(command, cli)
    here = scope.here()
    if children.for_children or (here is not None and here.is_open):
        return await _run(command, known, here, cwd, env, input)
    name = known.name if known is not None else os.path.basename(command[0])
    async with context.trajectory(name) as opened:
        return await _run(command, known, opened, cwd, env, input)


async def _run(
    command: Sequence[str],
    known: Program | None,
    trajectory: Trajectory | None,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    given: str | None,
) -> CompletedProcess[str]:
    environ = {**(os.environ if env is None else env)}
    with suppress(RuntimeError):
        # Of a recording that Python children cannot be handed on to: then they are not recorded.
        environ.update(child_environment())
    trajectories = ProgramTrajectories(lambda: trajectory, known, environ)
    # In a test whose model servers are stood in for, the one that does so records the program too.
    stood_in = {**children.for_children}
    server = None if stood_in else ProgramServer(command, environ, trajectories, _settings, known)
    transport: asyncio.SubprocessTransport | None = None
    program = _Running()
    is_whole = False
    try:
        start = Start(list(command), stood_in) if server is None else server.start().start_of_program()
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: program,
            *start.command,
            cwd=cwd,
            env={**environ, **start.variables},
            stdin=DEVNULL if given is None else PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        stdin = transport.get_pipe_transport(0)
        if given is not None and isinstance(stdin, asyncio.WriteTransport):
            stdin.write(given.encode())
            stdin.close()
        # Not for the end of its output: a process that it has left behind may hold that open.
        await program.has_exited.wait()
        is_whole = True
    finally:
        await _whole(_end(transport, program, server, trajectories, is_aborted=not is_whole))
    code = transport.get_returncode() or 0
    out, err = (bytes(program.output[number]).decode("utf-8", "replace") for number in (1, 2))
    return CompletedProcess(list(command), code, out, err)


class _Running(asyncio.SubprocessProtocol):
    """A program that runs: what it writes, and when it ends."""

    def __init__(self) -> None:
        self.output = {1: bytearray(), 2: bytearray()}
        """By the number of the file."""
        self.has_exited = asyncio.Event()
        self.is_closed = asyncio.Event()
        """It has exited, and nobody can write any more."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.output[fd] += data

    def process_exited(self) -> None:
        self.has_exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed.set()


async def _whole(ending: Coroutine[Any, Any, None]) -> None:
    """Runs it to its end, also where the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _end(
    transport: asyncio.SubprocessTransport | None,
    program: _Running,
    server: ProgramServer | None,
    trajectories: ProgramTrajectories,
    *,
    is_aborted: bool,
) -> None:
    try:
        if transport is not None:
            await _end_group(transport, program)
    finally:
        if server is not None:
            closing = server.close, lambda: trajectories.close(is_aborted=is_aborted)
            # On a thread: it waits for others, which may be in the middle of an answer, and decodes what was recorded.
            await asyncio.shield(asyncio.to_thread(guard.run_all, "close", *closing))


async def _end_group(transport: asyncio.SubprocessTransport, program: _Running) -> None:
    """Ends what is left of a program and of what it has started, and reads the rest of its output."""
    if not hasattr(os, "killpg"):
        # Windows has no groups.
        with suppress(ProcessLookupError):
            transport.kill()
    else:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(transport.get_pid(), number)
            except (ProcessLookupError, PermissionError):
                break
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(program.has_exited.wait(), _GRACE)
    await program.has_exited.wait()
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(program.is_closed.wait(), _GRACE)
    transport.close()
