"""The process that those of kills and of faults are forked from: it has imported what they need."""

from __future__ import annotations

import functools
from pathlib import Path

from tests.forked import Starter

ROOT = Path(__file__).parents[2]
IMPORTS = """
import tests.record.fault_agent, tests.record.kills.recoverer, tests.record.kills.target
tests.record.kills.target.warm()
"""


@functools.lru_cache
def starter() -> Starter:
    """Begins with its first use."""
    return Starter(IMPORTS, cwd=ROOT)
