"""The public interface for integrations of frameworks: all that they import of this package.

Frames mark what a framework does, ``wrap_*`` and ``ClassSwap`` record the clients inside its models, ``About`` declares
the integration. See docs/integrations.md.

Public: what ``__all__`` lists. The modules are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace._lazy import lazy_names

if TYPE_CHECKING:
    from rollout_trace.clients.httpx import http_kind as http_kind
    from rollout_trace.clients.httpx import wrap_httpx as wrap_httpx
    from rollout_trace.clients.sdks import client_kind as client_kind
    from rollout_trace.clients.sdks import unwrap as unwrap
    from rollout_trace.clients.sdks import wrap_anthropic as wrap_anthropic
    from rollout_trace.clients.sdks import wrap_openai as wrap_openai
    from rollout_trace.clients.swap import ClassSwap as ClassSwap
    from rollout_trace.clients.transformers import TransformersGeneration as TransformersGeneration
    from rollout_trace.data.model import Completion as Completion
    from rollout_trace.data.model import ErrorInfo as ErrorInfo
    from rollout_trace.data.model import Step as Step
    from rollout_trace.data.model import TokenIssue as TokenIssue
    from rollout_trace.data.model import ToolCall as ToolCall
    from rollout_trace.data.model import ToolRun as ToolRun
    from rollout_trace.data.model import Usage as Usage
    from rollout_trace.data.trajectory import Trajectory as Trajectory
    from rollout_trace.guard import warn_once as warn_once
    from rollout_trace.integration.clients import check_engine as check_engine
    from rollout_trace.integration.clients import is_left_to_process as is_left_to_process
    from rollout_trace.integration.clients import is_recorded as is_recorded
    from rollout_trace.integration.clients import record_client as record_client
    from rollout_trace.integration.generators import report_failure as report_failure
    from rollout_trace.integration.generators import run_async_generator as run_async_generator
    from rollout_trace.integration.generators import run_generator as run_generator
    from rollout_trace.integration.installed import About as About
    from rollout_trace.integration.installed import Integration as Integration
    from rollout_trace.integration.installed import framework_missing as framework_missing
    from rollout_trace.integration.installed import lazy_package as lazy_package
    from rollout_trace.integration.litellm import litellm_client as litellm_client
    from rollout_trace.integration.litellm import litellm_route as litellm_route
    from rollout_trace.integration.litellm import record_litellm_client as record_litellm_client
    from rollout_trace.integration.values import snapshot as snapshot
    from rollout_trace.record.call import Call as Call
    from rollout_trace.record.context import current as current
    from rollout_trace.record.context import propagate as propagate
    from rollout_trace.record.frames import AgentFrame as AgentFrame
    from rollout_trace.record.frames import ModelFrame as ModelFrame
    from rollout_trace.record.frames import ToolFrame as ToolFrame
    from rollout_trace.record.frames import guarded as guarded
    from rollout_trace.record.lifecycle import recording_here as recording_here
    from rollout_trace.record.recording import recording as recording
    from rollout_trace.record.recording import set_current_recording as set_current_recording
    from rollout_trace.record.scope import Frame as Frame
    from rollout_trace.record.scope import active as active
    from rollout_trace.record.scope import current_scope as current_scope
    from rollout_trace.record.scope import enter as enter
    from rollout_trace.record.scope import entered as entered
    from rollout_trace.wire.engine import Engine as Engine
    from rollout_trace.wire.profiles import EngineName as EngineName

# Imported on first use: the entry point of an integration uses `About` alone, and must be fast to import.
_HOMES = {
    # Declaring the package of an integration.
    "rollout_trace.integration.installed": ("About", "Integration", "framework_missing", "lazy_package"),
    # Frames, and the context they are entered in.
    "rollout_trace.record.frames": ("AgentFrame", "ModelFrame", "ToolFrame", "guarded"),
    "rollout_trace.record.scope": ("Frame", "active", "current_scope", "enter", "entered"),
    "rollout_trace.record.context": ("current", "propagate"),
    # `report_failure`: of the integration itself.
    "rollout_trace.integration.generators": ("report_failure", "run_async_generator", "run_generator"),
    "rollout_trace.integration.values": ("snapshot",),
    # Files that the integration opens itself, beside the framework's own.
    "rollout_trace.record.lifecycle": ("recording_here",),
    "rollout_trace.record.recording": ("recording", "set_current_recording"),
    # Clients inside the framework's models, and objects without hooks.
    "rollout_trace.clients.sdks": ("client_kind", "unwrap", "wrap_anthropic", "wrap_openai"),
    "rollout_trace.clients.httpx": ("http_kind", "wrap_httpx"),
    "rollout_trace.clients.swap": ("ClassSwap",),
    "rollout_trace.clients.transformers": ("TransformersGeneration",),
    "rollout_trace.wire.engine": ("Engine",),
    "rollout_trace.wire.profiles": ("EngineName",),
    "rollout_trace.integration.clients": ("check_engine", "is_left_to_process", "is_recorded", "record_client"),
    "rollout_trace.integration.litellm": ("litellm_client", "litellm_route", "record_litellm_client"),
    # Records.
    "rollout_trace.data.model": ("Completion", "ErrorInfo", "Step", "TokenIssue", "ToolCall", "ToolRun", "Usage"),
    "rollout_trace.data.trajectory": ("Trajectory",),
    "rollout_trace.record.call": ("Call",),
    "rollout_trace.guard": ("warn_once",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted({name for names in _HOMES.values() for name in names})
