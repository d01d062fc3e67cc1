"""What commands share: options, the files that an argument names, and how results are printed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

F = TypeVar("F", bound="Callable[..., Any]")
Test: TypeAlias = "Callable[[Trajectory], bool]"
"""Which trajectories are meant. Raises ``ExpressionError`` where it cannot be evaluated, which the command reports."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_SHOWN = 20


def json_option(command: F) -> F:
    """The option ``--json`` of a command, its parameter ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(command)


def compile_expression(text: str) -> Test:
    """The test that an expression makes. Raises click.UsageError where it is none, or has an unknown name."""
    from rollout_trace.view.expression import Expression
    from rollout_trace.view.expression_values import ExpressionError

    try:
        return Expression(text)
    except ExpressionError as error:
        raise click.UsageError(str(error)) from None


def where_option(command: F) -> F:
    """The option ``--where EXPR`` of a command, its parameter ``where``: a test of trajectories, or None."""
    return click.option(
        "--where",
        metavar="EXPR",
        callback=lambda context, option, text: None if text is None else compile_expression(text),
        help="Use only trajectories for which EXPR is true, such as: reward > 0.5",
    )(command)


def tokenizer_option(command: F) -> F:
    """The option ``--tokenizer`` of a command, its parameter ``tokenizer``: a text, or None."""
    return click.option(
        "--tokenizer",
        metavar="PATH_OR_NAME",
        help="Tokenizer for texts that were not recorded: a folder, a tokenizer.json, or a cached model's name.",
    )(command)


def load_tokenizer_of(path_or_name: str | None) -> Any:
    """The tokenizer of the option ``--tokenizer``; None without it. Raises click.UsageError or ImportError."""
    if path_or_name is None:
        return None
    from rollout_trace.view.tokenizers import load_tokenizer

    try:
        return load_tokenizer(path_or_name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def files_of(paths: Iterable[str]) -> list[str]:
    """The files that arguments name: files, patterns, addresses, and folders of ``.jsonl`` files. Raises OSError."""
    from rollout_trace.file.reader import expand_paths

    return expand_paths(list(paths))


def check_new(output: str, *, overwrite: bool, files: Iterable[str] = (), doing: str = "read") -> None:
    """Raises click.UsageError if an output exists and may not be replaced (an empty folder may), or is read."""
    if not os.path.exists(output):
        return
    if any(os.path.exists(path) and os.path.samefile(path, output) for path in files):
        raise click.UsageError(f"{output} is one of the files to {doing}. Give the output another name.")
    is_empty = os.path.isdir(output) and not os.listdir(output)
    if not overwrite and not is_empty:
        raise click.UsageError(f"{output} exists. Give a new name, or --overwrite to replace it.")


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


def on_words(lines: Iterable[str]) -> Iterator[str]:
    """Breaks lines between words where a terminal would break them anywhere. A pipe gets them whole."""
    if not is_terminal():
        yield from lines
        return
    # Imported on use: most commands print no long lines.
    from textwrap import TextWrapper

    wrap = TextWrapper(width_of_output(), break_on_hyphens=False, break_long_words=False)
    for line in lines:
        wrap.subsequent_indent = line[: len(line) - len(line.lstrip())]
        yield from wrap.wrap(line) or [line]


def say_line(data: bytes) -> None:
    """Prints a line of JSON: to a pipe as it is, to a terminal with unprintable characters as escapes of JSON."""
    if is_terminal():
        text = data.decode("utf-8", "replace")
        say([text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)])
    else:
        sys.stdout.buffer.write(data + b"\n")


def show(lines: Iterable[str], result: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints the lines, or the result as JSON. Control characters are escaped in both."""
    if as_json:
        click.echo(json.dumps(result))
        return
    for line in lines:
        click.echo(printable(line))


def show_problems(problems: Iterable[object], *, as_json: bool = False) -> None:
    """Prints what was found wrong to stderr, the first 20; nothing with ``--json``, which has them in the result."""
    if as_json:
        return
    every = list(problems)
    for problem in every[:_SHOWN]:
        click.echo(printable(str(problem)), err=True)
    if len(every) > _SHOWN:
        click.echo(f"and {len(every) - _SHOWN} more; --json lists them all", err=True)
