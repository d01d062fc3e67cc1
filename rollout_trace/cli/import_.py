"""``rollout-trace import [SOURCE] PATH... -o FILE``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollout_trace import guard
from rollout_trace.cli.common import SUFFIXES, check_new, json_option, show, show_problems
from rollout_trace.cli.reading import STDIN, STDIN_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_trace.importing.imported import Imported
    from rollout_trace.importing.sources import Source


class _Nothing(Exception):
    """There was nothing to write."""


@click.command("import")
@click.argument("arguments", nargs=-1, metavar="[SOURCE] PATH...")
@click.option("-o", "--output", metavar="FILE", help="File to write: .jsonl, .jsonl.gz or .jsonl.zst.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--strict", is_flag=True, help="Stop at the first value that cannot be read.")
@click.option("--score", metavar="NAME", help="With inspect: use this score as the reward.")
@click.option("--list", "is_list", is_flag=True, help="List the sources, and what each one lacks.")
@json_option
def import_(
    arguments: tuple[str, ...],
    output: str | None,
    overwrite: bool,
    strict: bool,
    score: str | None,
    is_list: bool,
    as_json: bool,
) -> int:
    """Import recordings of other tools.

    SOURCE is one of those that --list names, such as claude_code; without it, the first lines of the files say which
    one they are of, where that is certain. PATH is a file, a folder, a pattern, an address, or - for stdin.

    What a source does not have (token ids, rewards, ...) and what was left out is counted and printed.

    \b
    rollout-trace import claude_code ~/.claude/projects -o sessions.jsonl
    rollout-trace import logs/*.eval --score includes -o evals.jsonl

    Exit code 1: there was nothing to write, or there are values that could not be read, which are left out.
    """
    from rollout_trace.importing.sources import SOURCES

    if is_list:
        return _list(as_json=as_json)
    name = arguments[0].replace("-", "_") if arguments and arguments[0] != STDIN else ""
    source = SOURCES.get(name)
    paths = arguments if source is None else arguments[1:]
    if not paths:
        raise click.UsageError("name a file to import, or - for stdin. --list shows the sources.")
    if output is None or not output.endswith(SUFFIXES):
        found = "-o FILE is missing" if output is None else f"-o {output} has an unknown suffix"
        raise click.UsageError(f"{found}. Give a file that ends with {', '.join(SUFFIXES)}.")
    source = source or _detected(paths)
    if score is not None and source.name != "inspect":
        raise click.UsageError(f"--score works with the source inspect, not with {source.name}.")
    check_new(output, overwrite=overwrite, files=paths, doing="import")
    options = {"on_error": "raise" if strict else "skip", **({} if score is None else {"score": score})}
    return _import(source, paths, output, options, as_json=as_json)


def _detected(paths: Sequence[str]) -> Source:
    from rollout_trace.importing.sources import SOURCES, detect

    names = ", ".join(SOURCES)
    if STDIN in paths:
        raise click.UsageError(f"stdin needs a SOURCE before it: {names}.")
    found = detect(list(paths))
    if found is None:
        raise click.UsageError(f"cannot tell which tool wrote these files. Name the SOURCE first: {names}.")
    return SOURCES[found]


def _given(paths: Sequence[str]) -> list[Any]:
    if list(paths).count(STDIN) > 1:
        raise click.UsageError("- is given twice, but stdin can be read only once.")
    if STDIN in paths and sys.stdin.isatty():
        raise click.UsageError("stdin is a terminal. Pipe a file into this command.")
    return [_stdin() if path == STDIN else path for path in paths]


def _stdin() -> io.BytesIO:
    file = io.BytesIO(sys.stdin.buffer.read())
    file.name = STDIN_NAME
    return file


def _import(source: Source, paths: Sequence[str], output: str, options: dict[str, Any], *, as_json: bool) -> int:
    from rollout_trace.file.addresses import replacing
    from rollout_trace.file.compression import compressor
    from rollout_trace.file.encode import encode

    compress = compressor(Path(output))
    try:
        # What importers warn of is printed at the end.
        with guard.without("importing."), replacing(output) as file:
            found: Imported = source.importer(_given(paths), **options)
            for trajectory in found:
                line = encode(trajectory)
                file.write(line if compress is None else compress(line))
            if not found.report.trajectories:
                # What was there is left.
                raise _Nothing
    except _Nothing:
        pass
    report = found.report
    result = {
        "output": output if report.trajectories else None,
        "source": source.name,
        "trajectories": report.trajectories,
        "steps": report.steps,
        "missing": report.missing,
        "left_out": report.dropped,
        "noted": report.noted,
        "unreadable": [str(error) for error in found.skipped],
    }
    lines = [f"{report.trajectories} trajectories with {report.steps} steps of {source.name} in {output}"]
    if not report.trajectories:
        lines = [f"{source.name} had no trajectories to write"]
    lines += [f"missing in the source: {name}: {count}" for name, count in report.missing.items()]
    lines += [f"left out: {name}: {count}" for name, count in report.dropped.items()]
    lines += [f"note: {name}: {count}" for name, count in report.noted.items()]
    show(lines, result, as_json=as_json)
    show_problems(found.skipped, as_json=as_json)
    return int(bool(found.skipped or not report.trajectories))


def _list(*, as_json: bool) -> int:
    from rollout_trace.importing.sources import SOURCES

    if as_json:
        rows = [{"source": one.name, "reads": one.what, "lacks": one.lacks} for one in SOURCES.values()]
        click.echo(json.dumps({"sources": rows}))
        return 0
    for one in SOURCES.values():
        click.echo(f"{one.name}: {one.what}\n  lacks    {one.lacks}")
    return 0
