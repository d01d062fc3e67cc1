"""Fixtures of the client tests."""

from __future__ import annotations

import pytest

from tests.sdk_harness import Recorded, parametrize


@pytest.fixture(autouse=True)
def _retries_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits half a second before it tries again."""
    monkeypatch.setattr("anthropic._base_client.INITIAL_RETRY_DELAY", 0.001)


_BOTH_WAYS = {"test_surfaces", "test_failures", "test_raw", "test_middleware", "test_platforms"}
_OF_WRAPPERS = {"test_what_was_cached_before_wrapping_records"}
"""Cases with clients that are not wrapped, and so not recorded."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, _BOTH_WAYS, _OF_WRAPPERS)


@pytest.fixture(autouse=True)
def _recorded_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "by", getattr(request, "param", "wrapper"))
