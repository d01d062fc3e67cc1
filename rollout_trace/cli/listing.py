"""What the commands that list trajectories share: ``ls``, ``head`` and ``tail``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rollout_trace.cli.terminal import is_terminal, say, width_of_output

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view.listing import InColumns, WithTabs
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
    """The name of a field of ``Summary``; those of ``filter`` and ``query`` are taken for it, too.

    Raises:
        click.UsageError: there is no such field.
    """
    from rollout_trace.view.columns import SAME, shown

    name = SAME.get(name, name)
    try:
        shown(name)
    except ValueError as error:
        raise click.UsageError(str(error), context) from None
    return name


class NumberCommand(click.Command):
    """A command that takes ``-5`` for ``-n 5``, as ``head`` and ``tail`` of a shell do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        given = [f"-n{one[1:]}" if one[:1] == "-" and one[1:].isdecimal() else one for one in args[:end]]
        return super().parse_args(ctx, given + args[end:])


def line_options(command: F) -> F:
    """The options of ``head`` and ``tail``: ``count``, and ``form``, which is ``json``, ``table`` or None."""
    for option in (
        click.option("--table", "form", flag_value="table", help="A list, also to a pipe: columns with tabs between."),
        click.option("--json", "--raw", "form", flag_value="json", help="Their lines, also to a terminal."),
        click.option(
            "-n",
            "count",
            type=click.IntRange(min=0),
            default=10,
            show_default=True,
            metavar="N",
            help="How many; also -N.",
        ),
    ):
        command = option(command)
    return command


class Lister:
    """Prints trajectories as ``head`` and ``tail`` do.

    Args:
        form: ``json``: their lines; ``table``: a list; None: a list to a terminal, else their lines.
        columns: of a list.
        is_open: whether more will come, of which nothing is known yet.
    """

    def __init__(self, form: str | None, columns: Sequence[str], *, is_open: bool = False) -> None:
        self._is_raw = form == "json" or (form is None and not is_terminal())
        self._columns = columns
        self._table: InColumns | WithTabs | None = None
        self._is_open = is_open

    def show(self, lines: Iterable[tuple[bytes, Trajectory]]) -> None:
        """Prints some more."""
        if self._is_raw:
            for data, _ in lines:
                _print_raw(data)
            sys.stdout.flush()
            return
        from rollout_trace.view.listing import InColumns, WithTabs

        if self._table is None:
            width = width_of_output() if is_terminal() else None
            self._table = WithTabs(self._columns) if width is None else InColumns(self._columns, width, self._is_open)
        say(self._table.lines(summaries_of(trajectory for _, trajectory in lines)))


def _print_raw(data: bytes) -> None:
    if is_terminal():
        text = data.decode("utf-8", "replace")
        # As JSON does: the line stays what it is, and no terminal is told anything.
        say(["".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)])
        return
    sys.stdout.buffer.write(data + b"\n")


def summaries_of(trajectories: Iterable[Trajectory]) -> Iterator[Summary]:
    """The summary of each."""
    from rollout_trace.view.summary import summarize

    return map(summarize, trajectories)


def list_them(summaries: Iterable[Summary], columns: Sequence[str], *, as_json: bool) -> None:
    """Prints summaries as they come: in columns on a terminal, with tabs to a pipe, or a line of JSON each."""
    from rollout_trace.view.listing import WithTabs, in_columns

    if as_json:
        from rollout_trace.view.values import ascii_json

        say(map(ascii_json, summaries))
    elif is_terminal():
        say(in_columns(summaries, columns, width_of_output()))
    else:
        say(WithTabs(columns).lines(summaries))
