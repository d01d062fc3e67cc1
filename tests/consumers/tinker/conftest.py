"""Tinker's SDK leaves connections open when its clients are collected."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """For all tests here, and for what is collected after the last."""
    for ignored in (
        "ignore:unclosed:ResourceWarning",
        "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning",
    ):
        config.addinivalue_line("filterwarnings", ignored)
