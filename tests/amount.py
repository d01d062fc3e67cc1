"""How much is tried: few in `make test`, more in `make test-all`, all in `make properties` and `make kills`.

What is tried is the same in each run, so that trying all anew shows little while nothing it tests has changed.
"""

from __future__ import annotations

import os

LEVELS = ("few", "more", "all")
LEVEL = LEVELS.index(os.environ.get("ROLLOUT_TRACE_AMOUNT", "few"))
USUAL = 100
"""Examples of a property test that names no number."""


def amount(few: int, more: int, most: int) -> int:
    """One of these numbers."""
    return (few, more, most)[LEVEL]


def examples(count: int) -> int:
    """That many examples of a property test, or the part of them that is tried here."""
    return amount(min(count, max(10, count // 20)), min(count, max(20, count // 3)), count)
