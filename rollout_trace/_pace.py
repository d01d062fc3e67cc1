"""How a background thread shares the interpreter with the agent's threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

POLITE_LIMIT = 16 * 1024 * 1024
"""Most bytes that wait for a background thread while it lets others run first."""

SLICE = 0.0005
"""Seconds that a background thread works through many small items before it lets others run."""

_background = threading.local()
_Item = TypeVar("_Item")


def set_polite(is_polite: bool) -> None:
    """Has ``give_way`` on this thread let others run first. Threads of the agent never call it."""
    _background.is_polite = is_polite


def give_way() -> None:
    """Lets a thread that waits for the interpreter run now, not after its switch interval of 5 ms."""
    if is_polite():
        time.sleep(0)


def in_slices(items: Iterable[_Item]) -> Iterable[_Item]:
    """The items; between two of them gives way, once ``SLICE`` has passed. For work that takes a moment an item."""
    return _in_slices(items) if is_polite() else items


def _in_slices(items: Iterable[_Item]) -> Iterator[_Item]:
    end = time.perf_counter() + SLICE
    for item in items:
        yield item
        if time.perf_counter() >= end:
            time.sleep(0)
            end = time.perf_counter() + SLICE


def is_polite() -> bool:
    """Whether ``give_way`` lets others run on this thread."""
    return getattr(_background, "is_polite", False)
