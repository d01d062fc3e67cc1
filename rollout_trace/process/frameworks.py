"""What frameworks do with answers beside calling a model: their caches, and what they throw away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rollout_trace import guard
from rollout_trace.clients import litellm
from rollout_trace.process.patches import Patches

_CORES = {"litellm.router_python_core": "PythonCore", "litellm.router_rust.core": "_Driver"}
"""Where litellm's router is since 1.109.2, and since 1.110."""


def patch_cache(module: ModuleType, patches: Patches) -> None:
    """Replaces what runs for each answer of litellm's cache."""
    name = "_convert_cached_result_to_model_response"
    if not _replace(module.LLMCachingHandler, name, litellm.recorded_cache_hit, patches):
        _warn(name)


def patch_router(module: ModuleType, patches: Patches) -> None:
    """Replaces what decides that litellm's Router throws an answer away, where the router is this module."""
    later = ("litellm.router_python_core", "litellm.router_rust")
    if not _patch_discards(module.Router, patches) and not any(map(find_spec, later)):
        _warn("_should_raise_content_policy_error")


def patch_core(kind: str, module: ModuleType, patches: Patches) -> None:
    """Does the same in a module of later releases."""
    if not _patch_discards(getattr(module, kind, None), patches):
        _warn(f"{kind}._blocked_error")


def patch_utils(module: ModuleType, patches: Patches) -> None:
    """Replaces the checks of answers in litellm."""
    if not _replace(module, "post_call_processing", litellm.recorded_processing, patches):
        _warn("post_call_processing")


def _patch_discards(owner: Any, patches: Patches) -> bool:
    makers = {
        "_should_raise_content_policy_error": litellm.recorded_decision,
        "_should_raise_anthropic_refusal_error": litellm.recorded_decision,
        "_blocked_error": litellm.recorded_block,
    }
    found = [_replace(owner, name, make, patches) for name, make in makers.items()]
    return any(found)


def _replace(owner: Any, name: str, make: Callable[[Any, Callable[[], bool]], Any], patches: Patches) -> bool:
    if not hasattr(owner, name):
        return False
    patches.replace(owner, name, lambda original: make(original, lambda: patches.is_active))
    return True


def _warn(name: str) -> None:
    # Private names. Calls are recorded all the same.
    guard.warn_once(
        f"litellm:{name}",
        f"this release of litellm has no {name}: answers that litellm takes from its cache, or discards, are not "
        "marked as such in an instrumented process. litellm 1.110.2 has it.",
    )


FRAMEWORKS: dict[str, Callable[[Any, Patches], None]] = {
    "litellm.caching.caching_handler": patch_cache,
    "litellm.router": patch_router,
    **{name: partial(patch_core, kind) for name, kind in _CORES.items()},
    "litellm.utils": patch_utils,
}
"""The modules to wait for, and what replaces their functions."""
