"""For the core's tests: property tests that do not depend on the machine's speed, and the kinds of clients."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.amount import USUAL, examples
from tests.clients.either import Kind

# A busy machine is slow without anything being wrong, and the same examples each time are what CI can be believed by.
# Which ones these are depends on what is imported, and so does how many of them are too large to be tried.
_NOT_CHECKED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile(
    "rollout_trace",
    deadline=None,
    suppress_health_check=_NOT_CHECKED,
    derandomize=True,
    database=None,
    max_examples=examples(USUAL),
)
settings.load_profile("rollout_trace")


@pytest.fixture(autouse=True)
def nothing_is_known_of_servers() -> None:
    """A server may get the port of one before it: what was learnt of that does not count."""
    for name, kept in (("ask", ("_taken", "_refusals", "_doubts")), ("exact_turns", ("_seams",))):
        module = sys.modules.get(f"rollout_trace.clients.{name}")
        if module is not None:
            for one in kept:
                getattr(module, one).clear()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Of an SDK's client."""
    kind: Kind = request.param
    return kind
