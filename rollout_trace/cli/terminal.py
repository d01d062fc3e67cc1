"""The terminal, or the pipe, that a command prints to: its width, its colours, the characters that it can show."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

import click


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def has_colors() -> bool:
    """Whether to print colours: to a terminal that has them, unless ``NO_COLOR`` is set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


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
    """Prints lines that are escaped already. Characters that the output cannot take are written as escapes."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    for line in lines:
        click.echo(line, color=has_colors())
