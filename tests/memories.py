"""What the recorder remembers for the life of a process, and the fixture that lets each test begin without it."""

from __future__ import annotations

import pytest

from rollout_trace import context, guard
from rollout_trace.clients import asking, detect
from rollout_trace.steplog import StepLog


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages logged once a process, refusals of servers, engines found, and orphans are each test's own."""
    monkeypatch.setattr(guard, "_said", set())
    monkeypatch.setattr(asking, "_refusals", {})
    monkeypatch.setattr(detect, "_searches", {})
    monkeypatch.setattr(context, "_orphans", StepLog(keep=context.ORPHANS_KEPT))
