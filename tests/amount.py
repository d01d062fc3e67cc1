"""How much is tried: few in `make test`, more in `make test-all`, all in `make properties` and `make kills`.

What is tried is the same in each run, so that trying all anew shows little while nothing it tests has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LEVELS = ("few", "more", "all")
LEVEL = LEVELS.index(os.environ.get("ROLLOUT_TRACE_AMOUNT", "few"))
USUAL = 100
"""Examples of a property test that names no number."""


def amount(few: int, more: int, most: int) -> int:
    """One of these numbers."""
    return (few, more, most)[LEVEL]


def examples(count: int) -> int:
    """That many examples of a property test, or the part of them that is tried here."""
    return amount(min(count, max(5, count // 30)), min(count, max(12, count // 10)), count)


def some(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Cases for `pytest.mark.parametrize`: `make test` tries those that are named.

    `make test-all` tries a third of the others as well, `make properties` all.
    """
    cases = list(cases)
    others = [case for case in cases if case not in kept]
    if kept and LEVEL == 0:
        others = []  # Collecting them alone takes a second.
    elif LEVEL < 2:
        others = others[::3]
    each = [(case, case if isinstance(case, tuple) else (case,)) for case in cases if case in kept or case in others]
    return [pytest.param(*values, marks=[] if case in kept else pytest.mark.more) for case, values in each]


def cuts(body: bytes, stride: int = 1) -> list[int]:
    """Where a body is cut: at every byte, or at fewer; and at its end."""
    return [*range(0, len(body), amount(max(7, stride), stride, stride)), len(body)]
