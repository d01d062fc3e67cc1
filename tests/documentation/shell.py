"""Runs the commands of a page: Python programs are forked from a process that has imported what they need."""

from __future__ import annotations

import contextlib
import functools
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli import command
from tests.file.processes import environment
from tests.forked import Started, Starter

ENDLESS = re.compile(
    r"rollout-trace view (?!.*--html)|rollout-trace (ls|tail) .*-f\b|rollout.trace[. ](?:testing\.)?serve"
)
"""Commands that run until Ctrl-C: they get it once they have printed a line."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_BEGIN = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
_RUN = "import runpy, sys\ndel sys.argv[0]\nrunpy."
_PROGRAMS = {
    "rollout-trace": command.PROGRAM,
    "python": _RUN + "run_path(sys.argv[0], run_name='__main__')\n",
    "python -m": _RUN + "run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n",
}
WARNINGS = ("error", "ignore::ResourceWarning")
"""The clients of most programs are not closed."""


@functools.lru_cache
def _starter() -> Starter:
    imports = command.IMPORTS + "import openai.resources.chat, rollout_trace.testing, runpy\n"
    return Starter(imports, *(part for one in WARNINGS for part in ("-W", one)), takes_apart=False)


@dataclass
class Shell:
    """A shell in a folder."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    """More variables of the environment. With those of the interpreter itself, no program is forked."""

    def run(self, text: str) -> str:
        """What commands print. They must end well; those that are endless are stopped.

        Raises:
            AssertionError: one failed.
        """
        return "".join(self._run_command(one) for one in commands_of(text))

    def on_terminal(self, typed: str) -> str:
        """What a command prints on a terminal, without colours; then what it writes to stderr.

        What goes to stderr alone is no part of a screen: a bar of progress is redrawn there.
        """
        if ENDLESS.search(typed):
            return self.run(typed)
        terminal, output = pty.openpty()
        variables = self._environment() | {"TERM": "xterm", "NO_COLOR": "1"}
        with tempfile.TemporaryFile("w+") as errors:
            found = self._program(typed.rstrip("\n"))
            running: Started | subprocess.Popen[bytes]
            if found is None:
                typed_to = ["bash", "-c", typed]
                running = subprocess.Popen(typed_to, cwd=self.folder, env=variables, stdout=output, stderr=errors)
            else:
                running = self._start(*found, fds=(0, output, errors.fileno()), variables=variables)
            os.close(output)
            printed = b""
            with contextlib.suppress(OSError):  # EIO: all of it has been read
                while part := os.read(terminal, 65536):
                    printed += part
            running.wait(300)
            os.close(terminal)
            errors.seek(0)
            return _COLOUR.sub("", printed.decode().replace("\r\n", "\n")) + errors.read()

    def _run_command(self, line: str) -> str:
        found = self._program(line)
        if found is None:
            return self._run_by_bash(line)
        out, fd = os.pipe()
        try:
            started = self._start(*found, fds=(0, fd, fd), variables=self._environment())
        finally:
            os.close(fd)
        with open(out) as stream:
            printed = ""
            if ENDLESS.search(line):
                printed = stream.readline()
                os.kill(started.pid, signal.SIGINT)
            printed += stream.read()
        assert started.wait(300) in _good_ends(line), f"{line}\n{printed}"
        return printed

    def _run_by_bash(self, text: str) -> str:
        ended = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, f"{text}\n{ended.stdout}"
        return ended.stdout

    def _start(self, program: str, args: list[str], fds: tuple[int, int, int], variables: dict[str, str]) -> Started:
        return _starter().start(_BEGIN + program, args, cwd=self.folder, fds=fds, environment=variables)

    def _program(self, line: str) -> tuple[str, list[str]] | None:
        """The program that a line is by itself, without anything of a shell, and its arguments."""
        begin = re.match(r"(rollout-trace|python -m|python(?= \w+\.py)) ", line)
        if begin is None or any(name.startswith("PYTHON") for name in self.variables):
            return None
        lexer = shlex.shlex(line[begin.end() :], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        with contextlib.suppress(ValueError):
            if any(set(word) & set("|<>;&*$") for word in lexer if not word[:1].isalnum()):
                return None
            return _PROGRAMS[begin[1]], shlex.split(line[begin.end() :], comments=True)
        return None

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        fixed = {
            "PATH": path,
            "PYTHONWARNINGS": ",".join(WARNINGS),
            "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:asyncio",
            "COLUMNS": "120",
            "BROWSER": "true",
        }
        return environment() | fixed | self.variables


def commands_of(text: str) -> list[str]:
    """The commands of a script. Where one is about the shell itself, the script is one command."""
    if re.search(r"^(cd|export|for|if|while) ", text, re.MULTILINE):
        return [text]
    found = [""]
    for line in text.splitlines(keepends=True):
        found[-1] += line
        with contextlib.suppress(ValueError):  # a quoted text goes on
            if shlex.split(found[-1], comments=True) and not line.endswith("\\\n"):
                found.append("")
    return [one for one in found if one.strip()]


def _good_ends(line: str) -> tuple[int, ...]:
    """The exit codes of a command that ended well."""
    if ENDLESS.search(line):
        return 0, 130
    # Its answer may be that there is a difference, or a problem.
    return (0, 1) if re.match("rollout-trace (check|diff|mismatch|validate) ", line) else (0,)
