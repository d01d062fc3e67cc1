"""Checks of single values: of arguments of ``rt.collect`` and of the executors, before anything runs.

Each takes a value and the name of its argument, and returns what is used. They raise TypeError or ValueError.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rollout_trace._wrong_use import did_you_mean
from rollout_trace.data import user_values
from rollout_trace.data.user_values import brief


def refused(value: Any, name: str, expected: str) -> TypeError:
    """The error for a value of a wrong type."""
    return TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give {expected}.")


def whole(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least so much."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise refused(value, name, f"a whole number of at least {least}")
    if number < least:
        raise ValueError(f"{name} is {number}; give a whole number of at least {least}.")
    return number


def seconds(value: Any, name: str, *, may_be_zero: bool = False, expected: str = "seconds above 0") -> float:
    """A time in seconds."""
    try:
        number = float(user_values.finite_number(value, name))
    except TypeError:
        raise refused(value, name, expected) from None
    except ValueError:
        number = -1.0
    if isinstance(value, bool):
        raise refused(value, name, expected)
    if number < 0 or (number == 0 and not may_be_zero):
        raise ValueError(f"{name} is {brief(value)}; give {expected}.")
    return number


def wait(value: Any, name: str) -> float:
    """A time in seconds, 0 or more."""
    return seconds(value, name, may_be_zero=True, expected="seconds, 0 or more")


def limit(value: Any, name: str) -> float | None:
    """A time in seconds; None stays None: no limit."""
    return None if value is None else seconds(value, name, expected="seconds above 0, or None for no limit")


def flag(value: Any, name: str) -> bool:
    """True or False, and not a text such as ``"no"``, which Python takes for true."""
    if not isinstance(value, bool):
        raise refused(value, name, "True or False")
    return value


def name_of_agent(value: Any, name: str) -> str | None:
    """A name for trajectories; None for the agent's own."""
    if value is None:
        return None
    text = user_values.text_id(value, name)
    if not text.strip():
        raise ValueError(f"{name} is {value!r}; give a text that is not blank, or None for the name of the agent.")
    return text


def log_folder(value: Any, name: str) -> bool | str:
    """Whether logs are written, or the path of their folder."""
    if value is None or isinstance(value, bool):
        return bool(value)
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise refused(value, name, "True, False, or the path of a folder")
    if not path.strip():
        raise ValueError(f"{name} is {path!r}; give True, False, or the path of a folder.")
    return path


def exceptions(value: Any, name: str) -> frozenset[str] | None:
    """The names of exception classes; None stays None: all of them."""
    if value is None:
        return None
    every = [value] if isinstance(value, (str, type)) else value
    if not isinstance(every, Iterable):
        raise TypeError(f"{name} is {brief(value)}; give exception classes or their names.")
    names = set()
    for kind in every:
        if isinstance(kind, type) and issubclass(kind, BaseException):
            names.add(kind.__name__)
        elif isinstance(kind, str) and kind.rpartition(".")[2].isidentifier():
            names.add(kind.rpartition(".")[2])
        else:
            raise TypeError(f"{name} has {brief(kind)}; give exception classes or their names.")
    if not names:
        raise ValueError(f"{name} is empty; give exception classes or their names, or None for all.")
    return frozenset(names)


def recording_options(value: Any, name: str) -> dict[str, Any]:
    """Arguments of ``rt.recording`` besides its target. Their values are checked where it is made."""
    from rollout_trace.record.recording import recording

    if not (value is None or isinstance(value, Mapping)):
        raise refused(value, name, 'a mapping of arguments of rt.recording, such as {"fsync": True}')
    given = dict(value or {})
    check_names(given, recording, "rt.recording", but="target")
    return given


def engine(value: Any, name: str) -> Any:
    """Checks ``engine``. Raises as ``rt.instrument`` does."""
    from rollout_trace.process.options import Options

    if isinstance(value, Mapping) and "name" in value:
        raise TypeError(
            f"{name} is {brief(value)}; give the options of an engine as rt.Engine(...), or a mapping from the "
            "addresses of servers to their engines."
        )
    Options(value)
    return value


def check_names(given: Iterable[Any], function: Callable[..., Any], title: str, *, but: str = "") -> None:
    """Raises TypeError where a function has no argument of a name; ``but``: the one that is given by others."""
    known = [name for name in inspect.signature(function).parameters if name != but]
    for name in given:
        if name not in known:
            raise TypeError(f"{title} has no argument {brief(name)}. {did_you_mean(name, known)}")
