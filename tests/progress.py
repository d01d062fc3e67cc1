"""What is being done while tests run: a plugin of pytest, and lines for a person who waits for several sets of tests.

    python -m pytest -q -p tests.progress

prints how many tests of how many have ended, every ten seconds, in place of pytest's dots, and a failed test at once.
Where ROLLOUT_TRACE_PROGRESS names a file, the last line stands there too. `reported` prints those of all sets.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import pytest

FILE, FOLDER = "ROLLOUT_TRACE_PROGRESS", "ROLLOUT_TRACE_PROGRESS_FOLDER"
SECONDS = 10.0
"""Between two lines."""


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@contextlib.contextmanager
def told(name: str, doing: str) -> Iterator[dict[str, str]]:
    """Says what is being done for a set, where `reported` is around; what pytest needs to go on with it."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        yield {}
        return
    file = Path(folder, name)
    file.write_text(doing)
    try:
        yield {FILE: str(file)}
    finally:
        file.unlink()


@contextlib.contextmanager
def reported() -> Iterator[dict[str, str]]:
    """Prints what all sets are at, every ten seconds, unless a terminal shows it; gives what their processes need."""
    with tempfile.TemporaryDirectory() as folder:
        began, over = time.monotonic(), threading.Event()

        def say() -> None:
            while not over.wait(SECONDS):
                lines = [f"{file.name}: {file.read_text()}" for file in sorted(Path(folder).iterdir())]
                print(f"{clock(time.monotonic() - began)}  {'; '.join(lines) or 'between two sets'}", flush=True)

        # nox shows a board of its own there.
        thread = threading.Thread(target=say, daemon=True)
        if not sys.stdout.isatty():
            thread.start()
        try:
            yield {FOLDER: folder}
        finally:
            over.set()
            if thread.ident:
                thread.join()


class Progress:
    """Counts the tests of one run of pytest."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = time.monotonic()
        self._of = self._ended = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._say, daemon=True)
        self._thread.start()

    def _say(self) -> None:
        while not self._over.wait(SECONDS):
            done = f"{self._ended:,} of {self._of:,} tests" if self._of else "looking for tests"
            line = f"{done}, {clock(time.monotonic() - self._began)}"
            print(line, file=self._out, flush=True)
            if file := os.environ.get(FILE):
                Path(file).write_text(line)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Called without xdist."""
        self._of = self._of or len(session.items)

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Called with xdist, for each worker."""
        self._of = len(ids)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letter for a test that passed, and a line for one that failed."""
        if report.failed:
            return ("failed" if report.when == "call" else "error", "", "")
        return ("passed", "", "") if report.passed and report.when == "call" else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ended += report.when == "teardown"
        if report.failed:
            print(f"FAILED {report.nodeid}", file=self._out, flush=True)

    def pytest_unconfigure(self) -> None:
        self._over.set()
        self._thread.join()
        self._out.close()


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    # Before pytest takes the output of tests for itself.
    pluginmanager.rollout_trace_out = os.fdopen(os.dup(1), "w")  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    # The workers of xdist have a controller, which counts.
    if not hasattr(config, "workerinput"):
        out = config.pluginmanager.rollout_trace_out  # type: ignore[attr-defined]
        config.pluginmanager.register(Progress(out), "rollout-trace-progress")
