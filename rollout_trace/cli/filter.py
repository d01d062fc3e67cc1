"""``rollout-trace filter EXPR PATH... [-o OUT]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollout_trace.cli.common import compile_expression, is_terminal, json_option, say_line, show, show_problems
from rollout_trace.cli.reading import STDIN, Trajectories
from rollout_trace.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.file.copies import NotedLine


def _show_fields(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rollout_trace.view.expression_names import NAMES
    from rollout_trace.view.expression_values import FUNCTIONS

    for name, one in NAMES.items():
        click.echo(f"{name:14}  {one.meaning}")
    for name, function in FUNCTIONS.items():
        click.echo(f"{name:14}  {function.usage}")
    ctx.exit()


@click.command()
@click.argument("expression", metavar="EXPR")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", metavar="OUT", help="File to write: .jsonl, .jsonl.gz or .jsonl.zst.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("-v", "--invert", is_flag=True, help="Keep the trajectories for which EXPR is false.")
@click.option("-c", "--count", is_flag=True, help="Print only the number of trajectories.")
@click.option(
    "--fields",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_fields,
    help="List the names that expressions can use.",
)
@json_option
def filter(
    expression: str,
    paths: tuple[str, ...],
    output: str | None,
    overwrite: bool,
    invert: bool,
    count: bool,
    as_json: bool,
) -> int:
    """Keep the trajectories for which EXPR is true.

    EXPR has Python's syntax and the names that --fields lists: 'reward > 0.5 and n_steps < 20', '"timeout" in error',
    'metadata.split == "train"', 'any(one.error for one in tool_runs)'. What is not known is None; a comparison with it
    is false.

    Lines are copied byte for byte, with their media; what was noted of a trajectory (rollout-trace annotate) is folded
    into its line. On stdout media stand in the lines. PATH is a file, a pattern, a folder, an address, or - for stdin.

    Exit code 1: no trajectory was kept, or there are lines that could not be read.
    """
    if output is not None and count:
        raise click.UsageError("--count writes no file. Leave -o out.")
    if as_json and output is None and not count:
        raise click.UsageError("--json prints a report of what was written. Give -o OUT or --count too.")
    if os.path.exists(expression):
        raise click.UsageError(
            f"give the expression before the files: rollout-trace filter 'reward > 0.5' {expression}"
        )
    test = compile_expression(expression)
    found = Trajectories(
        paths,
        (lambda trajectory: not test(trajectory)) if invert else test,
        progress=output is not None or count or not is_terminal(),
    )
    if output is not None:
        kept = _write(found, output, overwrite)
    elif count:
        kept = sum(1 for _ in found)
    else:
        kept = _print(found)
    unreadable = [str(error) for error in found.problems]
    result = {"output": output, "read": found.read, "kept": kept, "unreadable": unreadable}
    if output is not None:
        show([f"{kept} of {found.read} trajectories in {output}"], result, as_json=as_json)
    elif count:
        show([str(kept)], result, as_json=as_json)
    show_problems(unreadable, as_json=as_json)
    return int(bool(unreadable or not kept))


def _write(found: Trajectories, output: str, overwrite: bool) -> int:
    from rollout_trace.file.copies import copy_lines
    from rollout_trace.file.merge import check_output, mode_of
    from rollout_trace.file.writer import check_path

    files = [path for path in found.paths if path != STDIN]
    try:
        target = Path(check_path(output))
        check_output(target, files, overwrite=overwrite, doing="filter")
    except (FileExistsError, ValueError) as error:
        raise click.UsageError(str(error).replace("overwrite=True", "--overwrite")) from error
    kept = 0

    def copy(put: Callable[[NotedLine], None]) -> None:
        nonlocal kept
        kept = _each(found, put)

    copy_lines(target, mode_of(files), copy)
    return kept


def _print(found: Trajectories) -> int:
    from rollout_trace.file.copies import self_contained

    kept = _each(found, lambda line: say_line(self_contained(line)))
    sys.stdout.flush()
    return kept


def _each(found: Trajectories, put: Callable[[NotedLine], None]) -> int:
    """Gives the lines, with what was noted of them; the number of those that could be written."""
    from rollout_trace.file.copies import NotedLine

    kept = 0
    for one in found:
        try:
            put(NotedLine(one.path, one.number, one.data, one.note))
        except FormatError as error:
            found.damaged(error)
        else:
            kept += 1
    return kept
