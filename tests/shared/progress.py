"""pytest, for people who wait: `python tests/shared/progress.py -q tests/wire` is `python -m pytest -q tests/wire`.

It prints how many tests of how many have ended, every ten seconds, in place of dots, and a failed test at once.
Where ROLLOUT_TRACE_PROGRESS names a file, the last line stands there too, for waiting.py.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

import pytest
from waiting import FILE, SECONDS, clock


class Progress:
    """Counts the tests of one run."""

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

    @pytest.hookimpl(optionalhook=True)
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


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    # Before pytest takes the output of tests for itself. An object, and no module to import: a package in one of the
    # environments is called `tests`.
    own = Progress(os.fdopen(os.dup(1), "w"))
    sys.exit(pytest.main(sys.argv[1:], plugins=[own]))
