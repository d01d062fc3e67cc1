"""The public interface for integrations of frameworks: all that they import of this package.

Frames mark what a framework does, ``wrap_*`` and ``ClassSwap`` record the clients inside its models, ``About`` declares
the integration. See docs/integrations.md.

Public: what ``__all__`` lists. The modules are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace._lazy import lazy_names

if TYPE_CHECKING:
    from rollout_trace.clients.anthropic import wrap_anthropic
    from rollout_trace.clients.common import client_kind, unwrap
    from rollout_trace.clients.httpx import http_kind, wrap_httpx
    from rollout_trace.clients.openai import wrap_openai
    from rollout_trace.clients.swap import ClassSwap
    from rollout_trace.clients.transformers_rows import TransformersGeneration
    from rollout_trace.data.model import Completion, ErrorInfo, Step, TokenIssue, ToolCall, ToolRun, Usage
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.guard import warn_once
    from rollout_trace.integration.clients import check_engine, is_left_to_process, is_recorded, record_client
    from rollout_trace.integration.failures import report_failure
    from rollout_trace.integration.generators import run_async_generator, run_generator
    from rollout_trace.integration.installed import About, framework_missing
    from rollout_trace.integration.litellm import litellm_client, litellm_route, record_litellm_client
    from rollout_trace.integration.package import lazy_package
    from rollout_trace.integration.values import snapshot
    from rollout_trace.record.call import Call
    from rollout_trace.record.context import current, propagate
    from rollout_trace.record.frames import AgentFrame, ModelFrame, ToolFrame, guarded
    from rollout_trace.record.lifecycle import recording_here
    from rollout_trace.record.recording import recording, set_current_recording
    from rollout_trace.record.scope import Frame, active, current_scope, enter, entered
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName

# Imported on first use: the entry point of an integration uses `About` alone, and must be fast to import.
_HOMES = {
    # Declaring the package of an integration.
    "rollout_trace.integration.installed": ("About", "framework_missing"),
    "rollout_trace.integration.package": ("lazy_package",),
    # Frames, and the context they are entered in.
    "rollout_trace.record.frames": ("AgentFrame", "ModelFrame", "ToolFrame", "guarded"),
    "rollout_trace.record.scope": ("Frame", "active", "current_scope", "enter", "entered"),
    "rollout_trace.record.context": ("current", "propagate"),
    "rollout_trace.integration.generators": ("run_async_generator", "run_generator"),
    "rollout_trace.integration.values": ("snapshot",),
    # Files that the integration opens itself, beside the framework's own.
    "rollout_trace.record.lifecycle": ("recording_here",),
    "rollout_trace.record.recording": ("recording", "set_current_recording"),
    # Clients inside the framework's models, and objects without hooks.
    "rollout_trace.clients.anthropic": ("wrap_anthropic",),
    "rollout_trace.clients.common": ("client_kind", "unwrap"),
    "rollout_trace.clients.httpx": ("http_kind", "wrap_httpx"),
    "rollout_trace.clients.openai": ("wrap_openai",),
    "rollout_trace.clients.swap": ("ClassSwap",),
    "rollout_trace.clients.transformers_rows": ("TransformersGeneration",),
    "rollout_trace.wire.engine": ("Engine",),
    "rollout_trace.wire.profiles": ("EngineName",),
    "rollout_trace.integration.clients": ("check_engine", "is_left_to_process", "is_recorded", "record_client"),
    "rollout_trace.integration.litellm": ("litellm_client", "litellm_route", "record_litellm_client"),
    # Records.
    "rollout_trace.data.model": ("Completion", "ErrorInfo", "Step", "TokenIssue", "ToolCall", "ToolRun", "Usage"),
    "rollout_trace.data.trajectory": ("Trajectory",),
    "rollout_trace.record.call": ("Call",),
    # Failures of the integration itself.
    "rollout_trace.guard": ("warn_once",),
    "rollout_trace.integration.failures": ("report_failure",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "About",
    "AgentFrame",
    "Call",
    "ClassSwap",
    "Completion",
    "Engine",
    "EngineName",
    "ErrorInfo",
    "Frame",
    "ModelFrame",
    "Step",
    "TokenIssue",
    "ToolCall",
    "ToolFrame",
    "ToolRun",
    "Trajectory",
    "TransformersGeneration",
    "Usage",
    "active",
    "check_engine",
    "client_kind",
    "current",
    "current_scope",
    "enter",
    "entered",
    "framework_missing",
    "guarded",
    "http_kind",
    "is_left_to_process",
    "is_recorded",
    "lazy_package",
    "litellm_client",
    "litellm_route",
    "propagate",
    "record_client",
    "record_litellm_client",
    "recording",
    "recording_here",
    "report_failure",
    "run_async_generator",
    "run_generator",
    "set_current_recording",
    "snapshot",
    "unwrap",
    "warn_once",
    "wrap_anthropic",
    "wrap_httpx",
    "wrap_openai",
]
