"""What importing costs on top of the SDK, in CPU time, each time in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.report import Effort, Row, at_most, spread

LIMIT = 60
HEAVY = ("numpy", "openai", "anthropic", "httpx", "httpx2", "pydantic", "rich", "zstandard")
_CHILD = """
import json, sys, time
def timed(action):
    before, began = set(sys.modules), time.process_time()
    exec(action, globals())
    return [(time.process_time() - began) * 1e3, sorted(set(sys.modules) - before)]
print(json.dumps([timed(action) for action in sys.argv[1:]]))
"""
_IMPORT = "import rollout_trace as rt"
_NAMES = "rt.wrap_openai, rt.trajectory, rt.recording, rt.JSONLWriter"


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    rounds = [_measured("import openai", _IMPORT, _NAMES, "import numpy") for _ in range(effort.repeat(9))]
    times = [[milliseconds for milliseconds, _ in each] for each in rounds]
    openai, own, names, numpy = ([each[step] for each in times] for step in range(4))
    modules = [found for _, found in rounds[0]]
    more = f"{len(modules[1])} modules; openai itself {spread(openai).middle:,.0f} ms, {len(modules[0])} modules"
    yield at_most("import rollout_trace, after openai", spread(own), LIMIT, form=".1f", unit=" ms", more=more)
    both = spread(one + other for one, other in zip(own, names, strict=True))
    more = f"{len(modules[1] + modules[2])} modules"
    yield at_most("the same with the names a recording uses", both, LIMIT, form=".1f", unit=" ms", more=more)
    more = f"{len(modules[3])} modules"
    yield at_most("numpy, imported when a call is decoded", spread(numpy), None, form=".0f", unit=" ms", more=more)
    yield _alone()


def _alone() -> Row:
    """In an empty process: nothing heavy may come with the package, nor with the names that do not need it."""
    own, names = (_heavy(found) for _, found in _measured(_IMPORT, _NAMES))
    more = f"with its names: {_list(names)}"
    return Row("heavy modules imported with the package", _list(own), more, "none", met=not own)


def _heavy(modules: list[str]) -> list[str]:
    return [name for name in HEAVY if name in modules]


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _measured(*actions: str) -> list[Any]:
    """Milliseconds of each statement, and the modules that it imported."""
    output = subprocess.run([sys.executable, "-c", _CHILD, *actions], check=True, capture_output=True).stdout
    measured: list[Any] = json.loads(output)
    return measured
