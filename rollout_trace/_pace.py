"""How a background thread shares the interpreter with the agent's threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

POLITE_LIMIT = 16 * 1024 * 1024
"""Most bytes that wait for a background thread while it lets others run first."""

SLICE = 0.0005
"""Seconds that a background thread works before it lets others run. Not after each of many small items: where system
calls are slow, as in a sandbox, letting others run takes as long as decoding a small call."""

_Item = TypeVar("_Item")


class _Background(threading.local):
    is_polite = False
    due = 0.0
    """When the thread is to let others run next, as ``time.perf_counter`` seconds."""


_background = _Background()


def set_polite(is_polite: bool) -> None:
    """Has ``give_way`` on this thread let others run first. Threads of the agent never call it."""
    _background.is_polite = is_polite


def is_polite() -> bool:
    """Whether ``give_way`` on this thread lets others run first."""
    return _background.is_polite


def give_way() -> None:
    """Lets a thread that waits for the interpreter run now, not after its switch interval of 5 ms.

    Does nothing where less than ``SLICE`` has passed since this thread did so last.
    """
    if _background.is_polite and time.perf_counter() >= _background.due:
        time.sleep(0)
        _background.due = time.perf_counter() + SLICE


def in_slices(items: Iterable[_Item]) -> Iterable[_Item]:
    """The items; on a background thread ``give_way`` is called between two of them."""
    return _in_slices(items) if _background.is_polite else items


def _in_slices(items: Iterable[_Item]) -> Iterator[_Item]:
    for item in items:
        yield item
        give_way()
