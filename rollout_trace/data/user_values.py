"""Values that a user gives, checked where they are given: the mistake is seen where it was made."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from typing import Any

from rollout_trace.data.lists import FrozenList
from rollout_trace.guard import printable


def finite_number(value: Any, name: str) -> float:
    """The number as a Python int or float: of a bool 1.0 or 0.0, of a numpy or torch scalar what it holds.

    Args:
        value: what was given.
        name: of what it is given for, for the error.

    Raises:
        TypeError: it is no real number, or an array of several.
        ValueError: it is NaN, infinite, or too large for a float.
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
    except OverflowError:  # A whole number that no float can hold.
        pass
    raise ValueError(f"{name} is {brief(value)}; give a finite number, or None where there is none.")


def _python_number(value: Any) -> float | None:
    """None where it is no single real number."""
    if isinstance(value, (str, bytes, bytearray)) or tuple(getattr(value, "shape", ())):
        return None  # `float` would read a text, and an array of one.
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
    """Finite numbers by name; what is put in is checked as what is assigned."""

    __slots__ = ()
    _name = "rewards"

    def __init__(self, values: Any = (), /) -> None:
        self.update(values)

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
    """A copy that checks what is put into it later.

    Raises:
        TypeError: it is no mapping from names to numbers.
        ValueError: a number is not finite.
    """
    numbers = held(value)
    if not isinstance(numbers, dict):
        raise TypeError(f'{kind._name} is {brief(value)} ({type(value).__name__}); give a dict, {{"name": number}}.')
    return kind(numbers)


def advantage(value: Any, name: str) -> float | FrozenList:
    """One number, or one for each completion token; arrays and tensors become lists, which cannot be changed in place.

    Raises:
        TypeError, ValueError: as ``finite_number``.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        return finite_number(value, name)
    return FrozenList(finite_number(one, f"{name}[{at}]") for at, one in enumerate(value))


def metadata(value: Any, name: str) -> dict[str, Any]:
    """A dict: that of the user, or of what the object holds.

    Raises:
        TypeError: it is no mapping, nor an object that holds fields.
        ValueError: two of its keys are one in JSON.
    """
    values = value if isinstance(value, dict) else held(value)
    if not isinstance(values, dict):
        raise TypeError(f'{name} is {brief(value)} ({type(value).__name__}); give a dict, {{"name": value}}.')
    if values:
        check_keys(values, name)
    return values


def text_id(value: Any, name: str) -> str:
    """An id as text: numbers, paths, enums, dates and UUIDs are ids as well.

    Raises:
        TypeError: it is something else.
    """
    from uuid import UUID

    value = held(value)
    if isinstance(value, str):
        return value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (int, float, UUID)) and not isinstance(value, bool):
        return str(value)
    if hasattr(type(value), "__index__") and not isinstance(value, bool):
        return str(operator.index(value))
    raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give its id as text.")


def position(value: Any, name: str) -> int:
    """A whole number from 0 on.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is negative.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give a whole number, counted from 0.")
    if number < 0:
        raise ValueError(f"{name} is {number}; give a whole number, counted from 0.")
    return number


def held(value: Any) -> Any:
    """What an object holds: an enum its value, a path its text, a mapping, a dataclass or a Pydantic object a new dict.

    Anything else is given back itself, and so is what cannot say what it holds.
    """
    try:
        return _held(value)
    except Exception:  # Code of the user's: a serializer, a property, a `__fspath__`.
        return value


def _held(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        # As the encoder writes dataclasses: without their private fields.
        return {item.name: getattr(value, item.name) for item in fields(value) if not item.name.startswith("_")}
    # Asked of the class: an instance may answer to every name.
    return value.model_dump(warnings=False) if callable(getattr(type(value), "model_dump", None)) else value


def brief(value: Any) -> str:
    """The ``repr`` of a value, short enough for a sentence."""
    try:
        return printable(repr(value), 80)
    except Exception as error:
        return f"<{type(value).__name__}: its repr() raised {type(error).__name__}>"


DEEPEST = 150
"""Levels of a value that are looked into: one may hold itself."""


def check_keys(value: Any, name: str, above: tuple[int, ...] = ()) -> None:
    """Refuses a value in which two keys of a mapping are one in JSON (``1`` and ``"1"``): one would be lost.

    Args:
        value: of the user's, of any depth.
        name: of the field it is for, to name the place.
        above: the ids of the objects it lies in.

    Raises:
        ValueError: there are such keys.
    """
    if id(value) in above or len(above) > DEEPEST:
        return
    if isinstance(value, Mapping):
        seen: dict[str, Any] = {}
        for key, item in value.items():
            text = json_key(key)
            if text in seen:
                raise ValueError(f"{name} has two keys {seen[text]!r} and {key!r} that are both {text!r} in a file.")
            seen[text] = key
            check_keys(item, f"{name}[{key!r}]", (*above, id(value)))
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            if isinstance(item, (Mapping, list, tuple)):
                check_keys(item, f"{name}[{at}]", (*above, id(value)))


def json_key(key: Any) -> str:
    """The name that a key of a mapping has in JSON."""
    if isinstance(key, str):
        return str.__str__(key)
    return json.dumps(key) if key is None or isinstance(key, (bool, float)) else safe_repr(key)


def safe_repr(value: Any) -> str:
    """The ``repr`` of a value, whatever its class makes of that."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: its repr() raised {type(error).__name__}>"
