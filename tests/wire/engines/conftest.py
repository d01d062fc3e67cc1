"""Fixtures of tests that ask engines by a client of OpenAI's."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _retries_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits half a second before it tries again."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
