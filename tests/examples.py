"""How many examples a property test tries: a third in `make test`, all of them in `make properties`.

They are the same in each run, so that trying all anew shows little while nothing they test has changed.
"""

from __future__ import annotations

import os

ALL = bool(os.environ.get("ROLLOUT_TRACE_ALL_EXAMPLES"))
USUAL = 100
"""Of hypothesis, where a test names no number."""
FEWEST = 20


def examples(count: int) -> int:
    """That many, or the part of them that is tried here."""
    return count if ALL else min(count, max(FEWEST, count // 3))
