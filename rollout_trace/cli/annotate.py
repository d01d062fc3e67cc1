"""``rollout-trace annotate FILE ID --reward X``, or ``--from scores.jsonl``."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import click

from rollout_trace.cli.common import files_of, json_option, show, show_problems
from rollout_trace.cli.rows import Index, apply_rows
from rollout_trace.data.user_values import brief
from rollout_trace.errors import FormatError
from rollout_trace.file.annotate import annotate as annotate_file
from rollout_trace.file.notes import notes_path


class _Named(click.ParamType[tuple[str, Any]]):
    """``name=value``. The value is a number, or JSON where it is JSON and text otherwise."""

    def __init__(self, name: str, *, is_number: bool) -> None:
        self.name = name
        self._is_number = is_number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not {self.name}.", param, ctx)
        if not self._is_number:
            return name, _json_or_text(text)
        try:
            return name, float(text)
        except ValueError:
            self.fail(f"{text!r} in {value!r} is not a number.", param, ctx)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_NUMBER = _Named("name=number", is_number=True)
_VALUE = _Named("name=value", is_number=False)


@click.command()
@click.argument("file")
@click.argument("trajectory_id", required=False, metavar="[ID]")
@click.option("--reward", type=float, metavar="NUMBER", help="The reward of the trajectory.")
@click.option("--rewards", type=_NUMBER, multiple=True, metavar="NAME=NUMBER", help="A named reward; can be repeated.")
@click.option("--metrics", type=_NUMBER, multiple=True, metavar="NAME=NUMBER", help="A measurement; can be repeated.")
@click.option("--metadata", type=_VALUE, multiple=True, metavar="NAME=VALUE", help="JSON, or text; can be repeated.")
@click.option("--from", "source", metavar="ROWS", help="Note the rows of a .jsonl file, or of stdin (-).")
@json_option
def annotate(
    file: str,
    trajectory_id: str | None,
    reward: float | None,
    rewards: tuple[tuple[str, float], ...],
    metrics: tuple[tuple[str, float], ...],
    metadata: tuple[tuple[str, Any], ...],
    source: str | None,
    as_json: bool,
) -> int:
    """Note what became known of the trajectory ID of FILE.

    ID is the id of a trajectory or its beginning, or the id of a task that has one trajectory.

    FILE itself is not changed: notes go to the file beside it (rollouts.notes.jsonl beside rollouts.jsonl), and all
    readers apply them. Later notes win. FILE can be a pattern, or a folder.

    ROWS has one JSON object a line: the "id" of a trajectory, or its "task" (and "rollout_index"), and any of "reward",
    "rewards", "metrics", "metadata", "steps". Rows that match no trajectory, or several, and rows with a bad value are
    named; the others are applied.

    Exit code 1: a row was not applied, there is no trajectory ID, or lines of FILE cannot be read.
    """
    given = {"reward": reward, "rewards": dict(rewards), "metrics": dict(metrics), "metadata": dict(metadata)}
    values = {name: value for name, value in given.items() if value is not None and value != {}}
    if source is not None and (trajectory_id is not None or values):
        raise click.UsageError("--from takes ids and values from its rows: give neither beside it.")
    if source is None and (trajectory_id is None or not values):
        raise click.UsageError("give the ID of a trajectory and a value (--reward, ...), or rows with --from.")
    damaged: list[FormatError] = []
    index = Index(files_of([file]), damaged.append)
    if source is None:
        code = _note_one(index, str(trajectory_id), values, file, damaged, as_json=as_json)
    else:
        code = _note_rows(index, source, damaged, as_json=as_json)
    return int(bool(code or damaged))


def _note_one(
    index: Index, trajectory_id: str, values: dict[str, Any], file: str, damaged: list[FormatError], *, as_json: bool
) -> int:
    named = index.named(trajectory_id)
    if len(named) > 1:
        first = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
        raise click.UsageError(f"{brief(trajectory_id)} names {len(named)} trajectories: {first}. Give the id of one.")
    trajectory_id = named[0] if named else trajectory_id
    paths = index.files_with(trajectory_id)
    try:
        for path in paths:
            annotate_file(path, trajectory_id, **values)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    written = list(dict.fromkeys(map(notes_path, paths)))
    found = f"noted in {', '.join(written)}" if written else f"{file} has no trajectory {brief(trajectory_id)}"
    result = {"id": trajectory_id, "notes": written, "unreadable": list(map(str, damaged))}
    if written or as_json:
        show([found], result, as_json=as_json)
    show_problems([*([] if written else [f"{found} ({len(index)} trajectories read)."]), *damaged], as_json=as_json)
    return int(not written)


def _note_rows(index: Index, source: str, damaged: list[FormatError], *, as_json: bool) -> int:
    applied = apply_rows(source, index)
    result = {
        "rows": applied.rows,
        "applied": applied.applied,
        "problems": applied.problems,
        "unused_fields": dict(applied.unused),
        "unreadable": list(map(str, damaged)),
    }
    found = [f"{applied.rows} rows read, {applied.applied} noted, {len(applied.problems)} not"]
    if applied.unused:
        names = ", ".join(f"{brief(name)} in {count} rows" for name, count in applied.unused.items())
        found.append(f"fields that were not used: {names}")
    show(found, result, as_json=as_json)
    show_problems([*applied.problems, *damaged], as_json=as_json)
    return int(bool(applied.problems))
