"""``rollout-trace head [-n N] PATH...``."""

from __future__ import annotations

from itertools import islice

import click

from rollout_trace.cli.common import show_problems
from rollout_trace.cli.listing import Lister, NumberCommand, columns_option, line_options
from rollout_trace.cli.reading import trajectories_of
from rollout_trace.cli.selection import compile_where, where_option


@click.command(cls=NumberCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@line_options
@columns_option
@where_option
def head(paths: tuple[str, ...], count: int, form: str | None, columns: list[str], where: str | None) -> int:
    """Print the first trajectories: on a terminal listed as by ls, to a pipe their lines as they are in the file.

    So `rollout-trace head -n 2 rollouts.jsonl > small.jsonl` makes a small file. Of several files those of all together
    count. Lines are without what was noted of them (rollout-trace annotate), which --where and the list have. PATH is a
    file, a pattern, a folder, an address, or - for stdin.

    Exit code 1: lines that could not be read, which are left out.
    """
    found = trajectories_of(paths, compile_where(where))
    lister = Lister(form, columns)
    for one in islice(found, count):
        lister.show([(one.data, one.trajectory)])
    found.close()
    show_problems(found.problems, as_json=False)
    return int(bool(found.problems))
