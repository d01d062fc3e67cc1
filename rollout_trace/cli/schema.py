"""``rollout-trace schema [--note]``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rollout_trace.cli.common import json_option


@click.command()
@click.option("--note", is_flag=True, help="That of a line of notes, rollouts.notes.jsonl.")
@click.option("-o", "--output", metavar="OUT", help="Write it to a file.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@json_option
def schema(note: bool, output: str | None, overwrite: bool, as_json: bool) -> int:
    """Print the JSON Schema (2020-12) of a line of a file of trajectories.

    With --json it is one line.
    """
    from rollout_trace.file import records as schemas

    found = schemas.note_schema() if note else schemas.schema()
    text = json.dumps(found) + "\n" if as_json else schemas.text(found)
    if output is None:
        click.echo(text, nl=False)
        return 0
    if Path(output).exists() and not overwrite:
        raise click.UsageError(f"{output} exists already: give a new name, or --overwrite to replace it.")
    Path(output).write_text(text, encoding="utf-8")
    click.echo(f"written to {output}")
    return 0
