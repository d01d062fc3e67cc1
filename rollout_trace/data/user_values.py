"""Checks and conversions of values set by users, done on assignment, so that errors appear where the mistake is."""

from __future__ import annotations

import inspect
import json
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from typing import Any

from rollout_trace.data.lists import FrozenList
from rollout_trace.guard import printable, warn_once


def finite_number(value: Any, name: str) -> float:
    """The number as a Python int or float; bools become 1.0 or 0.0, numpy and torch scalars their value.

    Raises TypeError for what is not one real number, ValueError for NaN, infinity and what no float holds.
    """
    number = value if type(value) in (float, int) else _python_number(value)
    if number is None:
        kind = type(value).__name__
        shape = tuple(getattr(value, "shape", ()))
        found = f"an array of shape {shape}" if shape else f"{brief(value)} ({kind})"
        raise TypeError(f"{name} is {found}; give one finite number: int, float, bool, or a numpy or torch scalar.")
    try:
        if math.isfinite(number):
            return number
    except OverflowError:  # An int beyond the range of float.
        pass
    raise ValueError(f"{name} is {brief(value)}; give a finite number, or None where there is none.")


def _python_number(value: Any) -> float | None:
    """The value as an int or float; None where it is not a single real number."""
    if isinstance(value, (str, bytes, bytearray)) or tuple(getattr(value, "shape", ())):
        return None  # `float` would accept texts, and arrays of one element.
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if isinstance(value, int):
        return float(value) if isinstance(value, bool) else int(value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


class Rewards(dict[str, "float | None"]):
    """Finite numbers by name. Items set later are checked like the whole on assignment."""

    __slots__ = ()
    _name = "rewards"

    def __init__(self, values: Any = (), /) -> None:
        # The methods of `dict` that add items do not call `__setitem__`: without these overrides they check nothing.
        self.update(values)

    @classmethod
    def unchecked(cls, values: Mapping[str, float | None]) -> Rewards:
        """The numbers of a file or of another ``Rewards``, as they are."""
        numbers = cls()
        # Not `update`: the class's own method checks the values.
        dict.update(numbers, values)
        return numbers

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"{self._name} has the name {brief(key)} ({type(key).__name__}); give names as text.")
        super().__setitem__(key, None if value is None else finite_number(value, f"{self._name}[{key!r}]"))

    def setdefault(self, key: str, default: Any = None) -> float | None:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, values: Any = (), /, **named: Any) -> None:
        for key, value in dict(values, **named).items():
            self[key] = value

    def __ior__(self, values: Any) -> Rewards:  # type: ignore[override, misc]
        self.update(values)
        return self


class Metrics(Rewards):
    """Finite numbers by name."""

    __slots__ = ()
    _name = "metrics"


def named_numbers(value: Any, kind: type[Rewards]) -> Rewards:
    """A copy of a mapping that checks the numbers in it and those set later. Raises as ``finite_number``."""
    numbers = to_builtin(value)
    if not isinstance(numbers, dict):
        raise TypeError(f'{kind._name} is {brief(value)} ({type(value).__name__}); give a dict, {{"name": number}}.')
    return kind(numbers)


def advantage(value: Any, name: str) -> float | FrozenList:
    """Returns one finite number, or a list with one for each completion token. Arrays and tensors become such a list.

    The list cannot be changed in place: a number set in it later would not be checked. Raises as ``finite_number``.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        return finite_number(value, name)
    return FrozenList(finite_number(one, f"{name}[{at}]") for at, one in enumerate(value))


def metadata(value: Any, name: str) -> dict[str, Any]:
    """The user's dict itself, or a new dict of the fields of a mapping, dataclass or Pydantic object.

    Raises TypeError for anything else, ValueError where two keys become the same key in JSON.
    """
    values = value if isinstance(value, dict) else to_builtin(value)
    if not isinstance(values, dict):
        raise TypeError(f'{name} is {brief(value)} ({type(value).__name__}); give a dict, {{"name": value}}.')
    if values:
        check_keys(values, name)
    return values


def text_id(value: Any, name: str) -> str:
    """The id as text: of a text, number, path, enum, date or UUID. Raises TypeError for anything else."""
    from uuid import UUID

    value = to_builtin(value)
    if isinstance(value, str):
        return value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (int, float, UUID)) and not isinstance(value, bool):
        return str(value)
    # Integers of other libraries, such as numpy's.
    if hasattr(type(value), "__index__") and not isinstance(value, bool):
        return str(operator.index(value))
    raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give its id as text.")


def position(value: Any, name: str) -> int:
    """The value as an int. Raises TypeError for what is no whole number, ValueError for one below 0."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give a whole number, counted from 0.")
    if number < 0:
        raise ValueError(f"{name} is {number}; give a whole number, counted from 0.")
    return number


def is_async(function: Callable[..., Any]) -> bool:
    """Returns whether calling a function only makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def to_builtin(value: Any) -> Any:
    """An enum's value, a path's text, or a new dict of a mapping, dataclass or Pydantic object; not recursive.

    Any other value is returned itself, and so is one whose conversion raises.
    """
    try:
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, os.PathLike):
            return os.fsdecode(value)
        if isinstance(value, Mapping):
            return dict(value)
        if is_dataclass(value) and not isinstance(value, type):
            # Without private fields, as the JSON encoder writes dataclasses.
            return {item.name: getattr(value, item.name) for item in fields(value) if not item.name.startswith("_")}
        # Looked up on the class: an instance with `__getattr__` (a mock, a proxy) may have any name.
        return value.model_dump(warnings=False) if callable(getattr(type(value), "model_dump", None)) else value
    except Exception:  # User code runs here: serializers, properties, `__fspath__`.
        return value


def brief(value: Any) -> str:
    """The ``repr`` of a value for an error message: one line, about 80 characters."""
    return printable(safe_repr(value), 80)


MAX_DEPTH = 150
"""Levels of nesting that are followed; deeper values are written as text, or not checked."""


def check_keys(value: Any, name: str, ancestors: tuple[int, ...] = ()) -> None:
    """Raises ValueError where two keys of a mapping become one key in JSON (``1`` and ``"1"``): an item would be lost.

    ``ancestors``: the ``id`` of each object that contains the value, which may contain itself.
    """
    if id(value) in ancestors or len(ancestors) > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        seen: dict[str, Any] = {}
        for key, item in value.items():
            text = json_key(key)
            if text in seen:
                raise ValueError(f"{name} has two keys {seen[text]!r} and {key!r} that are both {text!r} in a file.")
            seen[text] = key
            check_keys(item, f"{name}[{key!r}]", (*ancestors, id(value)))
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            if isinstance(item, (Mapping, list, tuple)):
                check_keys(item, f"{name}[{at}]", (*ancestors, id(value)))


def json_key(key: Any) -> str:
    """The key under which a key of a mapping is written in JSON."""
    if isinstance(key, str):
        return str.__str__(key)
    return json.dumps(key) if key is None or isinstance(key, (bool, float)) else safe_repr(key)


def unique_key(key: Any, taken: Mapping[str, Any]) -> str:
    """The key as ``json_key``; with its type added where another key has that text, so that no item is lost."""
    text = json_key(key)
    if text not in taken:
        return text
    warn_once(
        "same-keys",
        f"two keys of a mapping are both {text!r} in a file: the second is written with its type. Use keys that differ "
        "as text.",
    )
    marked = f"{text} ({type(key).__name__})"
    while marked in taken:
        marked += "'"
    return marked


def safe_repr(value: Any) -> str:
    """The ``repr`` of a value; a text with its class where ``repr`` raises."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: its repr() raised {type(error).__name__}>"
