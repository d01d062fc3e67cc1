"""What frameworks do with answers beside calling a model: their caches, and what they throw away."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from rollout_trace import guard
from rollout_trace.clients import litellm
from rollout_trace.process.patches import Patches


def patch_cache(module: ModuleType, patches: Patches) -> None:
    """Replaces what runs for each answer of litellm's cache."""
    _replace(module.LLMCachingHandler, "_convert_cached_result_to_model_response", litellm.recorded_cache_hit, patches)


def patch_router(module: ModuleType, patches: Patches) -> None:
    """Replaces what decides that litellm's Router throws an answer away."""
    _replace(module.Router, "_should_raise_content_policy_error", litellm.recorded_content_filter, patches)


def patch_utils(module: ModuleType, patches: Patches) -> None:
    """Replaces the checks of answers in litellm."""
    _replace(module, "post_call_processing", litellm.recorded_processing, patches)


def _replace(owner: Any, name: str, make: Callable[[Any, Callable[[], bool]], Any], patches: Patches) -> None:
    if not hasattr(owner, name):
        # Private names: litellm 1.110 has another router. Calls are recorded all the same.
        guard.warn_once(
            f"litellm:{name}",
            f"this release of litellm has no {name}: answers that litellm takes from its cache, or discards, are not "
            "marked as such in an instrumented process. litellm before 1.110 has it.",
        )
        return
    patches.replace(owner, name, lambda original: make(original, lambda: patches.is_active))


FRAMEWORKS: dict[str, Callable[[Any, Patches], None]] = {
    "litellm.caching.caching_handler": patch_cache,
    "litellm.router": patch_router,
    "litellm.utils": patch_utils,
}
"""The modules to wait for, and what replaces their functions."""
