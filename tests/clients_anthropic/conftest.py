"""Fixtures of the client tests."""

from __future__ import annotations

import pytest

from rollout_trace import guard
from tests.clients.either import Kind


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Of the client."""
    kind: Kind = request.param
    return kind


@pytest.fixture(autouse=True)
def _everything_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged once per process is logged once per test."""
    monkeypatch.setattr(guard, "_said", set())


@pytest.fixture(autouse=True)
def _retries_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits half a second before it tries again."""
    monkeypatch.setattr("anthropic._base_client.INITIAL_RETRY_DELAY", 0.001)
