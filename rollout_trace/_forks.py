"""Renews objects in forked processes, where locks and open files are still shared with the process that was forked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_renewals: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def renew_after_fork(item: T, renew: Callable[[T], object]) -> None:
    """Has ``renew(item)`` called in every forked process, as long as the object exists."""
    _renewals[item] = renew


def renew_lock_after_fork(names: dict[str, Any]) -> None:
    """Has a module's ``_lock``, a reentrant one, made anew in every forked process: another thread may hold it then.

    To be called where the lock is, not where it is used: a process may use a part of the recorder alone.

    Args:
        names: the module's ``globals()``.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: names.update(_lock=threading.RLock()))


def _after_fork() -> None:
    for item, renew in list(_renewals.items()):
        renew(item)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
