"""Renews objects in forked processes, where locks and open files are still shared with the process that was forked."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_renewals: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
_locks: list[tuple[str, str]] = []


def renew_after_fork(item: T, renew: Callable[[T], object]) -> None:
    """Has ``renew(item)`` called in every forked process, as long as the object exists."""
    _renewals[item] = renew


def lock_for(module: str, name: str = "_lock") -> AbstractContextManager[Any]:
    """Returns a reentrant lock for a variable of a module, which gets a new one in every forked process.

    Another thread may hold this one when the process is forked, and does not exist there.
    """
    _locks.append((module, name))
    return threading.RLock()


def _after_fork() -> None:
    for module, name in _locks:
        setattr(sys.modules[module], name, threading.RLock())
    for item, renew in list(_renewals.items()):
        renew(item)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
