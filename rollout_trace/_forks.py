"""Renews objects in forked processes, where locks and open files are still shared with the process that was forked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_renewals: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def renew_after_fork(item: T, renew: Callable[[T], object]) -> None:
    """Has ``renew(item)`` called in every forked process, as long as the object exists."""
    _renewals[item] = renew


def _after_fork() -> None:
    for item, renew in list(_renewals.items()):
        renew(item)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
