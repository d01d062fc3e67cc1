"""``rollout-trace merge PATH... -o OUT``."""

from __future__ import annotations

import click

from rollout_trace.cli.common import json_option, show, show_problems
from rollout_trace.cli.reading import stdin_as_file
from rollout_trace.errors import FormatError


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", required=True, metavar="OUT", help="File to write: .jsonl, .jsonl.gz or .jsonl.zst.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@json_option
def merge(paths: tuple[str, ...], output: str, overwrite: bool, as_json: bool) -> int:
    """Write the trajectories of files to a new one, OUT.

    What was noted of them (rollout-trace annotate) is folded in. Of lines with one trajectory id the last is kept.
    Lines without notes are copied byte for byte, with their media. PATH is a file, a pattern, a folder, an address,
    or - for stdin.

    Exit code 1: lines that could not be read, which are not in OUT, or notes that match no trajectory
    or no step.
    """
    from rollout_trace.file.merge import merge as merge_files

    with stdin_as_file(paths) as (files, named):
        try:
            report = merge_files(files, output, on_error="skip", overwrite=overwrite)
        except FileExistsError as error:
            raise click.UsageError(named(str(error)).replace("overwrite=True", "--overwrite")) from error
        except ValueError as error:
            raise click.UsageError(named(str(error))) from error
        except FormatError as error:
            raise FormatError(named(str(error))) from error
    unreadable = [named(str(error)) for error in report.unreadable]
    result = {
        "output": report.output,
        "read": report.read,
        "written": report.written,
        "doubles": report.doubles,
        "notes": report.notes,
        "unmatched_notes": report.unmatched_notes,
        "unmatched_steps": report.unmatched_steps,
        "unreadable": unreadable,
    }
    show(map(named, report.lines()), result, as_json=as_json)
    # The first stands in the report already.
    show_problems(unreadable[1:], as_json=as_json)
    return int(bool(report.unreadable or report.unmatched_notes or report.unmatched_steps))
