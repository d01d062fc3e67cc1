"""Releases of litellm whose private functions have gone."""

from __future__ import annotations

from types import ModuleType

import pytest

from rollout_trace.process.frameworks import FRAMEWORKS, patch_router
from rollout_trace.process.patches import Patches


class Router:
    """Of litellm 1.110: without the function that decides to discard an answer."""


def test_a_release_without_the_function_is_recorded_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    module, patches = ModuleType("litellm.router"), Patches()
    module.Router = Router  # type: ignore[attr-defined]
    for _ in range(2):
        patch_router(module, patches)
    (message,) = caplog.messages
    assert "this release of litellm has no _should_raise_content_policy_error" in message
    assert FRAMEWORKS["litellm.router"] is patch_router
