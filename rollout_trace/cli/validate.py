"""``rollout-trace validate PATH...``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from rollout_trace.cli.common import json_option, show
from rollout_trace.cli.progress import Progress
from rollout_trace.cli.reading import STDIN, STDIN_NAME, open_stdin, paths_of
from rollout_trace.file.addresses import open_binary
from rollout_trace.file.validate import RULES
from rollout_trace.file.validate import validate as validate_files
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from typing import BinaryIO

    from rollout_trace.file.validate import Problem, Report


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--max-problems", type=click.IntRange(min=0), default=100, metavar="N", show_default=True, help="Print the first N."
)
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave out the problems of a code. Can be repeated.")
@json_option
def validate(paths: tuple[str, ...], max_problems: int, ignore: tuple[str, ...], as_json: bool) -> int:
    """Check files against the format: schema, tokens, references, media, notes.

    Each problem is printed with its file, line, place in the record, what was expected and what was found, and the code
    of the rule. PATH is a file, a pattern, a folder, an address, or - for stdin.

    Exit code 1: problems were found.
    """
    for code in ignore:
        if code not in RULES:
            raise click.UsageError(f"--ignore {code}: there is no such code; there are {', '.join(sorted(RULES))}.")
    shown: list[Problem] = []
    count = 0

    def found(problem: Problem) -> None:
        nonlocal count
        count += 1
        if count <= max_problems:
            if as_json:
                shown.append(problem)
            else:
                click.echo(printable(str(problem)))

    files = [STDIN_NAME if path == STDIN else path for path in paths_of(paths)]
    with Progress(files) as progress:

        def opened(path: str) -> BinaryIO:
            return open_stdin() if path == STDIN_NAME else progress.counted(open_binary(path), path)

        report = validate_files(files, found, ignore=ignore, open_file=opened, alone=[STDIN_NAME])
    result = {**msgspec.to_builtins(report), "found": msgspec.to_builtins(shown)}
    show(_summary(report, max_problems), result, as_json=as_json)
    return int(report.problems > 0)


def _summary(report: Report, limit: int) -> list[str]:
    what = [_number(report.files, "file"), _number(report.lines, "line"), _number(report.trajectories, "trajectory")]
    if report.notes:
        what.append(_number(report.notes, "note"))
    checked = ", ".join(what)
    if not report.problems:
        return [f"no problems in {checked}"]
    lines = (
        [f"and {report.problems - limit} more; --max-problems N prints N of them"] if report.problems > limit else []
    )
    lines.append(f"{_number(report.problems, 'problem')} in {checked}:")
    width = max(map(len, report.codes))
    digits = len(str(max(report.codes.values())))
    for code, count in report.codes.most_common():
        lines.append(f"  {count:>{digits}}  {code:<{width}}  {RULES[code].advice}")
    return lines


def _number(count: int, what: str) -> str:
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"
