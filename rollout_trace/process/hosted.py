"""A program that is not Python, and its loopback server: started, recorded and ended together."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from subprocess import PIPE, CompletedProcess
from typing import TYPE_CHECKING

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
"""Seconds between SIGTERM and SIGKILL for what is left of a program."""
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
        self._trajectories = ProgramTrajectories(_main, known)
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
    """Runs a program, in whatever language it is written, and records its model calls in the current trajectory.

        async def agent(task, rollout):
            done = await rt.run_program(["claude", "-p", task["prompt"]], cwd=rollout.folder)
            return done.stdout

    Its calls go through a server on 127.0.0.1 that forwards them byte for byte to the address that they were meant for,
    and that ends with the program. Python programs among those that it starts are recorded in their own process.
    Sub-agents are trajectories inside the current one. Without a current trajectory, one is opened with the name of the
    program. When the caller is cancelled, and when the program has ended, what is left of its process group is ended.

    Args:
        command: the program and its arguments.
        cli: the name of a known program (``claude-code``, ``codex``, ...), where that of the executable is another.
        cwd: the folder that it runs in; None: that of this process.
        env: its environment; None: that of this process. The variables that lead to the server are added.
        input: what it reads from standard input; None: nothing.

    Returns:
        Arguments, exit code (negative: the number of the signal), and the whole output and error output as text.

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
    trajectories = ProgramTrajectories(lambda: trajectory, known)
    # In a test whose model servers are stood in for, the one that does so records the program too.
    stood_in = {**children.for_children}
    server = None if stood_in else ProgramServer(command, environ, trajectories, _settings, known)
    process = None
    is_whole = False
    try:
        start = Start(list(command), stood_in) if server is None else server.start().start_of_program()
        process = await asyncio.create_subprocess_exec(
            *start.command,
            cwd=cwd,
            env={**environ, **start.variables},
            stdin=asyncio.subprocess.DEVNULL if given is None else PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        out, err = await process.communicate(None if given is None else given.encode())
        is_whole = True
        code = process.returncode or 0
        return CompletedProcess(list(command), code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
    finally:
        if process is not None:
            await asyncio.shield(_end_group(process))
        # On a thread: it waits for others, which may be in the middle of an answer, and decodes what was recorded.
        await asyncio.shield(asyncio.to_thread(_end, server, trajectories, is_aborted=not is_whole))


def _end(server: ProgramServer | None, trajectories: ProgramTrajectories, *, is_aborted: bool) -> None:
    if server is not None:
        guard.run_all("close", server.close, lambda: trajectories.close(is_aborted=is_aborted))


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ends what is left of a program and of what it has started."""
    if not hasattr(os, "killpg"):
        # Windows has no groups.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE)
    await process.wait()
