"""``rollout-trace tail [-n N] [-f] PATH...``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rollout_trace.cli.common import show_problems
from rollout_trace.cli.listing import Lister, NumberCommand, columns_option, line_options
from rollout_trace.cli.reading import STDIN, paths_of, trajectories_of
from rollout_trace.cli.selection import compile_where, where_option
from rollout_trace.file.addresses import is_address

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

_EVERY = 0.25
"""Seconds between two looks at the files."""


@click.command(cls=NumberCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@line_options
@click.option("-f", "--follow", "-F", is_flag=True, help="Go on with what is written, until Ctrl-C (exit code 130).")
@columns_option
@where_option
def tail(
    paths: tuple[str, ...], count: int, form: str | None, follow: bool, columns: list[str], where: str | None
) -> int:
    """Print the last trajectories: on a terminal listed as by ls, to a pipe their lines as they are in the file.

    Plain files are read from their end. With -f a file may grow, be replaced, or not exist yet, and a folder or a
    pattern may get new files; lines that are not whole yet are waited for. Of several files those of all together
    count. Lines are without what was noted of them (rollout-trace annotate), which --where and the list have. PATH is a
    file, a pattern, a folder, an address, or - for stdin.

    Exit code 1: lines that could not be read, which are left out.
    """
    test = compile_where(where)
    lister = Lister(form, columns, is_open=follow)
    if follow:
        _follow(paths, count, test, lister)
    return _last(paths, count, test, lister)


def _last(paths: tuple[str, ...], count: int, test: Callable[[Trajectory], bool] | None, lister: Lister) -> int:
    from rollout_trace.view.last import Lines, last_of

    if STDIN in paths:
        found = trajectories_of(paths, test)
        lister.show(deque(((one.data, one.trajectory) for one in found), maxlen=count))
        problems = found.problems
    else:
        lines = Lines(test)
        lister.show(last_of(paths_of(paths), count, lines))
        problems = lines.problems
    show_problems(problems, as_json=False)
    return int(bool(problems))


def _follow(paths: tuple[str, ...], count: int, test: Callable[[Trajectory], bool] | None, lister: Lister) -> None:
    from rollout_trace.view.last import Follower, Lines

    for path in paths:
        if path == STDIN or is_address(path):
            raise click.UsageError(f"-f follows files and folders of this machine, not {path!r}.")
    lines = Lines(test)
    follower = Follower(paths, lines)
    lister.show(follower.begin(count))
    while True:
        show_problems(lines.problems, as_json=False)
        lines.problems = []
        time.sleep(_EVERY)
        lister.show(follower.more())
