"""The tasks of ``collect``: from anything that holds some, each with its id and the digest of its content."""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any
from uuid import UUID

from rollout_trace._wrong_use import did_you_mean
from rollout_trace.collection import checks
from rollout_trace.collection.items import TaskItem
from rollout_trace.collection.task_files import ID_NAMES, Keyed, Placed, read_tasks, refuse_one_task
from rollout_trace.data.model import Task
from rollout_trace.data.user_values import MAX_DEPTH, brief, json_key, to_builtin

_NAMED = 5
"""Missing ids that a message names."""
_SHORT = 60
"""Most characters of a text that is its own id."""


def load_tasks(tasks: Any, *, limit: int | None = None, task_ids: Iterable[Any] | None = None) -> list[TaskItem]:
    """The tasks of a run, each with its id: of anything that ``rt.collect`` takes. Raises as it does.

    The id is the key of a mapping, else the field or attribute ``id``, else ``task_id``. Where no task has one, its
    content is its id: a whole number or a short text itself, of anything else the digest; with ``-2``, ``-3``, ...
    behind it for further tasks of equal content. ``limit``: of those with ``task_ids``, if both are given.
    """
    wanted = _wanted_ids(task_ids)
    most = None if limit is None else checks.whole(limit, "limit", least=1)
    placed = _placed(tasks)
    items = _items(placed if wanted is not None else islice(placed, most))
    if not items:
        raise ValueError(f"there are no tasks in {_title(tasks)}: give at least one.")
    return items[:most] if wanted is None else _chosen(items, wanted)[:most]


def task_stream(
    tasks: Any, *, limit: int | None = None, task_ids: Iterable[Any] | None = None
) -> tuple[Iterator[TaskItem] | AsyncIterator[TaskItem], int | None]:
    """The tasks of ``rt.rollouts``, and their number where it is known. Raises as ``load_tasks``.

    An iterator, also an async one, is asked for each task when there is room for it; in it a task may come again.
    """
    if not isinstance(tasks, (Iterator, AsyncIterable)):
        loaded = load_tasks(tasks, limit=limit, task_ids=task_ids)
        return iter(loaded), len(loaded)
    if task_ids is not None:
        raise ValueError(
            f"task_ids needs a list of tasks, but the tasks are {brief(tasks)} ({type(tasks).__name__}), "
            "which gives them one by one: give a list, or leave task_ids out."
        )
    naming = Naming()
    if isinstance(tasks, AsyncIterable):
        return _async_items(tasks, naming, limit), None
    return (naming.item(f"tasks[{at}]", one) for at, one in enumerate(islice(tasks, limit))), None


async def _async_items(tasks: AsyncIterable[Any], naming: Naming, limit: int | None) -> AsyncIterator[TaskItem]:
    at = 0
    async for one in tasks:
        yield naming.item(f"tasks[{at}]", one)
        at += 1
        if at == limit:
            return


def recorded_task(item: TaskItem) -> Task:
    """The task as a trajectory has it: its fields, else the value; the id alone where that has no form in JSON."""
    if isinstance(item.value, Task):
        return Task(id=item.id, data=item.value.data)
    data = to_builtin(item.value)
    if data is None or isinstance(data, (dict, list, str, int, float)):
        return Task(id=item.id, data=data)
    try:
        digest(data)
    except NoForm:
        return Task(id=item.id)
    return Task(id=item.id, data=data)


_COPIED = frozenset({dict, list, Task})


def own_copy(task: Any) -> Any:
    """The task for one attempt, which may change it: dicts and lists are copied, at any depth; no other objects."""
    try:
        return _copied(task, {})
    except RuntimeError:  # It is nested too deeply, or somebody changes it meanwhile.
        return task


def _copied(value: Any, known: dict[int, Any]) -> Any:
    """``known``: what was copied already, by ``id``: an object may be there twice, or inside itself."""
    kind = type(value)
    if id(value) in known or kind not in _COPIED:
        return known.get(id(value), value)
    if kind is Task:
        return Task(id=value.id, data=_copied(value.data, known))
    copied = known[id(value)] = kind()
    # Ids and characters may be many: no call is made for each of them.
    if kind is dict:
        copied.update((name, _copied(one, known) if type(one) in _COPIED else one) for name, one in value.items())
    else:
        copied.extend([_copied(one, known) if type(one) in _COPIED else one for one in value])
    return copied


def _wanted_ids(task_ids: Any) -> list[str] | None:
    if task_ids is None:
        return None
    if isinstance(task_ids, (str, bytes, Mapping)) or not isinstance(task_ids, Iterable):
        raise TypeError(f"task_ids is {brief(task_ids)} ({type(task_ids).__name__}); give a list of ids.")
    wanted = list(dict.fromkeys(_id_text(one, f"task_ids[{at}]") for at, one in enumerate(task_ids)))
    if not wanted:
        raise ValueError("task_ids is empty; give ids, or None for all tasks.")
    return wanted


def _placed(tasks: Any) -> Iterator[Placed]:
    """Each task with its place, for messages."""
    if isinstance(tasks, (str, os.PathLike)):
        return read_tasks(os.path.expanduser(os.fsdecode(tasks)))
    if isinstance(tasks, Mapping):
        _refuse_splits(tasks)
        refuse_one_task(tasks, "the tasks are")
        return ((f"tasks[{key!r}]", Keyed(key, value)) for key, value in tasks.items())
    return ((f"tasks[{at}]", value) for at, value in enumerate(_rows(tasks)))


def _rows(tasks: Any) -> Iterable[Any]:
    if isinstance(tasks, (bytes, bytearray)):
        raise TypeError(f"the tasks are {brief(tasks)} ({type(tasks).__name__}); give a list, or the path of a file.")
    kind = type(tasks)
    package = kind.__module__.partition(".")[0]
    if package == "pandas" and hasattr(tasks, "columns"):
        # Iterating over its table gives the names of the columns.
        records: Iterable[Any] = tasks.to_dict(orient="records")
        return records
    if package == "polars" and callable(getattr(kind, "iter_rows", None)):
        rows: Iterable[Any] = tasks.iter_rows(named=True)
        return rows
    if package == "pyarrow" and callable(getattr(kind, "to_pylist", None)):
        values: Iterable[Any] = tasks.to_pylist()
        return values
    if isinstance(tasks, Iterable) and not isinstance(tasks, type):
        return tasks
    if isinstance(tasks, AsyncIterable):
        raise TypeError("the tasks are an async iterable. Make a list first: [task async for task in tasks].")
    if callable(getattr(kind, "__getitem__", None)) and callable(getattr(kind, "__len__", None)):
        return (tasks[at] for at in range(len(tasks)))
    if callable(tasks):
        raise TypeError(f"the tasks are {brief(tasks)}, a function: give what it returns.")
    raise TypeError(
        f"the tasks are {brief(tasks)} ({type(tasks).__name__}); give an iterable, a mapping from ids to tasks, or the "
        "path of a file."
    )


def _refuse_splits(tasks: Mapping[Any, Any]) -> None:
    if type(tasks).__name__ in ("DatasetDict", "IterableDatasetDict"):
        names = ", ".join(map(str, tasks))
        raise ValueError(f"the tasks are a dataset with the splits {names}: give one of them, tasks[...].")


def _items(placed: Iterable[Placed]) -> list[TaskItem]:
    naming, items = Naming(), []
    places: dict[str, str] = {}
    copies: dict[str, int] = {}
    for place, given in placed:
        item = naming.item(place, given)
        if not naming.has_ids:
            item = replace(item, id=_free(item.id, copies, places))
        if item.id in places:
            raise ValueError(
                f"two tasks have the id {brief(item.id)}: {places[item.id]} and {place}. Give each its own id; for "
                "several rollouts of one task, give samples=."
            )
        places[item.id] = place
        items.append(item)
    return items


class Naming:
    """Gives tasks their ids, one after the other: all have one in themselves, or none has."""

    def __init__(self) -> None:
        self._first: tuple[str, bool] | None = None
        """Place of the first task, and whether it has an id."""

    @property
    def has_ids(self) -> bool:
        """Whether the tasks have ids in themselves; False before the first."""
        return self._first is not None and self._first[1]

    def item(self, place: str, given: Any) -> TaskItem:
        """The task with its id. Raises as ``load_tasks``."""
        samples = None
        if isinstance(given, TaskItem):
            given, samples = Keyed(given.id, given.value), given.samples
        is_keyed = isinstance(given, Keyed)
        key, value = given if is_keyed else (_id_of(given), given)
        has_id = is_keyed or key is not None
        if self._first is None:
            self._first = (place, has_id)
        if self._first[1] != has_id:
            _refuse_mixture(self._first, place, value)
        if not has_id:
            content = _content(value, place)
            return TaskItem(_short(value) or content, value, content)
        return TaskItem(_id_text(key, f"the id of {place}"), value, digest(value, lenient=True), samples=samples)


def _short(value: Any) -> str | None:
    """A task as its own id: a whole number, or a text that is short and can be read; None for any other."""
    if type(value) is int:
        return str(value)
    is_short = isinstance(value, str) and len(value) <= _SHORT and value.isprintable() and value == value.strip()
    return str(value) if is_short and value else None


def _free(name: str, copies: dict[str, int], taken: Mapping[str, str]) -> str:
    """The name, or with the number of the copy behind it."""
    while True:
        copies[name] = copies.get(name, 0) + 1
        found = name if copies[name] == 1 else f"{name}-{copies[name]}"
        if found not in taken:
            return found


def _refuse_mixture(first: tuple[str, bool], place: str, value: Any) -> None:
    with_id, without = (first[0], place) if first[1] else (place, first[0])
    shown = f", {brief(value)}," if without == place else ""
    raise ValueError(
        f"{without}{shown} has no id, and {with_id} has one: give every task one (a field `id` or `task_id`), or none."
    )


def _id_of(value: Any) -> Any:
    """The id that a task has in itself; None where it has none."""
    data = value if isinstance(value, dict) else to_builtin(value)
    for name in ID_NAMES:
        # A method of this name (`unittest.TestCase.id`) is no id.
        found = data.get(name) if isinstance(data, dict) else getattr(value, name, None)
        if found is not None and not callable(found):
            return found
    return None


def _id_text(value: Any, name: str) -> str:
    """An id as text. Raises ValueError where it is no text, whole number or UUID, or blank."""
    value = to_builtin(value)
    if isinstance(value, str):
        if not value.strip():
            raise ValueError(f"{name} is {value!r}; give a text that is not blank, or a whole number.")
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    # Numpy's truth values are `bool` or `bool_`, by its version.
    if hasattr(type(value), "__index__") and type(value).__name__ not in ("bool", "bool_"):
        try:
            return str(operator.index(value))
        except TypeError:  # Arrays and tensors of several numbers.
            pass
    raise ValueError(f"{name} is {brief(value)} ({type(value).__name__}); give a text or a whole number.")


def _content(value: Any, place: str) -> str:
    try:
        return digest(value)
    except NoForm as error:
        raise TypeError(
            f"{place} has no id, and its content does not give one: {error}. Give each task a field `id`, or a "
            "mapping from ids to tasks."
        ) from None


def _chosen(items: Sequence[TaskItem], wanted: Sequence[str]) -> list[TaskItem]:
    known = {item.id for item in items}
    missing = [one for one in wanted if one not in known]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        named = ", ".join(map(brief, missing[:_NAMED])) + more
        meant = did_you_mean(missing[0], known, "")
        raise ValueError(f"none of the {len(items)} tasks has the id {named}. {meant}".rstrip())
    ids = set(wanted)
    return [item for item in items if item.id in ids]


def _title(tasks: Any) -> str:
    return os.fsdecode(tasks) if isinstance(tasks, (str, os.PathLike)) else f"the {type(tasks).__name__} of tasks"


DIGITS = 12


class NoForm(TypeError):
    """A value, or something in it, has no form in JSON. The text names its place and class."""


def digest(value: Any, *, lenient: bool = False) -> str:
    """12 hexadecimal digits of the SHA-256 of a value's canonical JSON: keys sorted, no spaces, ASCII.

    What has no form in JSON raises NoForm; if ``lenient``, its class stands for it.
    """
    text = json.dumps(_canonical(value, "$", 0, lenient), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _canonical(value: Any, path: str, depth: int, lenient: bool) -> Any:
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        # As text from 4300 digits on, Python refuses to write them.
        return value if -(2**63) <= value < 2**64 else hex(value)
    if depth > MAX_DEPTH:
        if lenient:
            return {"class": type(value).__qualname__}
        raise NoForm(f"{path} is nested deeper than {MAX_DEPTH} levels, or contains itself")
    # Most are built-in, and `to_builtin` takes long to see it.
    inside, depth = value if type(value) in (dict, list) else to_builtin(value), depth + 1
    if inside is None or isinstance(inside, (bool, float, str, int)):
        return _canonical(inside, path, depth, lenient)
    value = inside
    if isinstance(value, Mapping):
        return {json_key(key): _canonical(one, f"{path}.{key}", depth, lenient) for key, one in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Set):
        items = [_canonical(one, f"{path}[...]", depth, lenient) for one in value]
        return sorted(items, key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(value, Sequence):
        return [_canonical(one, f"{path}[{at}]", depth, lenient) for at, one in enumerate(value)]
    return _scalar(value, path, depth, lenient)


def _scalar(value: Any, path: str, depth: int, lenient: bool) -> Any:
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal, Fraction, timedelta, complex)):
        return str(value)
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        # Arrays and tensors, and numbers of numpy.
        return _canonical(value.tolist(), path, depth, lenient)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if lenient:
        return {"class": kind}
    where = "it is" if path == "$" else f"its {path[2:] if path.startswith('$.') else path[1:]} is"
    raise NoForm(f"{where} {brief(value)} ({kind}), which JSON cannot hold")
