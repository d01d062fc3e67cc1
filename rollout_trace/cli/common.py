"""What commands share: the option ``--json``, which files an argument names, and how results are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from rollout_trace.guard import printable

F = TypeVar("F", bound="Callable[..., Any]")

_SHOWN = 20


def json_option(command: F) -> F:
    """The option ``--json`` of a command, its parameter ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(command)


def tokenizer_option(command: F) -> F:
    """The option ``--tokenizer`` of a command, its parameter ``tokenizer``: a text, or None."""
    return click.option(
        "--tokenizer",
        metavar="PATH_OR_NAME",
        help="For token texts that are not recorded: a folder, a tokenizer.json, or a cached model's name.",
    )(command)


def load_tokenizer_of(path_or_name: str | None) -> Any:
    """The tokenizer that the option ``--tokenizer`` names; None where it is not given.

    Raises:
        click.UsageError: there is no such tokenizer.
        ImportError: a package that reads it is missing.
    """
    if path_or_name is None:
        return None
    from rollout_trace.view.tokenizers import load_tokenizer

    try:
        return load_tokenizer(path_or_name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def files_of(paths: Iterable[str]) -> list[str]:
    """The files that arguments name: files, patterns, addresses, and folders with ``.jsonl`` files in them.

    Raises:
        OSError: there are none, or one is a pipe or a device, or an address cannot be read.
    """
    from rollout_trace.file.reader import expand_paths

    return expand_paths(list(paths))


def show(lines: Iterable[str], result: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints the lines, or the result as JSON. Control characters are escaped in both."""
    if as_json:
        click.echo(json.dumps(result))
        return
    for line in lines:
        click.echo(printable(line))


def show_problems(problems: Iterable[object], *, as_json: bool) -> None:
    """Prints what was found wrong to stderr, the first 20; nothing with ``--json``, which has them in the result."""
    if as_json:
        return
    every = list(problems)
    for problem in every[:_SHOWN]:
        click.echo(printable(str(problem)), err=True)
    if len(every) > _SHOWN:
        click.echo(f"and {len(every) - _SHOWN} more; --json lists them all", err=True)
