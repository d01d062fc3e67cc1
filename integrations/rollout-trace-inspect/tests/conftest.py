from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_trace as rt

from .harness import Evals


def pytest_configure(config: pytest.Config) -> None:
    # Inspect passes an argument to tenacity that its newest release has renamed.
    config.addinivalue_line("filterwarnings", "ignore:.*use 'multiplier':DeprecationWarning")
    # Inspect leaves the streams of its samples' events open, and its models' connections when its event loop ends.
    config.addinivalue_line("filterwarnings", "ignore:Unclosed <MemoryObject:ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore:unclosed:ResourceWarning")


@pytest.fixture(scope="session", autouse=True)
def left_open() -> Iterator[None]:
    """What is left of them after the last test, when the filters above do not hold any more."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine's user, and no cache of answers but the test's own."""
    for name in ("ROLLOUT_TRACE_INSPECT", "ROLLOUT_TRACE_INSPECT_ENGINE", "ROLLOUT_TRACE_INSPECT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def nothing_failed() -> Iterator[None]:
    """Inspect logs what its hooks and subscribers raise, and goes on: failures must be looked for."""
    before = rt.stats().recorder_errors
    yield
    assert rt.stats().recorder_errors == before


@pytest.fixture
def evals(tmp_path: Path) -> Evals:
    """Evaluations whose logs, and our files, are in the test's folder."""
    return Evals(tmp_path / "logs")
