"""``rollout-trace convert PATH... --to FORMAT -o OUT``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rollout_trace import guard
from rollout_trace.cli.common import Test, check_new, json_option, show, show_problems, where_option
from rollout_trace.cli.reading import Trajectories
from rollout_trace.errors import ExportError

if TYPE_CHECKING:
    from rollout_trace.view.formats import Format


@click.command()
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option("--to", "format_name", metavar="FORMAT", help="Format to write; --list shows them.")
@click.option("-o", "--output", metavar="OUT", help="File or folder to write; the suffix decides the kind.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the format (see --list); can be repeated.",
)
@click.option("--strict", is_flag=True, help="Write nothing if tokens, texts or rewards would be left out.")
@click.option("--list", "is_list", is_flag=True, help="List the formats, what each keeps and loses, and its options.")
@where_option
@json_option
def convert(
    paths: tuple[str, ...],
    format_name: str | None,
    output: str | None,
    overwrite: bool,
    options: tuple[str, ...],
    strict: bool,
    is_list: bool,
    where: Test | None,
    as_json: bool,
) -> int:
    """Write trajectories in the FORMAT of a trainer or a tool.

    Each format is a function of rollout_trace.export, with its options: --option max_length=8192. What a format has no
    place for is counted and printed. PATH is a file, a pattern, a folder, an address, or - for stdin.

    \b
    rollout-trace convert runs.jsonl --to trl -o sft.parquet --where 'reward > 0'
    rollout-trace convert runs.jsonl --to chat -o a.jsonl --option arguments=dict

    Exit code 1: there was nothing to write, or there are lines that could not be read, which are left out.
    """
    from rollout_trace.view.formats import FORMATS, OUTPUTS, SUFFIXES, BadOption, parse_options

    if is_list:
        return _list(format_name, as_json=as_json)
    names = ", ".join(FORMATS)
    if format_name is None:
        raise click.UsageError(f"--to FORMAT is missing. Formats: {names}. --list says what each is for.")
    chosen = FORMATS.get(format_name.replace("-", "_"))
    if chosen is None:
        raise click.UsageError(f"there is no format {format_name!r}. Formats: {names}.")
    if not paths:
        raise click.UsageError("name a file to convert, or - for stdin.")
    if output is None:
        raise click.UsageError(f"-o OUT is missing; {chosen.name} is written to {OUTPUTS[chosen.output]}.")
    if not output.endswith(SUFFIXES[chosen.output]):
        raise click.UsageError(f"{output}: {chosen.name} is written to {OUTPUTS[chosen.output]}.")
    try:
        values = {**parse_options(chosen.name, options), "strict": strict}
    except BadOption as error:
        raise click.UsageError(str(error)) from error
    found = Trajectories(paths, where, progress=True, media="restore" if chosen.media else "keep")
    check_new(output, overwrite=overwrite, files=found.paths, doing="convert")
    return _convert(chosen, found, output, values, as_json=as_json)


def _convert(chosen: Format, found: Trajectories, output: str, values: dict[str, Any], *, as_json: bool) -> int:
    from rollout_trace.report import ExportReport
    from rollout_trace.view.numbers import of, trajectories

    report = ExportReport()
    try:
        # What exporters warn of is printed at the end.
        with guard.without("export."):
            written = chosen.write(output, (one.trajectory for one in found), {**values, "report": report})
    except ExportError as error:
        raise ExportError(str(error).replace("Without strict=True it", "Without --strict it")) from error
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    finally:
        found.close()
    result = {
        "output": output,
        "format": chosen.name,
        "read": found.read,
        "written": written,
        "left_out": report.dropped,
        "metadata": sorted(report.metadata),
        "noted": report.noted,
        "unreadable": [str(error) for error in found.problems],
    }
    what = of(written, "document" if chosen.output == "folder" else "row")
    lines = [f"{what} of {trajectories(found.read)} in {output}"]
    lines += [f"left out: {name}: {count}" for name, count in report.dropped.items()]
    lines += [] if written else [hint for part, hint in _HINTS.items() if any(part in name for name in report.dropped)]
    lines += [f"note: {name}: {count}" for name, count in report.noted.items()]
    show(lines, result, as_json=as_json)
    show_problems(found.problems, as_json=as_json)
    return int(bool(found.problems or not written))


_HINTS = {
    "ids_missing": "No token ids are recorded. Name the engine when you record: rt.wrap_openai(client, "
    "engine=\"vllm\"). Anthropic's and Google's APIs send none. --to chat needs none.",
    "trajectories in no group": "Runs of one task are a group: rt.trajectory(task=..., group=...).",
}
"""What to do where nothing was written, by what was left out."""


def _list(name: str | None, *, as_json: bool) -> int:
    from rollout_trace.view.formats import FORMATS, OUTPUTS, options_of, required_of

    result: list[dict[str, Any]] = [
        {
            "format": one.name,
            "for": one.consumer,
            "output": OUTPUTS[one.output],
            "keeps": one.keeps,
            "loses": one.loses,
            "streams": one.streams,
            "options": list(options_of(one.name)),
            "needs": required_of(one.name),
        }
        for one in FORMATS.values()
        if name is None or one.name == name.replace("-", "_")
    ]
    if as_json:
        click.echo(json.dumps({"formats": result}))
        return 0
    for row in result:
        memory = "one trajectory at a time in memory" if row["streams"] else "all rows in memory"
        click.echo(f"{row['format']}: {row['for']}")
        click.echo(f"  keeps    {row['keeps']}\n  loses    {row['loses']}\n  writes   {row['output']}; {memory}")
        click.echo(f"  options  {', '.join(row['options']) or 'none'}")
        if row["needs"]:
            click.echo(f"  needs    {', '.join(row['needs'])}")
    return 0
