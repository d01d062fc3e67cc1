"""pytest, for people who wait: `python tests/shared/progress.py -q tests/wire` is `python -m pytest -q tests/wire`.

It says how many tests of how many have ended, every ten seconds, and not by letters; and a failed test at once. In new
lines; or, by ROLLOUT_TRACE_PROGRESS of waiting.py, in the file that it names; in one line over and over if it is empty.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

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
            if file := os.environ.get(FILE):
                Path(file).write_text(line)
            else:
                # nox's board shows the last line, and prints all lines once the set has ended.
                print(f"{line:<40}\r" if FILE in os.environ else f"{line}\n", end="", file=self._out, flush=True)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Called with xdist, which else says "bringing up nodes..." for as long as tests are looked for."""
        told: Any = config.pluginmanager.get_plugin("terminaldistreporter")
        told.rewrite = told.ensure_show_status = lambda *_: None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Called without xdist."""
        self._of = self._of or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Called with xdist, for each worker."""
        self._of = len(ids)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letters, which would stand before the numbers. The words are for the summary."""
        if hasattr(report, "wasxfail"):
            return None
        if report.failed:
            return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")
        if report.skipped:
            return ("skipped", "", "SKIPPED")
        return ("passed" if report.when == "call" else "", "", "")

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
    # Without shares of all tests, which would stand where letters are.
    code = pytest.main(["-o", "console_output_style=classic", *sys.argv[1:]], plugins=[own])
    print(f"{sum(os.times()[:4]):.0f} CPU seconds, of all processes")
    sys.exit(code)
