"""Arguments of ``rt.collect``, each checked before anything runs."""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from rollout_trace.collection.retries import RetryPolicy
from rollout_trace.data import user_values
from rollout_trace.data.user_values import brief

_FAILURES = 50
"""So many failed rollouts in a row end a run, or twice as many as are made at the same time, if that is more."""


def whole(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least so much.

    Raises:
        TypeError, ValueError: it is not.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give a whole number of at least {least}.")
    if number < least:
        raise ValueError(f"{name} is {number}; give a whole number of at least {least}.")
    return number


def limit(value: Any, name: str) -> float | None:
    """A time in seconds; None stays None: no limit.

    Raises:
        TypeError, ValueError: it is no number, or not above zero.
    """
    return None if value is None else seconds(value, name, "seconds above 0, or None for no limit")


def seconds(value: Any, name: str, expected: str = "seconds above 0") -> float:
    """A time in seconds above 0; ``expected``: for the message.

    Raises:
        TypeError, ValueError: it is no such number.
    """
    number = _seconds(value, name, expected)
    if number <= 0:
        raise ValueError(f"{name} is {brief(value)}; give {expected}.")
    return number


def wait(value: Any, name: str) -> float:
    """A time in seconds, 0 or more.

    Raises:
        TypeError, ValueError: it is no such number.
    """
    number = _seconds(value, name, "seconds, 0 or more")
    if number < 0:
        raise ValueError(f"{name} is {brief(value)}; give seconds, 0 or more.")
    return number


def _seconds(value: Any, name: str, expected: str) -> float:
    try:
        number = None if isinstance(value, bool) else user_values.finite_number(value, name)
    except TypeError:
        number = None
    except ValueError:
        raise ValueError(f"{name} is {brief(value)}; give {expected}.") from None
    if number is None:
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give {expected}.")
    return float(number)


def flag(value: Any, name: str) -> bool:
    """True or False.

    Raises:
        TypeError: it is something else, such as the text ``"no"``, which Python takes for true.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give True or False.")
    return value


def agent_name(value: Any) -> str:
    """A name for trajectories.

    Raises:
        TypeError, ValueError: it is no text, or blank.
    """
    name = user_values.text_id(value, "name")
    if not name.strip():
        raise ValueError(f"name is {value!r}; give a text that is not blank, or None for the name of the agent.")
    return name


def folder_of_logs(value: Any) -> bool | str:
    """True, False, or the path of a folder.

    Raises:
        TypeError, ValueError: it is none of these.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise TypeError(f"logs is {brief(value)} ({type(value).__name__}); give True, False, or the path of a folder.")
    if not path.strip():
        raise ValueError(f"logs is {path!r}; give True, False, or the path of a folder.")
    return path


def recording_options(value: Any, output: str) -> dict[str, Any]:
    """Arguments of ``rt.recording`` besides its target.

    Raises:
        TypeError, ValueError: they are none, or have values that it refuses.
    """
    from rollout_trace.record.recording import recording

    if not (value is None or isinstance(value, Mapping)):
        raise TypeError(
            f"recording is {brief(value)} ({type(value).__name__}); give a mapping of arguments of rt.recording, such "
            'as {"fsync": True}.'
        )
    given = dict(value or {})
    check_names(given, recording, "rt.recording", but="target")
    recording(output, **given)  # Opens nothing.
    return given


def check_names(given: Mapping[str, Any], function: Callable[..., Any], title: str, *, but: str = "") -> None:
    """Checks the names of arguments for a function; ``but``: the one that is given by others.

    Raises:
        TypeError: it has no such argument.
    """
    known = [name for name in inspect.signature(function).parameters if name != but]
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, 2)
            advice = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}."
            raise TypeError(f"{title} has no argument {brief(name)}; {advice}")


def check_engine(value: Any) -> None:
    """Checks what is asked of the servers.

    Raises:
        TypeError, ValueError: as ``rt.instrument``.
    """
    from rollout_trace.process.options import Options

    if isinstance(value, Mapping) and "name" in value:
        raise TypeError(
            f"engine is {brief(value)}; give the options of an engine as rt.Engine(...), or a mapping from the "
            "addresses of servers to their engines."
        )
    Options(value)


def retry_policy(retries: Any, kinds: Any, first_wait: Any, longest_wait: Any) -> RetryPolicy:
    """The policy for what ``rt.collect`` was given.

    Raises:
        TypeError, ValueError: an argument has a wrong type or value.
    """
    return RetryPolicy(
        retries=whole(retries, "retries", least=0),
        kinds=None if kinds is None else _names(kinds),
        first_wait=wait(first_wait, "retry_wait"),
        longest_wait=wait(longest_wait, "retry_wait_max"),
    )


def _names(kinds: Any) -> frozenset[str]:
    every = [kinds] if isinstance(kinds, (str, type)) else kinds
    if not isinstance(every, Iterable):
        raise TypeError(f"retry_on is {brief(kinds)}; give exception classes or their names.")
    names = set()
    for kind in every:
        if isinstance(kind, type) and issubclass(kind, BaseException):
            names.add(kind.__name__)
        elif isinstance(kind, str) and kind.rpartition(".")[2].isidentifier():
            names.add(kind.rpartition(".")[2])
        else:
            raise TypeError(f"retry_on has {brief(kind)}; give exception classes or their names.")
    if not names:
        raise ValueError("retry_on is empty; give exception classes or their names, or None for all.")
    return frozenset(names)


def most_failures(value: Any, concurrency: int) -> float:
    """After how many failed rollouts in a row a run stops; infinity for never.

    Raises:
        TypeError, ValueError: it is no whole number.
    """
    if value is None:
        return max(_FAILURES, 2 * concurrency)
    return whole(value, "max_consecutive_failures", least=0) or math.inf
