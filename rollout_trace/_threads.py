"""What threads and forked processes need: objects renewed after a fork, background threads that let others run first.

In a forked process locks and open files are still shared with the process that was forked. A background thread shares
the interpreter with the agent's threads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_renewals: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
_locks: list[tuple[str, str]] = []


def renew_after_fork(item: T, renew: Callable[[T], object]) -> None:
    """Calls ``renew(item)`` in every forked process, as long as the object exists."""
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


# Background threads

POLITE_LIMIT = 16 * 1024 * 1024
"""Most bytes that wait for a background thread while it lets others run first."""

SLICE = 0.0005
"""Seconds that a background thread works before it lets others run, while others want to."""
LONGEST = 0.004
"""The same where none did: to give way takes as long as to decode a call, or longer where system calls are slow."""
_TAKEN = 0.0002
"""Seconds from which on giving way has taken so long that another thread has run meanwhile."""


class _Background(threading.local):
    is_polite = False
    due = 0.0
    """When the thread is to let others run next, as ``time.perf_counter`` seconds."""
    slice = 0.0
    """Seconds between two times."""


_background = _Background()


def set_polite(is_polite: bool) -> None:
    """Makes ``give_way`` on this thread let others run first. Threads of the agent never call this."""
    _background.is_polite = is_polite


def give_way() -> None:
    """Lets a thread that waits for the interpreter run now, not after its switch interval of 5 ms.

    Does nothing where the thread did so a moment ago: ``SLICE``, and longer while no other thread wants to run.
    """
    background = _background
    if background.is_polite and (now := time.perf_counter()) >= background.due:
        time.sleep(0)
        after = time.perf_counter()
        background.slice = SLICE if after - now > _TAKEN else min(2 * background.slice + SLICE, LONGEST)
        background.due = after + background.slice


def in_slices(items: Iterable[T]) -> Iterable[T]:
    """The items; on a background thread ``give_way`` is called between two of them."""
    return _in_slices(items) if _background.is_polite else items


def _in_slices(items: Iterable[T]) -> Iterator[T]:
    for item in items:
        yield item
        give_way()
