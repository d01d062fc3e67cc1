"""Tinker's SDK leaves connections open when its clients are collected."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


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
