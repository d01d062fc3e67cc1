"""Fixtures of the client tests."""

from __future__ import annotations

import functools
import ssl

import pytest

from rollout_trace import guard

from .either import Kind


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
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


_shared_context = functools.lru_cache(ssl.create_default_context)


@pytest.fixture(autouse=True)
def _certificates_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every HTTP client reads all certificates anew, for tens of milliseconds; no test uses them."""
    monkeypatch.setattr(ssl, "create_default_context", _shared_context)
