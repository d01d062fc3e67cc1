"""Tinker's SDK leaves connections open when its clients are collected, and sends telemetry after they are closed."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import pytest

# Sent by a thread after its service has gone, and again after times from the global `random`: Hypothesis, which was
# drawing meanwhile, took that for a strategy's.
os.environ["TINKER_TELEMETRY"] = "0"


def pytest_configure(config: pytest.Config) -> None:
    """For all tests here."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed:ResourceWarning")


@pytest.fixture(scope="session", autouse=True)
def collected() -> Iterator[None]:
    """What the last test left is collected where no warning is an error yet."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
