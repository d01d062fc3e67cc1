"""What the commands that list trajectories share: ``ls``, ``head`` and ``tail``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rollout_trace.cli.terminal import is_terminal, say, width_of_output

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view.model import Summary

F = TypeVar("F", bound="Callable[..., Any]")


def columns_option(command: F) -> F:
    """The option ``--columns``, its parameter ``columns``: a list of names, or None."""
    return click.option(
        "--columns",
        metavar="A,B,C",
        callback=_columns,
        help="Fields to show; all for every one. See docs/look-lists.md.",
    )(command)


def _columns(context: click.Context, option: click.Parameter, value: str | None) -> list[str] | None:
    from rollout_trace.view.columns import DEFAULT, FIELDS

    if value is None:
        return list(DEFAULT)
    if value == "all":
        return list(FIELDS)
    return [checked_field(name.strip(), context) for name in value.split(",")]


def checked_field(name: str, context: click.Context | None = None) -> str:
    """The name of a field of ``Summary``.

    Raises:
        click.UsageError: there is no such field.
    """
    from rollout_trace.view.columns import shown

    try:
        shown(name)
    except ValueError as error:
        raise click.UsageError(str(error), context) from None
    return name


def summaries_of(trajectories: Iterable[Trajectory]) -> Iterator[Summary]:
    """The summary of each."""
    from rollout_trace.view.summary import summarize

    return map(summarize, trajectories)


def list_them(summaries: Iterable[Summary], columns: Sequence[str], *, as_json: bool) -> None:
    """Prints summaries as they come: in columns on a terminal, with tabs to a pipe, or a line of JSON each."""
    from rollout_trace.view.listing import in_columns, with_tabs

    if as_json:
        from rollout_trace.view.json_text import json_text

        say(map(json_text, summaries))
    elif is_terminal():
        say(in_columns(summaries, columns, width_of_output()))
    else:
        say(with_tabs(summaries, columns))
