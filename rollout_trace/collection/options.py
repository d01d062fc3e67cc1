"""The numbers that ``rt.collect`` is given, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    number = user_values.position(value, name)
    if number < least:
        raise ValueError(f"{name} is {number}; give a whole number of at least {least}.")
    return number


def seconds(value: Any, name: str, *, may_be_zero: bool = False) -> float | None:
    """A time in seconds; None stays None.

    Raises:
        TypeError, ValueError: it is no number, or not above zero.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give seconds, such as {name}=60.")
    number = float(user_values.finite_number(value, name))
    if number < 0 or (number == 0 and not may_be_zero):
        raise ValueError(f"{name} is {brief(value)}; give seconds above 0, or None for no limit.")
    return number


def retry_policy(retries: Any, kinds: Any, first_wait: Any, longest_wait: Any) -> RetryPolicy:
    """The policy for what ``rt.collect`` was given.

    Raises:
        TypeError, ValueError: an argument has a wrong type or value.
    """
    return RetryPolicy(
        retries=whole(retries, "retries", least=0),
        kinds=None if kinds is None else _names(kinds),
        first_wait=seconds(first_wait, "retry_wait", may_be_zero=True) or 0.0,
        longest_wait=seconds(longest_wait, "retry_wait_max", may_be_zero=True) or 0.0,
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
    return frozenset(names)


def most_failures(value: Any, concurrency: int) -> float:
    """After how many failed rollouts in a row a run stops; infinity for never.

    Raises:
        TypeError, ValueError: it is no whole number.
    """
    if value is None:
        return max(_FAILURES, 2 * concurrency)
    return whole(value, "max_consecutive_failures", least=0) or math.inf
