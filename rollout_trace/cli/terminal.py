"""The terminal, or the pipe, that a command prints to: its width, the characters that it can show."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from io import TextIOWrapper


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def width_of_output() -> int:
    """Columns of the terminal, or the number in ``COLUMNS``; 80 where neither is known."""
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def is_plain() -> bool:
    """Whether standard output takes ASCII alone."""
    try:
        "█…±".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def say(lines: Iterable[str]) -> None:
    """Prints lines that are escaped already, each at once. Characters that the output cannot take become escapes."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for line in lines:
        # Not by click, which writes UTF-8 where the terminal has said that it takes ASCII alone.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
