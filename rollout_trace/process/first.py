"""The first Python process of a run: it prints the summary, and takes the reward."""

from __future__ import annotations

import os
import sys


def is_first() -> bool:
    """Whether this is the process whose end is the end of the run: the first Python process of the command."""
    return _first() == str(os.getpid())


def is_first_alive() -> bool:
    """Whether the first process still runs, so that what is left for it will be read."""
    first = _first()
    if not first.isdigit() or sys.platform == "win32":
        return False
    try:
        os.kill(int(first), 0)
    except OSError:
        return False
    return True


def _first() -> str:
    """Its process id; empty where there is none."""
    return os.environ.get("ROLLOUT_TRACE_FIRST", "").partition(":")[2].partition(":")[0]
