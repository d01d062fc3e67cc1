"""``rollout-trace run`` of what starts no recorder in its own process: it is waited for, and recorded from here."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` would be a slow import.
import os
import sys

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than all of this.
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from rollout_trace.process.hosted import Hosted

_SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")
_OF_TERMINAL = ("SIGINT", "SIGQUIT")
_BEGINNING = 512
"""Bytes of a file in which its interpreter is named."""
_LONG_PATH = "'''exec' "
"""Begins the second line of a console script whose Python has a path too long for the first."""


def why_unseen(executable: str, command: Sequence[str]) -> str | None:
    """Why a command loads no recorder in its own process; None where it does: Python, or a script for it."""
    found = _arguments_of_python(executable, command)
    name = os.path.basename(command[0])
    if found is None:
        return f"{name} is not Python"
    return f"{name} is Python with -I, -E or -S" if _is_isolated(found) else None


def _arguments_of_python(executable: str, command: Sequence[str]) -> Sequence[str] | None:
    if _is_python(executable):
        return command[1:]
    try:
        with open(executable, "rb") as file:
            lines = file.read(_BEGINNING).decode("latin-1").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    is_long = len(lines) > 1 and lines[1].startswith(_LONG_PATH)
    words = (lines[1].removeprefix(_LONG_PATH) if is_long else lines[0][2:]).split()
    at = next((at for at, word in enumerate(words) if _is_python(word.strip("\"'"))), None)
    return None if at is None else words[at + 1 :]


def _is_python(path: str) -> bool:
    return os.path.basename(path).startswith(("python", "pypy"))


def _is_isolated(arguments: Sequence[str]) -> bool:
    """Whether the arguments of Python have ``-I``, ``-E`` or ``-S``."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0][1:2] not in ("", "-"):
        flags = rest.pop(0)[1:]
        # What follows these is the value of one, or belongs to the program.
        end = min((flags.index(one) for one in "cmWX" if one in flags), default=len(flags))
        if any(one in flags[:end] for one in "IES"):
            return True
        if flags[end : end + 1] in ("c", "m"):
            return False
        if flags[end:] in ("W", "X"):
            del rest[:1]
    return False


def run_and_report(
    executable: str, command: Sequence[str], environment: Mapping[str, str], why: str, cli: str | None = None
) -> NoReturn:
    """Runs a program, records the calls that it makes, prints the summary of the run to stderr, and ends as it did.

    Signals are passed on. ``why``: it loads no recorder. ``cli``: the known program that it is. Raises OSError.
    """
    # Of a signal that is ignored, nobody can wait for the next one.
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    awaited = {getattr(_signal, name) for name in (*_SIGNALS, "SIGCHLD")}
    # Before the recorder starts its threads: a signal that one of them took would end this process.
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, awaited)
    host = None
    try:
        host, own, variables = _host(command, environment, why, cli)
        status = _run(executable, own, variables, awaited, before)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    try:
        _end(host, is_aborted=os.WIFSIGNALED(status))
    except (Exception, KeyboardInterrupt):
        # Such as a closed stream. How the program ended is what counts.
        pass
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != _signal.SIGKILL:
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _host(
    command: Sequence[str], environment: Mapping[str, str], why: str, cli: str | None
) -> tuple[Hosted | None, list[str], Mapping[str, str]]:
    """The program's loopback server, its command and its environment. Without a server where that fails."""
    try:
        os.environ.update(environment)
        from rollout_trace.process import exits, hosted

        exits.why = why
        host = hosted.Hosted(command, environment, cli)
        start = host.start()
        return host, start.command, {**environment, **start.variables}
    except Exception as error:
        sys.stderr.write(f"rollout-trace: the calls of {command[0]} are not recorded: {error}\n")
        return None, list(command), environment


def _run(
    executable: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    awaited: set[int],
    mask: set[int],
) -> int:
    """Returns how it ended, as ``os.waitpid`` says it."""
    defaults = (_signal.SIGPIPE, _signal.SIGXFSZ)
    child = os.posix_spawn(executable, list(command), environment, setsigmask=mask, setsigdef=defaults)
    while True:
        number, is_users = _next_signal(awaited)
        if number != _signal.SIGCHLD:
            if is_users:
                os.kill(child, number)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def _next_signal(awaited: set[int]) -> tuple[int, bool]:
    """The next signal, and whether somebody sent it to this process alone: a terminal sends its own to the program."""
    wait = getattr(_signal, "sigwaitinfo", None)
    if wait is None:
        number = _signal.sigwait(awaited)
        return number, number not in {getattr(_signal, name) for name in _OF_TERMINAL}
    found = wait(awaited)
    return found.si_signo, found.si_code <= 0


def _end(host: Hosted | None, *, is_aborted: bool) -> None:
    """Closes and writes what was recorded, and prints the summary."""
    if host is not None:
        host.end(is_aborted=is_aborted)
