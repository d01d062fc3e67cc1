"""For all tests: no memory from one to the next, and property tests that do not depend on the machine's speed."""

from __future__ import annotations

import functools
import ssl

import pytest
from hypothesis import HealthCheck, settings

from tests.clients.either import Kind
from tests.memories import nothing_is_remembered

__all__ = ["nothing_is_remembered"]

# A busy machine is slow without anything being wrong, and the same examples each time are what CI can be believed by.
settings.register_profile(
    "rollout_trace", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.load_profile("rollout_trace")

_shared_context = functools.lru_cache(ssl.create_default_context)


@pytest.fixture(autouse=True)
def certificates_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every HTTP client reads all certificates anew, for tens of milliseconds; no test uses them."""
    monkeypatch.setattr(ssl, "create_default_context", _shared_context)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Of an SDK's client."""
    kind: Kind = request.param
    return kind
