"""Releases of litellm whose private functions have gone."""

from __future__ import annotations

from types import ModuleType

import pytest

from rollout_trace.process.litellm import FRAMEWORKS
from rollout_trace.process.patches import Patches


class Core:
    """A router without a function that decides to discard an answer."""


@pytest.mark.parametrize(
    ("module", "kind", "missing"),
    [
        ("litellm.router", "Router", "_should_raise_content_policy_error"),
        ("litellm.router_python_core", "PythonCore", "PythonCore._blocked_error"),
        ("litellm.router_rust.core", "_Driver", "_Driver._blocked_error"),
        ("litellm.router_rust.core", "Moved", "_Driver._blocked_error"),
    ],
)
def test_a_release_without_the_function_is_recorded_with_one_warning(
    module: str, kind: str, missing: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No litellm is installed here.
    monkeypatch.setattr("rollout_trace.process.litellm.find_spec", lambda name: None)
    found, patches = ModuleType(module), Patches()
    setattr(found, kind, Core)
    for _ in range(2):
        FRAMEWORKS[module](found, patches)
    (message,) = caplog.messages
    assert f"this release of litellm has no {missing}" in message
