"""Files of tasks: JSON lines, JSON, CSV, parquet, and saved ``datasets``. Yields each task and its place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from rollout_trace._wrong_use import did_you_mean, import_extra
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import refuse_special_file
from rollout_trace.file.lines import Damaged, lines
from rollout_trace.guard import describe

Placed: TypeAlias = "tuple[str, Any]"
"""Where a task is, for messages, and the task."""
ID_NAMES = ("id", "task_id")
"""Fields that may hold a task's id; the first that does is taken."""


class Keyed(NamedTuple):
    """A task, and the key that it has in a mapping."""

    key: Any
    value: Any


def read_tasks(path: str) -> Iterator[Placed]:
    """The tasks of a file, or the folder of a saved ``datasets.Dataset``. Raises OSError, ValueError, ImportError."""
    name = path.lower()
    reader = next((one for suffix, one in _READERS.items() if name.endswith(suffix)), None)
    if os.path.isdir(path):
        return _saved_dataset(path)
    if not os.path.exists(path):
        raise FileNotFoundError(_not_found(path, is_file=reader is not None))
    if reader is None:
        raise ValueError(
            f"the tasks {path} are in a file of an unknown kind; give {', '.join(_READERS)}, the folder of a saved "
            "dataset, or the tasks themselves in a list."
        )
    refuse_special_file(path)
    return reader(path)


def refuse_one_task(tasks: Mapping[Any, Any], what: str) -> None:
    """Raises ValueError where what should be a mapping from ids to tasks is a single task."""
    name = next((one for one in ID_NAMES if one in tasks and not isinstance(tasks[one], (Mapping, list))), None)
    if name is not None:
        raise ValueError(
            f"{what} one task, with the field {name!r}: put it in a list, or give a mapping from ids to tasks."
        )


def _not_found(path: str, *, is_file: bool) -> str:
    if "://" in path:
        return f"tasks are read from this machine, and {path} is an address: download it, or give the tasks in a list."
    if not is_file and ("\n" in path or " " in path):
        return f"the tasks are one text, {path[:60]!r}, and no file has this path: give a list of tasks."
    if not is_file and path.count("/") == 1 and path[0] not in "./~":
        return (
            f"there is no file or folder {path}; if it is a dataset of a hub, load it and give it as the tasks: "
            f"datasets.load_dataset({path!r}, split=...)."
        )
    folder, name = os.path.split(path)
    if folder and not os.path.isdir(folder):
        return f"there is no file of tasks {path}: there is no folder {folder}."
    return f"there is no file of tasks {path}. {did_you_mean(name, os.listdir(folder or '.'), '')}".rstrip()


def _json_lines(path: str) -> Iterator[Placed]:
    for number, line in lines(path):
        if isinstance(line, Damaged):
            raise FormatError(f"{path}, line {number}: {line}.")
        yield f"{path}, line {number}", _decoded(line, path, number)


def _decoded(data: bytes, path: str, line: int | None = None) -> Any:
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno if line is None else line}, column {error.colno}"
        advice = "" if line is None else " A file of tasks has one JSON value on each line."
        raise ValueError(f"{path}, {at}: not valid JSON ({error.msg}).{advice}") from None
    except UnicodeDecodeError as error:
        where = path if line is None else f"{path}, line {line}"
        raise ValueError(f"{where}: byte {error.start + 1} is not UTF-8.") from None
    except (RecursionError, ValueError) as error:
        where = path if line is None else f"{path}, line {line}"
        raise ValueError(f"{where}: this cannot be read as JSON ({describe(error)}).") from None


def _json(path: str) -> Iterator[Placed]:
    with open(path, "rb") as file:
        value = _decoded(file.read(), path)
    if isinstance(value, dict):
        refuse_one_task(value, f"{path} holds")
        return ((f"{path}, key {key!r}", Keyed(key, one)) for key, one in value.items())
    if not isinstance(value, list):
        raise ValueError(f"{path} holds a {type(value).__name__}; expected a list of tasks, or an object {{id: task}}.")
    return ((f"{path}, item {at} (from 0)", one) for at, one in enumerate(value))


def _csv(path: str) -> Iterator[Placed]:
    import csv

    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file, strict=True)
        try:
            for row in rows:
                if None in row or None in row.values():
                    raise ValueError(
                        f"{path}, line {rows.line_num}: the row does not have {len(rows.fieldnames or ())} fields, as "
                        "the first line does."
                    )
                yield f"{path}, line {rows.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, after line {rows.line_num}: not valid CSV ({error}).") from None


def _parquet(path: str) -> Iterator[Placed]:
    pyarrow = import_extra("pyarrow", f"{path} is parquet, which needs", "pyarrow>=19")
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            as_json = [one.name for one in file.schema_arrow if str(one.type).startswith("extension<arrow.json")]
            at = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    row.update((name, json.loads(row[name])) for name in as_json if row[name] is not None)
                    yield f"{path}, row {at} (from 0)", row
                    at += 1
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read as parquet: {describe(error)}.") from None


def _saved_dataset(path: str) -> Iterator[Placed]:
    names = os.listdir(path)
    if "dataset_dict.json" in names:
        with open(os.path.join(path, "dataset_dict.json"), "rb") as file:
            splits = json.load(file).get("splits", [])
        raise ValueError(
            f"{path} holds a dataset with the splits {', '.join(splits)}: give one of them, such as "
            f"{os.path.join(path, splits[0] if splits else 'train')}."
        )
    if "state.json" not in names or "dataset_info.json" not in names:
        raise ValueError(
            f"{path} is a folder that Dataset.save_to_disk did not make (it has no state.json). Give a file "
            f"({', '.join(_READERS)})."
        )
    datasets = import_extra("datasets", f"{path} is a saved dataset, which needs", "datasets>=4.7")
    rows = datasets.load_from_disk(path)
    return ((f"{path}, row {at} (from 0)", row) for at, row in enumerate(rows))


_READERS: dict[str, Callable[[str], Iterator[Placed]]] = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".jsonl.zst": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
