"""Fixtures of all tests, the integrations' too: each test begins as a new process would."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import re
import signal
import sys
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rollout_trace import guard
from rollout_trace.clients import ask as asking
from rollout_trace.clients import detect
from rollout_trace.record import scope
from rollout_trace.record.log import StepLog

ROOT = Path(__file__).parent
pytest_plugins = ["pytester"]  # The plugin's tests run pytest; only here may a conftest.py name plugins.
pytest.register_assert_rewrite("replayed_example", "shown", "whole_process")  # In tests/shared; they say what differs.

# Tests make many objects and few of them are garbage: looking for it took a tenth of all their time.
gc.set_threshold(20_000, 20, 50)
# Every HTTP client reads all certificates, for tens of milliseconds, in each process; no test uses them.
os.environ["SSL_CERT_FILE"] = str(ROOT / "tests" / "data" / "one_certificate.pem")
# Libraries say at the end of a process which of their objects are left.
atexit.register(gc.unfreeze)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in the background; some tests interrupt themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leaves modules and tests out of garbage collections: tests ask for a thousand, each took 0.3 seconds."""
    gc.collect()
    gc.freeze()


_STARTS = re.compile(r"\bimport (subprocess|multiprocessing)\b|\bos\.fork\(|_subprocess\(")
_STARTERS = (
    "forked", "cli.command", "file.processes", "pytest_agent_copy", "testing.plugin.project",
    "collection.executor_agents", "collection.screen", "collection.stress.served", "record.started",
    "process.running", "documentation.reader", "examples.coding_agent.example",
)  # fmt: skip
"""Modules in `tests` by which tests start processes."""


@functools.cache
def _starts_processes(module: ModuleType) -> bool:
    """Whether a module of tests starts processes: by itself, or by one of those modules."""
    used = [getattr(one, "__module__", getattr(one, "__name__", "")) for one in vars(module).values()]
    text = Path(module.__file__ or "").read_text(encoding="utf-8")
    return bool(_STARTS.search(text)) or any(str(name).removeprefix("tests.") in _STARTERS for name in used)


def _refuse_processes(event: str, arguments: object) -> None:
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn") and "PYTEST_CURRENT_TEST" in os.environ:
        raise AssertionError("FAST=1 has kept a test that starts a process: mark it `processes`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what starts processes, where that is asked for; leaves tests that are marked `more` to `make test-all`."""
    if "processes" in config.option.markexpr:
        for item in items:
            if isinstance(item, pytest.Function) and _starts_processes(item.module):
                item.add_marker("processes")
        if "not processes" in config.option.markexpr:
            sys.addaudithook(_refuse_processes)
    if os.environ.get("ROLLOUT_TRACE_AMOUNT", "few") == "few":
        left = [item for item in items if item.get_closest_marker("more")]
        items[:] = [item for item in items if not item.get_closest_marker("more")]
        config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A lone surrogate in what a test logged cannot be sent from xdist's worker: 3.8 ends without a word."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="module", autouse=True)
def garbage_is_looked_for_in_one_module() -> Iterator[None]:
    """What a module of tests leaves, caches among it, made each collection in the modules after it slower.

    It is left out of them to the end of the process: what only then is garbage belongs to no test. It may
    be an SDK's client that nobody closed; where its socket is collected first, Python says that it was left open.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages logged once a process, refusals of servers, engines found, and orphans are each test's own."""
    monkeypatch.setattr(guard, "_logged_keys", set())
    monkeypatch.setattr(asking, "_refusals", {})
    monkeypatch.setattr(detect, "_searches", {})
    monkeypatch.setattr(scope, "_orphans", StepLog(keep=scope.ORPHANS_KEPT))
