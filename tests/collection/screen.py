"""A terminal for tests: runs a program on one, and has what would be seen on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from pathlib import Path

import rollout_trace

LIBRARY = str(Path(rollout_trace.__file__).parents[1])
_TOKEN = re.compile(r"\x1b\[(?P<args>[?0-9;]*)(?P<code>[A-Za-z])|(?P<text>[^\x1b])", re.S)
_ATTACH = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Screen:
    """What a terminal of some width shows, all its lines from the first on."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self.has_cursor = True
        self.has_colour = False

    def feed(self, text: str) -> None:
        """What a program writes."""
        for token in _TOKEN.finditer(text):
            if token["code"] is None:
                self._character(token["text"])
            else:
                self._control(token["code"], token["args"])

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        texts = ["".join(line).rstrip() for line in self._lines]
        return [text for text in texts if text]

    def _character(self, one: str) -> None:
        if one == "\r":
            self._column = 0
        elif one == "\n":
            self._row += 1
        else:
            if self._column == self._width:
                self._row, self._column = self._row + 1, 0
            line = self._line()
            line += [" "] * (self._column + 1 - len(line))
            line[self._column] = one
            self._column += 1

    def _control(self, code: str, args: str) -> None:
        if code == "A":
            self._row = max(0, self._row - int(args or 1))
        elif code == "K":
            assert args == "2"
            self._line().clear()
        elif args == "?25":
            self.has_cursor = code == "h"
        else:
            assert code == "m", f"not known: {code} {args}"
            self.has_colour |= any(30 <= int(one or 0) <= 107 for one in args.split(";"))

    def _line(self) -> list[str]:
        while len(self._lines) <= self._row:
            self._lines.append([])
        return self._lines[self._row]


def on_terminal(
    program: str,
    *,
    width: int,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    react: Callable[[str], bytes | None] = lambda seen: None,
) -> tuple[int, Screen]:
    """Runs a Python program on a terminal until it ends; returns its exit code and the screen.

    Args:
        program: its text.
        width: columns of the terminal.
        environment: added to this process's, less ``CI`` and ``NO_COLOR``.
        stdout: a file for its stdout, instead of the terminal.
        react: called with all that was written so far; returns what is typed, once.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", _ATTACH + program],
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env={**known, "TERM": "xterm", "PYTHONPATH": LIBRARY, "PYTHONUTF8": "1", **(environment or {})},
        start_new_session=True,
    )
    os.close(slave)
    seen, has_typed = b"", False
    while True:
        try:
            data = os.read(master, 65_536)
        except OSError:  # Nobody has the terminal any more.
            break
        if not data:
            break
        seen += data
        typed = None if has_typed else react(seen.decode(errors="replace"))
        if typed is not None:
            has_typed = True
            os.write(master, typed)
    code = process.wait()
    os.close(master)
    screen = Screen(width)
    screen.feed(seen.decode())
    return code, screen
