"""``rollout-trace annotate FILE ID --reward X``, or ``--from scores.jsonl``."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import click

from rollout_trace.cli.common import files_of, json_option, show, show_problems
from rollout_trace.data.user_values import brief
from rollout_trace.errors import FormatError
from rollout_trace.file.annotate import VALUES, append_notes, checked_note
from rollout_trace.file.annotate import annotate as annotate_file
from rollout_trace.file.find import HEAD, heads
from rollout_trace.file.lines import Damaged, lines
from rollout_trace.file.notes import notes_path


class _Named(click.ParamType[tuple[str, Any]]):
    """``name=value``. The value is a number, or JSON where it is JSON and text otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not {self.name}.", param, ctx)
        try:
            return name, float(text) if self is _NUMBER else _json_or_text(text)
        except ValueError:
            self.fail(f"{text!r} in {value!r} is not a number.", param, ctx)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_NUMBER = _Named("name=number")
_VALUE = _Named("name=value")


@click.command()
@click.argument("file")
@click.argument("trajectory_id", required=False, metavar="[ID]")
@click.option("--reward", type=float, metavar="NUMBER", help="Set the reward of the trajectory.")
@click.option(
    "--rewards", type=_NUMBER, multiple=True, metavar="NAME=NUMBER", help="Set a named reward; can be repeated."
)
@click.option("--metrics", type=_NUMBER, multiple=True, metavar="NAME=NUMBER", help="Set a metric; can be repeated.")
@click.option(
    "--metadata",
    type=_VALUE,
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a metadata value, JSON or text; can be repeated.",
)
@click.option("--from", "source", metavar="ROWS", help="Read ids and values from a .jsonl file, or from stdin (-).")
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
    """Add a reward, a score or a label to the trajectory ID of FILE.

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
        raise click.UsageError("--from reads ids and values from its rows. Leave out ID and the value options.")
    if source is None and (trajectory_id is None or not values):
        raise click.UsageError("name a trajectory (ID) and a value such as --reward 1, or read rows with --from.")
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
    from rollout_trace.view.numbers import trajectories

    named = index.named(trajectory_id)
    if len(named) > 1:
        first = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
        raise click.UsageError(f"{brief(trajectory_id)} names {len(named)} trajectories: {first}. Give one id.")
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
    missing = [f"{found} ({trajectories(len(index))} read). rollout-trace ls {file} lists them."]
    show_problems([*([] if written else missing), *damaged], as_json=as_json)
    return int(not written)


def _note_rows(index: Index, source: str, damaged: list[FormatError], *, as_json: bool) -> int:
    rows, problems, unused = apply_rows(source, index)
    noted = rows - len(problems)
    result = {"rows": rows, "applied": noted, "problems": problems, "unused_fields": dict(unused)}
    found = [f"{rows} rows read, {noted} noted, {len(problems)} not noted"]
    if unused:
        names = ", ".join(f"{brief(name)} in {count} rows" for name, count in unused.items())
        found.append(f"these fields were not used: {names}")
    show(found, {**result, "unreadable": list(map(str, damaged))}, as_json=as_json)
    show_problems([*problems, *damaged], as_json=as_json)
    return int(bool(problems))


# Rows of scores, and the trajectories that they are of

_KEYS = ("id", "task", "rollout_index")
_BATCH = 500
"""Notes that are appended at once."""


class BadRow(ValueError):
    """A row that cannot be applied, and why."""


class Index:
    """The trajectories of files, by id and by task."""

    def __init__(self, files: Iterable[str], damaged: Callable[[FormatError], object]) -> None:
        self._files: dict[str, list[str]] = {}
        self._runs: dict[str, list[tuple[int | None, str]]] = defaultdict(list)
        for path in files:
            for _, head in heads(path, damaged, HEAD):
                self._add(path, head.id, None if head.task is None else head.task.id, head.rollout_index)

    def _add(self, path: str, trajectory_id: str, task: str | None, rollout_index: int | None) -> None:
        known = self._files.setdefault(trajectory_id, [])
        if path not in known:
            known.append(path)
        if task is not None and (rollout_index, trajectory_id) not in self._runs[task]:
            self._runs[task].append((rollout_index, trajectory_id))

    def __len__(self) -> int:
        return len(self._files)

    def files_with(self, trajectory_id: str) -> list[str]:
        """The files that have a trajectory."""
        return self._files.get(trajectory_id, [])

    def named(self, wanted: str) -> list[str]:
        """The trajectory of this id; else those whose ids begin so; else those of the task of this id. As ``show``."""
        if wanted in self._files:
            return [wanted]
        begin = [one for one in self._files if one.startswith(wanted)] if wanted else []
        return begin or [one for _, one in self._runs.get(wanted, ())]

    def match(self, row: Mapping[str, Any]) -> str:
        """The id of the trajectory that a row is of. Raises BadRow where there is none, or there are several."""
        if row.get("id") is not None:
            if not isinstance(row["id"], str):
                raise BadRow(f"id is {brief(row['id'])}; expected text.")
            if row["id"] not in self._files:
                raise BadRow(f"no trajectory has the id {brief(row['id'])}.")
            return row["id"]
        if row.get("task") is None:
            raise BadRow("expected the id of a trajectory, or its task (and rollout_index), got neither.")
        return self._by_task(str(row["task"]), row.get("rollout_index"))

    def _by_task(self, task: str, index: Any) -> str:
        if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
            raise BadRow(f"rollout_index is {brief(index)}; expected a whole number.")
        found = [one for at, one in self._runs.get(task, ()) if index is None or at == index]
        if len(found) == 1:
            return found[0]
        what = f"the task {brief(task)}" + ("" if index is None else f" and the rollout_index {index}")
        if not found:
            raise BadRow(f"no trajectory has {what}.")
        advice = "give its rollout_index, or its id" if index is None else "give its id"
        raise BadRow(f"{len(found)} trajectories have {what}: {advice}.")


def apply_rows(source: str, index: Index) -> tuple[int, list[str], Counter[str]]:
    """Notes the rows of a file, or of stdin for ``-``. A bad one is left out and named. Raises OSError.

    Returns the number of rows, why some were not applied, and fields of no use, each with the number of its rows.
    """
    rows, problems, unused = 0, list[str](), Counter[str]()
    waiting: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    shown = "stdin" if source == "-" else source
    for number, line in _numbered(source):
        rows += 1
        try:
            row = _row(line)
            trajectory_id = index.match(row)
            note = checked_note(trajectory_id, _values(row))
        except (BadRow, TypeError, ValueError) as error:
            problems.append(f"{shown}, line {number}: {error}")
            continue
        unused.update(name for name in row if name not in VALUES and name not in _KEYS)
        for path in index.files_with(trajectory_id):
            waiting[path].append(note)
            if len(waiting[path]) >= _BATCH:
                append_notes(path, waiting.pop(path))
    for path, notes in waiting.items():
        append_notes(path, notes)
    return rows, problems, unused


def _numbered(source: str) -> Iterator[tuple[int, bytes | Damaged]]:
    if source != "-":
        return lines(source)
    return ((number, line) for number, line in enumerate(sys.stdin.buffer, 1) if line.strip())


def _row(line: bytes | Damaged) -> dict[str, Any]:
    if isinstance(line, Damaged):
        raise BadRow(str(line))
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"expected a line of JSON, got something else: {error}.") from error
    if not isinstance(row, dict):
        raise BadRow(f'expected an object, such as {{"id": "...", "reward": 1.0}}, got {brief(row)}.')
    return row


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: row[name] for name in VALUES if row.get(name) is not None}
    if not values:
        raise BadRow(f"expected a value to note, got none: give any of {', '.join(VALUES)}.")
    if isinstance(values.get("steps"), list):
        values["steps"] = dict(map(_step, values["steps"]))
    return values


def _step(step: Any) -> tuple[Any, dict[str, Any]]:
    """Id or index of a step, and its values: in JSON a key cannot be a number."""
    if not isinstance(step, dict) or (step.get("id") is None and step.get("index") is None):
        raise BadRow(f"a step is {brief(step)}; expected an object with its id or its index.")
    key = step["index"] if step.get("id") is None else step["id"]
    return key, {name: value for name, value in step.items() if name not in ("id", "index")}
