"""What the pytest plugin costs a run that does not use it, in CPU time, each time in a process of its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Effort, Row, at_most, spread

TESTS = 500
LIMIT = 1
_OPTIONS = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib")


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test_trivial.py")
        path.write_text("".join(f"def test_{number}(): pass\n" for number in range(TESTS)), encoding="utf-8")
        for with_plugin in (True, False):
            _seconds(path, with_plugin=with_plugin)
        pairs = [_pair(path, plugin_first=bool(number % 2)) for number in range(effort.repeat(20))]
    more = f"{spread(without for _, without in pairs).middle:.2f} s without it"
    shares = spread(100 * (own / without - 1) for own, without in pairs)
    yield at_most(f"{TESTS} trivial tests with the plugin, unused", shares, LIMIT, form="+.1f", unit=" %", more=more)


def _pair(path: Path, *, plugin_first: bool) -> tuple[float, float]:
    """Seconds with the plugin and without it, one after the other: what the machine does meanwhile hits both."""
    times = {first: _seconds(path, with_plugin=first) for first in (plugin_first, not plugin_first)}
    return times[True], times[False]


def _seconds(path: Path, *, with_plugin: bool) -> float:
    before = _children()
    # No other plugin: they take longer than what is measured, and vary more. Compiled once, as it is for users.
    environ = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPYCACHEPREFIX": str(path.parent / "compiled"),
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    options = (*_OPTIONS, "-p", "rollout_trace.testing.pytest_plugin" if with_plugin else "no:rollout_trace")
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(path.parent), str(path)]
    subprocess.run(command, check=True, capture_output=True, env=environ, cwd=path.parent)
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
