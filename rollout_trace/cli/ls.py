"""``rollout-trace ls PATH...``."""

from __future__ import annotations

from itertools import islice

import click

from rollout_trace.cli.common import show_problems
from rollout_trace.cli.listing import checked_field, columns_option, list_them, summaries_of
from rollout_trace.cli.reading import trajectories_of
from rollout_trace.cli.selection import compile_where, where_option


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@columns_option
@where_option
@click.option("--sort", metavar="FIELD", help="By a field, the least first. All files are read first.")
@click.option("--reverse", is_flag=True, help="The greatest first; without --sort the last line first.")
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="List N at most.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each trajectory.")
def ls(
    paths: tuple[str, ...],
    columns: list[str],
    where: str | None,
    sort: str | None,
    reverse: bool,
    count: int | None,
    as_json: bool,
) -> int:
    """List trajectories, one a line: id, name, task, status, reward, steps, tokens read and sampled, rows, findings.

    Lines are printed as files are read. On a terminal columns fit its width, those of less interest are left out, and
    fatal findings have a !; to a pipe all columns are printed with tabs between, values in full. Every line of a file
    is listed, also of doubles. What was noted (rollout-trace annotate) is applied. PATH is a file, a pattern, a folder,
    an address, or - for stdin.

    Exit code 1: lines that could not be read, which are left out.
    """
    test = compile_where(where)
    if sort is not None:
        sort = checked_field(sort)
    found = trajectories_of(paths, test, progress=sort is not None or reverse)
    summaries = summaries_of(one.trajectory for one in found)
    if sort is not None:
        from rollout_trace.view.listing import in_order

        summaries = iter(in_order(summaries, sort, reverse=reverse))
    elif reverse:
        summaries = iter(list(summaries)[::-1])
    list_them(islice(summaries, count), columns, as_json=as_json)
    show_problems(found.problems, as_json=False)
    return int(bool(found.problems))
