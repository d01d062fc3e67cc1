"""``rollout-trace ls PATH...``: lists trajectories, or prints their lines; the first ones, the last ones, new ones."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from rollout_trace.cli.common import (
    Test,
    is_terminal,
    say,
    say_line,
    show_problems,
    where_option,
    width_of_output,
)
from rollout_trace.cli.reading import STDIN, Trajectories, paths_of
from rollout_trace.file.addresses import is_address

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

_EVERY = 0.25
"""Seconds between two looks at files that are followed."""
_LAST = 10
"""How many are the last ones, where no number is given."""


class _NumberCommand(click.Command):
    """A command that takes ``-5`` for ``-n 5``, as ``head`` and ``tail`` of a shell do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        given = [f"-n{one[1:]}" if one[:1] == "-" and one[1:].isdecimal() else one for one in args[:end]]
        return super().parse_args(ctx, given + args[end:])


def _columns(context: click.Context, option: click.Parameter, value: str | None) -> list[str]:
    from rollout_trace.view.listing import DEFAULT, FIELDS

    if value in (None, "all"):
        return list(FIELDS if value else DEFAULT)
    return [_known(name.strip(), context) for name in str(value).split(",")]


def _field(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    return None if value is None else _known(value, context)


def _known(name: str, context: click.Context) -> str:
    from rollout_trace.view.listing import field_of

    try:
        return field_of(name)
    except ValueError as error:
        raise click.UsageError(str(error), context) from None


@click.command(cls=_NumberCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--columns", metavar="A,B,C", callback=_columns,
              help="Fields to show, or all. docs/look.md lists them.")  # fmt: skip
@where_option
@click.option(
    "--sort", metavar="FIELD", callback=_field, help="Sort by a field, smallest first. Reads all files first."
)
@click.option("--reverse", is_flag=True, help="Sort largest first; without --sort, show the last line first.")
@click.option(
    "-n", "count", type=click.IntRange(min=0), metavar="N", help="Show the first N (also -N). With --last: 10."
)
@click.option("--last", is_flag=True, help="Show the last N. Only the end of plain files is read.")
@click.option("-f", "--follow", "-F", is_flag=True, help="Show the last N and new lines, until Ctrl-C (code 130).")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per trajectory.")
@click.option("--raw", "form", flag_value="raw", help="Print the lines unchanged.")
@click.option("--table", "form", flag_value="table", hidden=True)
def ls(
    paths: tuple[str, ...],
    columns: list[str],
    where: Test | None,
    sort: str | None,
    reverse: bool,
    count: int | None,
    last: bool,
    follow: bool,
    form: str | None,
) -> int:
    """List trajectories, one a line: id, name, task, status, reward, steps, tokens read and sampled, rows, findings.

    Lines are printed as files are read. On a terminal columns fit its width, those of less interest are left out, and
    fatal findings have a !; to a pipe all columns are printed with tabs between, values in full. Every line of a file
    is listed, also of doubles. What was noted (rollout-trace annotate) is applied, but not to the lines of --raw. PATH
    is a file, a pattern, a folder, an address, or - for stdin.

    With -f a file may grow, be replaced, or not exist yet, and a folder or a pattern may get new files; lines that are
    not whole yet are waited for.

    \b
    rollout-trace ls -n 2 --raw rollouts.jsonl > small.jsonl
    rollout-trace ls -f runs/

    Exit code 1: lines that could not be read, which are left out.
    """
    if (last or follow or form == "raw") and (sort is not None or reverse):
        raise click.UsageError("--sort and --reverse cannot be used with --last, -f or --raw.")
    printer = _Printer(form, columns, is_open=follow)
    if follow:
        _follow(paths, _LAST if count is None else count, where, printer)
    if last:
        return _print_last(paths, _LAST if count is None else count, where, printer)
    found = Trajectories(paths, where, progress=sort is not None or reverse)
    lines = ((one.data, one.trajectory) for one in found)
    if form == "raw":
        printer.show(islice(lines, count))
    else:
        printer.show_all(lines, sort, reverse, count)
    found.close()
    show_problems(found.problems)
    return int(bool(found.problems))


def _print_last(paths: tuple[str, ...], count: int, where: Test | None, printer: _Printer) -> int:
    from rollout_trace.view.last import Lines, last_of

    if STDIN in paths:
        found = Trajectories(paths, where)
        printer.show(deque(((one.data, one.trajectory) for one in found), maxlen=count))
        problems = found.problems
    else:
        lines = Lines(where)
        printer.show(last_of(paths_of(paths), count, lines))
        problems = lines.problems
    show_problems(problems)
    return int(bool(problems))


def _follow(paths: tuple[str, ...], count: int, where: Test | None, printer: _Printer) -> None:
    from rollout_trace.view.last import Follower, Lines

    for path in paths:
        if path == STDIN or is_address(path):
            raise click.UsageError(f"-f can follow only local files and folders, not {path!r}.")
    lines = Lines(where)
    follower = Follower(paths, lines)
    printer.show(follower.begin(count))
    while True:
        show_problems(lines.problems)
        lines.problems = []
        time.sleep(_EVERY)
        printer.show(follower.more())


class _Printer:
    """Prints trajectories: in columns on a terminal, with tabs to a pipe, as JSON, or their lines."""

    def __init__(self, form: str | None, columns: Sequence[str], *, is_open: bool) -> None:
        self._form = form
        self._columns = columns
        self._is_open = is_open
        self._list: Any = None

    def show(self, lines: Iterable[tuple[bytes, Trajectory]]) -> None:
        """Prints some more, each line as soon as it is there."""
        if self._form == "raw":
            for data, _ in lines:
                say_line(data)
            sys.stdout.flush()
        else:
            self.show_all(lines)

    def show_all(
        self,
        lines: Iterable[tuple[bytes, Trajectory]],
        sort: str | None = None,
        reverse: bool = False,
        count: int | None = None,
    ) -> None:
        """Prints summaries, in an order if one is asked for."""
        from rollout_trace.view.listing import Listing, in_order
        from rollout_trace.view.summary import summarize

        found: Iterator[Any] = (summarize(trajectory) for _, trajectory in lines)
        if sort is not None:
            found = iter(in_order(found, sort, reverse=reverse))
        elif reverse:
            found = iter(list(found)[::-1])
        found = islice(found, count)
        if self._form == "json":
            from rollout_trace.view.values import ascii_json

            say(map(ascii_json, found))
            return
        if self._list is None:
            self._list = Listing(self._columns, width_of_output() if is_terminal() else None, is_open=self._is_open)
        say(self._list.lines(found))
